"""vLLM's attention backends: which one serves, its smallest block, its layouts (tables of 0.33.0, partly read only)."""

from dataclasses import replace
from typing import Any, cast

import pytest
from present import present

from hybridcalc import load_model
from hybridcalc.architecture import GroupedQueryKV, IndexCache, LatentKV
from hybridcalc.architecture.families.gdn import GatedDeltaNet
from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES
from hybridcalc.engines.vllm.layers import (
    CAPABILITIES,
    FIXED_BACKENDS,
    FREE_LAYOUTS,
    PACKED,
    attention_backend,
    kv_element_bytes,
    resolve_layout,
)
from hybridcalc.engines.vllm.pages import checkpoint_grid, kv_bytes_per_token
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.errors import InputError, Refusal

NEMOTRON, KIMI = "nemotron-h-8b", "kimi-linear-48b-a3b"


@pytest.mark.parametrize(
    ("model", "given", "name", "block"),
    [
        (NEMOTRON, {}, "FLASH_ATTN", 16),
        (NEMOTRON, {"kv_cache_dtype": "fp8"}, "FLASH_ATTN", 16),
        (NEMOTRON, {"kv_cache_dtype": "fp8_e5m2"}, "TRITON_ATTN", 16),
        (NEMOTRON, {"kv_cache_dtype": "int8_per_token_head"}, "TRITON_ATTN", 16),
        (NEMOTRON, {"dtype": "float32"}, "TRITON_ATTN", 16),
        (NEMOTRON, {"gpu_capability": "10.0"}, "FLASHINFER", 16),
        ("kimi-linear-48b-a3b", {}, "FLASH_ATTN_MLA", 16),
        (KIMI, {"kv_cache_dtype": "fp8"}, "TRITON_MLA", 16),
        (KIMI, {"kv_cache_dtype": "fp8", "engine_version": "0.22.1"}, "FLASH_ATTN_MLA", 16),
        (KIMI, {"gpu_capability": "10.0"}, "FLASHINFER_MLA", 32),
        (NEMOTRON, {"attention_backend": "triton_attn"}, "TRITON_ATTN", 16),
        (KIMI, {"attention_backend": "FLASHMLA"}, "FLASHMLA", 64),
    ],
)
def test_the_backend_follows_gpu_dtype_and_kind(model: str, given: dict[str, Any], name: str, block: int) -> None:
    ready = prepare(load_model(model), EngineArgs(**given))
    assert (present(ready.backend).name, present(ready.backend).kernel_block) == (name, block)
    assert name in ready.settled["attention_backends"]
    assert ready.pages.block % block == 0


def test_a_model_without_attention_has_none() -> None:
    assert attention_backend(load_model("codestral-mamba-7b"), EngineArgs(), rules_for(None)[0], "bfloat16") is None
    assert prepare(load_model("codestral-mamba-7b"), EngineArgs()).settled["attention_backends"] == ["MAMBA2_ATTN"]


def test_a_backend_nobody_knows_is_an_input_error() -> None:
    with pytest.raises(InputError, match=r"(?m)^--attention-backend MAGIC is not modelled$") as caught:
        prepare(load_model(NEMOTRON), EngineArgs(attention_backend="MAGIC"))
    assert caught.value.fix == f"one of {', '.join(FIXED_BACKENDS)}"


@pytest.mark.parametrize(
    ("asked", "layout"), [(None, "LBNHC"), ("NHD", "LBNHC"), ("HND", "LBHNC"), *((name, name) for name in FREE_LAYOUTS)]
)
def test_a_layout_by_name_or_alias(asked: str | None, layout: str) -> None:
    env = {} if asked is None else {"VLLM_KV_CACHE_LAYOUT": asked}
    ready = prepare(load_model(NEMOTRON), EngineArgs(env=env))
    assert ready.layout == layout
    assert f"Using {layout} KV cache layout." in ready.log


