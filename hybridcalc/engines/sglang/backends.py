"""Which attention backend and which pages does SGLang take for a GPU, where they are not given, or may not stay?

Start-up settles them twice. A model class has its say first (`of_class`), and the radix-cache strategy is judged on
what it says; what is open then, and the pages that a backend insists on, follow (`of_gpu`):

    Hopper       fa3, for heads with a tree of drafts, or one branch and pages: flashinfer
    Blackwell    heads trtllm_mha (pages of 16 to 128 tokens, else 64), with drafts only where their branches are
                 typed as one; MLA flashinfer; Kimi-K3 trtllm_mla (32 or 64)
    AMD          aiter, but triton for MLA of other than 16 or 128 heads a rank
    others       heads flashinfer, MLA triton

fa3 does not read fp8_e5m2, where triton takes its place. Where the GPU is not known, nothing is settled here but the
pages that an index needs: 64 keys.
Mirrors arg_groups/overrides.py, arg_groups/model_overrides/ (0.5.23).
"""

from hybridcalc.architecture import Architecture, LatentKV
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.kv import DSA_PAGE, index_page
from hybridcalc.engines.sglang.releases import RuleSet

TRITON_ON_BLACKWELL = ("FalconH1", "JetNemotron", "JetVLM")
FLASHINFER_ON_BLACKWELL = ("GraniteMoeHybrid", "Lfm2")
TRTLLM_WITH_BUFFERS = (
    "Qwen3Next", "Qwen3_5ForConditional", "Qwen3_5MoeForConditional", "Qwen4Exp", "InternS2",
)  # fmt: skip
"""How names of classes begin that bring a backend for Blackwell; the last take TensorRT-LLM's where pages may be 64,
and their pages with it, whatever is typed.
"""
BACKEND_PAGES = {
    "trtllm_mla": (32, 64), "cutedsl_mla": (32, 64), "trtllm_mha": (16, 32, 64, 128), "flashmla": (64,), "dsa": (64,),
    "cutlass_mla": (128,), "hpc_ops": (64,),
}  # fmt: skip
"""Pages that a backend takes; any other becomes 64, or the only one."""
ANY_PAGE = ("dsa", "cutlass_mla")
"""Backends whose pages are not enforced here."""
AITER_HEADS, AITER_CONTEXT, AITER_SHARE = (16, 128), 8192, 0.85


def of_class(model: Architecture, args: ServerArgs, rules: RuleSet) -> ServerArgs:
    """The arguments with what a model class settles of backend, pages and strategy."""
    known, name = args.platform == "cuda" and args.capability is not None, model.architecture
    page = _page_of_index(model, rules)
    if page is not None and (args.page_size is None or known):
        args = args.changed(page_size=page)
    major = args.capability[0] if args.capability is not None else 0
    if known and getattr(model.attention, "indexer", None) is not None:
        return _sparse(args.changed(attention_backend=args.attention_backend or "dsa"), major)
    if not known or args.attention_backend is not None:
        return args
    if name.startswith("Inkling"):
        return args.changed(
            attention_backend="fa4" if major == 10 or (major == 9 and rules.fa4_on_hopper) else "triton"
        )
    if name.startswith("NemotronH"):
        return _nemotron(args, major)
    if major != 10:
        return args
    if name.startswith("KimiK3"):
        return args.changed(attention_backend="trtllm_mla")
    if name.startswith(TRITON_ON_BLACKWELL):
        return args.changed(attention_backend="triton")
    if name.startswith(FLASHINFER_ON_BLACKWELL) and model.state_layers:
        return args.changed(attention_backend="flashinfer")
    if name.startswith(TRTLLM_WITH_BUFFERS):
        buffered = args.radix_cache and args.mamba_radix_cache_strategy.startswith("extra_buffer")
        pages = not args.radix_cache or buffered or args.speculative
        whole = pages and _default(model, args) == "trtllm_mha"
        return args.changed(
            attention_backend="trtllm_mha" if whole else "triton", page_size=page or (DSA_PAGE if whole else 1)
        )
    return args