@pytest.mark.parametrize(
    ("model", "asked", "capability"),
    [(NEMOTRON, "BHLNC", "9.0"), (NEMOTRON, "LBNHC", "10.0"), (NEMOTRON, "nonsense", "9.0")],
)
def test_a_layout_that_one_of_the_caches_cannot_read_is_refused(model: str, asked: str, capability: str) -> None:
    """BHLNC is out for every hybrid; FlashInfer on Blackwell reads none that begins with LBN."""
    args = EngineArgs(env={"VLLM_KV_CACHE_LAYOUT": asked}, gpu_capability=capability)
    with pytest.raises(Refusal) as caught:
        prepare(load_model(model), args)
    assert (caught.value.stage, caught.value.rule) == ("layout+groups", "HC047")
    assert caught.value.message == f"VLLM_KV_CACHE_LAYOUT={asked} is no layout that both caches can be kept in"


def test_a_pure_state_model_takes_the_layouts_that_hybrids_cannot() -> None:
    for asked in ("BHLNC", "LHBNC"):
        assert resolve_layout(EngineArgs(env={"VLLM_KV_CACHE_LAYOUT": asked}), rules_for(None)[0], None) == asked


@pytest.mark.parametrize(("block", "near"), [(24, 32), (8, 16), (1, 16), (1000, 992)])
def test_a_block_that_the_kernels_do_not_divide_is_refused_with_the_nearest(block: int, near: int) -> None:
    """Recorded for 24 and 8: no valid attention backend."""
    with pytest.raises(Refusal) as caught:
        prepare(load_model(NEMOTRON), EngineArgs(block_size=block))
    assert (caught.value.stage, caught.value.rule) == ("initialize_model", "HC047")
    assert caught.value.message == f"FLASH_ATTN takes no block of {block} tokens: its kernels work on 16"
    assert caught.value.fix == f"write --block-size {near}, or leave it out"
    assert prepare(load_model(NEMOTRON), EngineArgs(block_size=near)).pages.block % near == 0


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0", "12.0"])
@pytest.mark.parametrize("head", [64, 80, 96, 128, 192, 256, 512])
def test_flashinfer_serves_the_head_sizes_of_its_kernels_on_blackwell(capability: str, head: int) -> None:
    """64, 128, 256 and 512 on 10.x alone (platforms/cuda.py); every other head and GPU runs FlashAttention."""
    model = load_model(NEMOTRON)._replace(attention=GroupedQueryKV(8, head, head))
    backend = attention_backend(model, EngineArgs(gpu_capability=capability), rules_for(None)[0], "bfloat16")
    flashinfer = capability == "10.0" and head in (64, 128, 256, 512)
    layouts = ("LBHNC", "BLHNC") if flashinfer else ("LBNHC", "LBHNC", "BLNHC", "BLHNC")
    assert present(backend) == ("FLASHINFER" if flashinfer else "FLASH_ATTN", 16, layouts)


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0", "12.0"])
@pytest.mark.parametrize("dtype", ["auto", "fp8", "fp8_e4m3"])
@pytest.mark.parametrize("release", ["0.26.0", "0.27.0", None])
def test_the_backend_of_latent_rows(capability: str, dtype: str, release: str | None) -> None:
    """FlashInfer's on 10.x; FlashAttention's on Hopper, Triton's there for fp8 from 0.27 on and on every other GPU."""
    args = EngineArgs(gpu_capability=capability, kv_cache_dtype=dtype)
    found = present(attention_backend(load_model(KIMI), args, rules_for(release)[0], "bfloat16"))
    if capability == "10.0":
        assert found == ("FLASHINFER_MLA", 32, FREE_LAYOUTS)
    elif capability != "9.0" or (dtype != "auto" and release != "0.26.0"):
        assert found == ("TRITON_MLA", 16, FREE_LAYOUTS)
    else:
        assert found == ("FLASH_ATTN_MLA", 16, FREE_LAYOUTS)


@pytest.mark.parametrize(
    ("capability", "rope", "dtype", "name", "block"),
    [
        ("9.0", 0, "auto", "FLASHINFER_MLA_SPARSE_SM90", 64),
        ("9.0", 0, "fp8", "FLASHINFER_MLA_SPARSE_SM90", 64),
        ("9.0", 64, "auto", "FLASHMLA_SPARSE", 64),
        ("10.0", 0, "auto", "FLASHINFER_MLA_SPARSE", 32),
        ("10.0", 64, "fp8", "FLASHINFER_MLA_SPARSE", 32),
        ("10.0", 64, "auto", "FLASHMLA_SPARSE", 64),
        ("12.0", 0, "auto", "FLASHINFER_MLA_SPARSE_SM120", 64),
    ],
)
@pytest.mark.parametrize(("release", "layout"), [("0.31.0", "LBHNC"), ("0.32.0", "BLHNC")])
def test_the_backend_of_sparse_latent_rows(
    capability: str, rope: int, dtype: str, name: str, block: int, release: str, layout: str
) -> None:
    """FlashInfer's of the GPU where rows have no rotary part (platforms/cuda.py); the index names the layout."""
    model = load_model("glm-5.3-flash")
    model = model._replace(attention=LatentKV(512, rope, IndexCache(128, 4)))
    args = EngineArgs(gpu_capability=capability, kv_cache_dtype=dtype)
    found = attention_backend(model, args, rules_for(release)[0], "bfloat16")
    assert found == (name, block, (layout,))


BLOCKS = {
    "FLASH_ATTN": 16, "FLASHINFER": 16, "TRITON_ATTN": 16, "FLEX_ATTENTION": 16, "TURBOQUANT": 16,
    "FLASH_ATTN_MLA": 16, "TRITON_MLA": 16, "FLASHINFER_MLA": 32, "FLASHMLA": 64, "CUTLASS_MLA": 128,
}  # fmt: skip
"""The smallest block of each backend's kernels: v1/attention/backends/, get_supported_kernel_block_sizes."""


def test_a_backend_that_is_asked_for_brings_its_block_and_layouts() -> None:
    assert set(BLOCKS) == set(FIXED_BACKENDS)
    for name, block in BLOCKS.items():
        major = CAPABILITIES.get(name, (9,))[0]
        args = EngineArgs(attention_backend=name.lower(), gpu_capability=f"{major}.0")
        model = load_model(KIMI if name.endswith("MLA") else NEMOTRON)
        assert attention_backend(model, args, rules_for(None)[0], "bfloat16") == (name, block, FREE_LAYOUTS)
        for other in {8, 9, 10, 12} - set(CAPABILITIES.get(name, (8, 9, 10, 12))):
            args = EngineArgs(attention_backend=name, gpu_capability=f"{other}.0")
            with pytest.raises(Refusal, match=f"{name} runs on compute capability"):
                attention_backend(model, args, rules_for(None)[0], "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "backend", "key", "value", "size"),
    [
        ("int8_per_token_head", "TRITON_ATTN", 128, 64, 128 + 64 + 8),
        ("fp8_per_token_head", "TRITON_ATTN", 128, 64, 128 + 64 + 8),
        ("int4_per_token_head", "TRITON_ATTN", 128, 64, 64 + 32 + 8),
        ("nvfp4", "FLASHINFER", 128, 128, 2 * (64 + 8)),
        ("nvfp4_4over6", "FLASHINFER", 64, 64, 2 * (32 + 4)),
        ("turboquant_k8v4", "TURBOQUANT", 128, 128, 128 + 64 + 4),
        ("turboquant_4bit_nc", "TURBOQUANT", 128, 128, 64 + 2 + 64 + 4),
        ("turboquant_k3v4_nc", "TURBOQUANT", 128, 128, 48 + 2 + 64 + 4),
        ("turboquant_3bit_nc", "TURBOQUANT", 128, 128, 48 + 2 + 48 + 4),
        ("turboquant_3bit_nc", "TURBOQUANT", 64, 64, 24 + 2 + 24 + 4),
        ("turboquant_3bit_nc", "TURBOQUANT", 80, 64, 30 + 2 + 24 + 4),
        ("turboquant_3bit_nc", "TURBOQUANT", 72, 64, 27 + 2 + 24 + 4 + 1),
        ("turboquant_k3v4_nc", "TURBOQUANT", 65, 66, 25 + 2 + 33 + 4),
    ],
)
def test_a_packed_format_has_a_backend_and_bytes_of_its_own(
    dtype: str, backend: str, key: int, value: int, size: int
) -> None:
    """Values of 8, 4 or 3 bits, a scale each of 4 B, one of a byte for 16, or 2 and 4 beside; an even number in all."""
    model = load_model(NEMOTRON)._replace(attention=GroupedQueryKV(4, key, value))
    args = EngineArgs(kv_cache_dtype=dtype, gpu_capability="10.0")
    found = present(attention_backend(model, args, rules_for(None)[0], "bfloat16"))
    layouts = ("LBHNC", "BLHNC") if backend == "FLASHINFER" else FREE_LAYOUTS
    assert found == (backend, 16, layouts)
    assert kv_bytes_per_token(model, args, "bfloat16") == 4 * size
    assert set(PACKED) == PACKED_ONES