def of_gpu(model: Architecture, args: ServerArgs) -> ServerArgs:
    """The arguments with the GPU's backend and pages, where the class left them open or the backend insists on its own;
    on AMD's with the backend alone.
    """
    if args.platform == "hip":
        return args if args.attention_backend else args.changed(attention_backend=_default(model, args))
    if args.platform != "cuda" or args.capability is None:
        return args
    backend, page = args.attention_backend or _default(model, args), args.page_size
    taken = BACKEND_PAGES.get(backend, ())
    if taken and page not in taken and (page is None or backend not in ANY_PAGE):
        page = DSA_PAGE if DSA_PAGE in taken else taken[0]
    tree = (args.speculative_eagle_topk or 0) > 1
    if backend == "fa4" and args.capability[0] == 10 and not isinstance(model.attention, LatentKV) and not tree:
        page = 128
    if backend == "fa3" and args.kv_cache_dtype == "fp8_e5m2":
        backend = "triton"
    return args.changed(attention_backend=backend, page_size=page or 1)


def workspace_share(args: ServerArgs, context_length: int) -> float:
    """What AMD's aiter leaves of the memory fraction, given or not, for contexts beyond 8,192 tokens."""
    return AITER_SHARE if args.attention_backend == "aiter" and context_length > AITER_CONTEXT else 1.0


def _page_of_index(model: Architecture, rules: RuleSet) -> int | None:
    """Tokens of a page that an index of sparse attention needs."""
    indexer = getattr(model.attention, "indexer", None)
    if indexer is not None:
        return index_page(indexer, rules)
    return DSA_PAGE if getattr(model.attention, "compressed", None) is not None else None


def _sparse(args: ServerArgs, major: int) -> ServerArgs:
    """Sparse attention keeps KV in fp8 on Blackwell, in rows that TensorRT-LLM reads, with scales elsewhere."""
    dtype = args.kv_cache_dtype
    if dtype == "auto":
        dtype = "fp8_e4m3" if major >= 10 else "bfloat16"
    if dtype == "fp8_e4m3":
        prefill = decode = "trtllm" if major >= 10 else "flashmla_kv"
    else:
        prefill, decode = "flashmla_sparse", "trtllm" if major >= 10 else "fa3"
    return args.changed(
        kv_cache_dtype=dtype,
        dsa_prefill_backend=args.dsa_prefill_backend or prefill,
        dsa_decode_backend=args.dsa_decode_backend or decode,
    )


def _nemotron(args: ServerArgs, major: int) -> ServerArgs:
    """Nemotron-H on Blackwell of any kind; with drafts of one branch its extra buffers come along."""
    if major not in (10, 12) or not (args.speculative or major == 10):
        return args
    if args.speculative and (major == 12 or args.speculative_eagle_topk not in (None, 1)):
        return args.changed(attention_backend="triton")
    if not args.speculative:
        return args.changed(attention_backend="trtllm_mha")
    strategy = args.mamba_radix_cache_strategy
    return args.changed(
        attention_backend="trtllm_mha",
        page_size=args.page_size or DSA_PAGE,
        mamba_radix_cache_strategy="extra_buffer" if strategy == "auto" else strategy,
    )


def _default(model: Architecture, args: ServerArgs) -> str:
    """The backend of a GPU for heads or latent rows."""
    major, latent = args.capability[0] if args.capability is not None else 0, isinstance(model.attention, LatentKV)
    if args.platform == "hip":
        heads = (model.num_attention_heads or 0) // args.tp_size
        return "triton" if latent and heads not in AITER_HEADS else "aiter"
    if latent:
        return {9: "fa3", 10: "flashinfer"}.get(major, "triton")
    topk = args.speculative_eagle_topk
    chain = topk is None or (topk == 1 and args.page_size in (None, 1))
    if major == 9 and chain:
        return "fa3"
    named = not args.speculative or topk is not None or args.speculative_algorithm == "DFLASH"
    return "trtllm_mha" if major == 10 and chain and named else "flashinfer"