PACKED_ONES = {
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "nvfp4_4over6",
    "turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc",
}  # fmt: skip


@pytest.mark.parametrize("dtype", sorted(PACKED_ONES))
@pytest.mark.parametrize("capability", ["9.0", "10.0", "10.3", "12.0"])
def test_packed_formats_are_for_heads_and_those_of_nvidia_for_its_kernels(dtype: str, capability: str) -> None:
    """Latent rows are never packed, nvfp4 says so before there is a model; nvfp4 needs 10.x until 0.32, and with
    heads of 64 after.
    """
    args = EngineArgs(kv_cache_dtype=dtype, gpu_capability=capability)
    with pytest.raises(Refusal) as caught:
        attention_backend(load_model(KIMI), args, rules_for(None)[0], "bfloat16")
    stage = "create_engine_config" if dtype.startswith("nvfp4") else "initialize_model"
    assert (caught.value.stage, caught.value.rule) == (stage, "HC047")
    assert caught.value.message.endswith("the latent rows of MLA are not packed")
    if dtype.startswith("nvfp4") and not capability.startswith("10."):
        rules = rules_for("0.31.0" if dtype == "nvfp4" else None)[0]
        with pytest.raises(Refusal, match=r"(?m)its kernels need compute capability 10\.x$"):
            attention_backend(load_model(NEMOTRON), args, rules, "bfloat16")
        with pytest.raises(Refusal, match=r"(?m)its kernels need compute capability 10\.x$"):
            attention_backend(load_model("lfm2-1.2b"), args, rules_for(None)[0], "bfloat16")
    else:
        assert attention_backend(load_model(NEMOTRON), args, rules_for(None)[0], "bfloat16") is not None


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("auto", 2), ("float16", 2), ("bfloat16", 2), ("fp8", 1), ("fp8_e4m3", 1), ("fp8_e5m2", 1), ("fp8_inc", 1)],
)
def test_bytes_of_an_element(dtype: str, size: int) -> None:
    """auto is the model's dtype."""
    assert kv_element_bytes(EngineArgs(kv_cache_dtype=dtype), 2) == size
    assert kv_element_bytes(EngineArgs(), 4) == 4


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("ling-2.6-flash", ["BAILING_LINEAR_ATTN", "FLASH_ATTN_MLA"]),
        ("ling-3.0-flash", ["FLASH_ATTN_MLA", "GDN_ATTN"]),
        (NEMOTRON, ["FLASH_ATTN", "MAMBA2_ATTN"]),
        (KIMI, ["FLASH_ATTN_MLA", "GDN_ATTN"]),
        ("kimi-k3", ["FLASH_ATTN_MLA", "KIMI_K3_KDA"]),
        ("glm-5.3-flash", ["DEEPSEEK_V32_INDEXER", "FLASHINFER_MLA_SPARSE_SM90", "GDN_ATTN", "KPOOL_TAIL"]),
        ("inkling", ["FLASH_ATTN", "INKLING_SCONV_SWA"]),
        ("jamba-1.5-mini", ["FLASH_ATTN", "MAMBA1_ATTN"]),
        ("lfm2-1.2b", ["FLASH_ATTN", "SHORT_CONV_ATTN"]),
        ("llama-3-8b", ["FLASH_ATTN"]),
    ],
)
def test_backends_are_listed_by_name(model: str, names: list[str]) -> None:
    """Those of attention and of states, sorted; Bailing's linear attention has a name of its own, its KDA not."""
    assert prepare(load_model(model), EngineArgs()).settled["attention_backends"] == names


@pytest.mark.parametrize(("block", "name"), [(None, "FLASHINFER_MLA"), (64, "FLASHINFER_MLA"), (48, "TRITON_MLA")])
def test_a_block_that_one_backend_does_not_read_gets_another(block: int | None, name: str) -> None:
    """Latent rows on compute capability 10.x: FlashInfer's kernels take multiples of 32, Triton's of 16."""
    args = EngineArgs(block_size=block, gpu_capability="10.0", tensor_parallel_size=4)
    assert name in prepare(load_model(KIMI), args).settled["attention_backends"]


@pytest.mark.parametrize("model", ["falcon-h1-34b", "zamba2-7b", KIMI])
def test_turboquant_wants_layers_of_plain_attention(model: str) -> None:
    """Layers that hold a state as well are not counted, nor latent rows."""
    with pytest.raises(Refusal, match=r"turboquant_k8v4 finds no layer of plain attention alone") as caught:
        prepare(load_model(model), EngineArgs(kv_cache_dtype="turboquant_k8v4"))
    assert caught.value.stage == "create_engine_config"
    assert prepare(load_model("qwen3-next-80b-a3b"), EngineArgs(kv_cache_dtype="turboquant_k8v4")).kv_bytes


@pytest.mark.parametrize("model", [NEMOTRON, KIMI])
def test_no_gpu_reads_the_kv_format_of_another_maker(model: str) -> None:
    with pytest.raises(Refusal, match=r"fp8_inc does not start here: no backend on GPUs reads it") as caught:
        prepare(load_model(model), EngineArgs(kv_cache_dtype="fp8_inc"))
    assert (caught.value.stage, str(caught.value.fix)) == ("initialize_model", "write --kv-cache-dtype fp8")


@pytest.mark.parametrize(
    ("model", "connector", "layout"),
    [
        (NEMOTRON, "OffloadingConnector", "LBHNC"),
        (NEMOTRON, "NixlConnector", "LBHNC"),
        (NEMOTRON, "SimpleCPUOffloadConnector", "LBNHC"),
        (KIMI, "NixlConnector", "LBNHC"),
        (KIMI, "OffloadingConnector", "LBHNC"),
        ("mamba-2.8b", "OffloadingConnector", "LBHNC"),
        (NEMOTRON, "HiSparseConnector", "BLHNC"),
    ],
)
def test_a_connector_asks_for_a_layout(model: str, connector: str, layout: str) -> None:
    """From 0.29 on, where nobody names one; those that move heads ask for none where rows are latent."""
    args = EngineArgs(kv_transfer_config={"kv_connector": connector, "kv_role": "kv_both"}, max_model_len=4096)
    assert prepare(load_model(model), args).layout == layout
    assert prepare(load_model(model), replace(args, env={"VLLM_KV_CACHE_LAYOUT": "LBNHC"})).layout == "LBNHC"
    before = replace(args, engine_version="0.28.0")
    if connector not in ("HiSparseConnector",):
        assert prepare(load_model(model), before).layout == "LBNHC"


@pytest.mark.parametrize("release", ["0.28.0", "0.29.0"])
def test_a_layout_that_cannot_be_is_ignored_before_0_29(release: str) -> None:
    args, rules = EngineArgs(env={"VLLM_KV_CACHE_LAYOUT": "BHLNC"}), rules_for(release)[0]
    backend = attention_backend(load_model(NEMOTRON), args, rules, "bfloat16")
    if release == "0.28.0":
        assert resolve_layout(args, rules, backend) == "LBNHC"
    else:
        with pytest.raises(Refusal):
            resolve_layout(args, rules, backend)


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "12.0", "12.1"])
@pytest.mark.parametrize("key", [96, 128])
@pytest.mark.parametrize("asked", [None, "flashinfer", "triton"])
def test_gdn_exports_states_where_flashinfer_prefills(capability: str, key: int, asked: str | None) -> None:
    """Hopper with any key width, 10.x and 12.x with 128: every 64 tokens."""
    model = load_model("qwen3-next-80b-a3b")
    model = model._replace(state=replace(cast(GatedDeltaNet, model.state), k_head_dim=key))
    args = EngineArgs(gpu_capability=capability, gdn_prefill_backend=asked)
    runs = capability == "9.0" or (capability in ("10.0", "12.0", "12.1") and key == 128)
    expected = 64 if runs and asked != "triton" else None
    assert checkpoint_grid(model, args, CLASSES[model.architecture], rules_for(None)[0]) == expected


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0", "12.0"])
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("asked", [None, "flashkda", "triton"])
def test_kda_exports_states_where_flashkda_prefills(capability: str, head: int, asked: str | None) -> None:
    """9.x, 10.x and 12.x with heads of 128: every 16 tokens; not for a class without a bounded gate."""
    model = load_model("kimi-k3")
    model = model._replace(state=replace(cast(KimiDelta, model.state), head_dim=head))
    args, rules = EngineArgs(gpu_capability=capability, kda_prefill_backend=asked), rules_for(None)[0]
    expected = 16 if capability != "8.0" and head == 128 and asked != "triton" else None
    assert checkpoint_grid(model, args, CLASSES[model.architecture], rules) == expected
    assert checkpoint_grid(load_model(KIMI), args, CLASSES["KimiLinearForCausalLM"], rules) is None
    assert checkpoint_grid(model, replace(args, dtype="float16"), CLASSES[model.architecture], rules) is None


@pytest.mark.parametrize(
    ("name", "dtype", "capability"),
    [
        ("FLASH_ATTN", "turboquant_k8v4", "9.0"),
        ("FLASHINFER", "turboquant_k8v4", "9.0"),
        ("FLASH_ATTN", "int8_per_token_head", "9.0"),
        ("FLASH_ATTN", "fp8_e5m2", "9.0"),
        ("FLASH_ATTN", "fp8", "8.0"),
        ("FLASH_ATTN_MLA", "fp8", "9.0"),
    ],
)
def test_a_backend_that_is_asked_for_reads_the_kv_format(name: str, dtype: str, capability: str) -> None:
    args = EngineArgs(attention_backend=name, kv_cache_dtype=dtype, gpu_capability=capability)
    with pytest.raises(Refusal, match=f"{name} does not read --kv-cache-dtype {dtype}") as caught:
        attention_backend(load_model(KIMI if name.endswith("MLA") else NEMOTRON), args, rules_for(None)[0], "bfloat16")
    assert (caught.value.stage, caught.value.rule) == ("initialize_model", "HC047")


@pytest.mark.parametrize(
    ("version", "gpu", "name"),
    [
        ("0.20.2", "9.0", "FLASH_ATTN"),
        ("0.20.2", "10.0", ""),
        ("0.21.0", "9.0", "FLASH_ATTN"),
        ("0.21.0", "8.9", "FLASHINFER"),
        ("0.22.1", "9.0", "FLASHINFER"),
        ("0.25.0", "9.0", ""),
        ("0.25.0", "10.0", "FLASHINFER"),
        ("0.32.0", "9.0", "FLASHINFER"),
    ],
)
def test_who_takes_nvfp4(version: str, gpu: str, name: str) -> None:
    """What supports_kv_cache_dtype of the release says; taken is not read, which HC047 says."""
    args = EngineArgs(kv_cache_dtype="nvfp4", engine_version=version, gpu_capability=gpu)
    if name:
        assert name in prepare(load_model(NEMOTRON), args).settled["attention_backends"]
        return
    with pytest.raises(Refusal, match="nvfp4 does not start here"):
        prepare(load_model(NEMOTRON), args)


def test_a_least_block_is_settled_before_a_backend_sees_it() -> None:
    """A hybrid's --block-size 8 is no block of a kernel, and only the least up to 0.19."""
    model = load_model("olmo-hybrid-7b")
    given: dict[str, Any] = {"block_size": 8, "max_model_len": 4096}
    assert prepare(model, EngineArgs(engine_version="0.19.0", **given)).pages.block % 16 == 0
    with pytest.raises(Refusal, match="takes no block of 8 tokens"):
        prepare(model, EngineArgs(engine_version="0.20.0", **given))
