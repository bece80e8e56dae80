"""How long must a decode step take at least?

    max(bytes / bandwidth, FLOPs / peak), bytes = weights + experts + B KV(T) + (1 + writes) B state
    experts: E (1 - (1 - k / E)^B) of E under even routing, k at the least

B requests of T tokens. Weights are those that a token passes through: neither the table of embeddings nor what ranks
only hold (vision, draft layers). Ranks share them evenly: what an engine keeps whole on each of them makes a step
longer, never shorter. A step reads each state once and writes it once, or with drafts once for each position;
ReplaySSM writes it only now and then, which counts as never. Of a sparse attention layer only the tokens that a query
selects count. Pipeline stages follow each other, so that a token waits for all layers, and each stage has a batch of
its own: as many requests in all are so many fewer in a batch. Bytes are of one rank. Leaves out: launches of kernels,
all-reduce, sampling, activations.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture, GroupedQueryKV, LatentKV
from hybridcalc.architecture.tensors import DRAFT, FIRST, HOST, VISION
from hybridcalc.architecture.weights import config_numbers, expert_choice, parameters, schemes
from hybridcalc.engines.checkpoints import checkpoint_of
from hybridcalc.engines.weights import layouts
from hybridcalc.errors import InputError, ShardingError
from hybridcalc.hardware import Rates, rates_of
from hybridcalc.speed.floor import EXPERTS, HEAD, KV, SCAN_FLOPS, STATE, TIMES, WEIGHTS, Floor, Part
from hybridcalc.units import DTYPE_BYTES, parse_tokens

if TYPE_CHECKING:
    from hybridcalc.architecture.weights import Parameters
    from hybridcalc.engines.engine import Engine
    from hybridcalc.formulas import KvCurve


class Read(NamedTuple):
    """Weights that a token passes through, all experts counted: bytes of one rank by kind; parameters by kind, for one
    of the ranks that share the attention of a worker, and as one rank has them (``held``); ``workers`` whose tokens
    meet in the same experts.
    """

    bytes: Mapping[str, float]
    parameters: Mapping[str, float]
    held: Mapping[str, float]
    bits: int
    experts: int
    chosen: int | None
    workers: int

    def touched(self, tokens: int) -> float:
        """The share of all experts that some of ``tokens`` choose, routed evenly; the least where nobody says how many
        a token takes.
        """
        if not self.experts:
            return 0.0
        chosen = self.chosen or 1
        return 1 - (1 - min(1.0, chosen / self.experts)) ** tokens


def weights_read(served: "Engine", model: Architecture, args: Any) -> Read:
    """The weights that a step reads. Raises NotModelled and ConfigError where nothing is known of them, ShardingError.

    Of a checkpoint whose layout only its name tells, the least that it may take.
    """
    found = parameters(model)
    stored = checkpoint_of(model, args.quantization)

    def read(option: Any) -> Read:
        try:
            return _read(served, model, args, found, option)
        except ShardingError:
            if not stored.marked:
                raise
            from hybridcalc.architecture.quantization_names import without_blocks

            return _read(served, model, args, found, without_blocks(option))  # as its weights are counted

    reads = [read(option) for option in layouts(stored, found)]
    return min(reads, key=lambda each: sum(each.bytes.values()))


def _read(served: "Engine", model: Architecture, args: Any, found: "Parameters", quantization: Any) -> Read:
    widths = served.widths(model, args, found, quantization)
    dtype, attention = DTYPE_BYTES[model.model_dtype], widths.ranks.get("attention", 1)
    (sizes, counts, held), bits = (dict.fromkeys((WEIGHTS, HEAD, EXPERTS), 0.0) for _ in range(3)), 16
    for block, of_block in zip(found.blocks, schemes(found, quantization), strict=True):
        if block.place in (DRAFT, VISION, HOST) or (block.place == FIRST and not found.tied):
            continue
        for tensor, parts in zip(block.tensors, of_block, strict=True):
            kind = EXPERTS if tensor.experts else HEAD if tensor.over in ("head", "embedding") else WEIGHTS
            over = "head" if kind == HEAD else tensor.over
            ranks = widths.experts * widths.expert_cut if kind == EXPERTS else widths.ranks.get(over, 1)
            for scheme, layers in parts:
                times = (block.copies if layers is None else len(layers)) / ranks
                if scheme is None:
                    sizes[kind] += times * tensor.parameters * (DTYPE_BYTES[tensor.dtype] if tensor.dtype else dtype)
                else:
                    rows = [part.size for part in tensor.rows]
                    sizes[kind] += times * (tensor.experts or 1) * scheme.stored(rows, tensor.columns)
                    bits = min(bits, scheme.bits)
                counts[kind] += times * tensor.parameters * ranks / attention
                held[kind] += times * tensor.parameters
    experts, chosen = expert_choice(model)
    workers = max(1, widths.experts * widths.expert_cut // attention)
    return Read(sizes, counts, held, bits, experts if counts[EXPERTS] else 0, chosen, workers)


def step_of(
    served: "Engine",
    model: Architecture,
    args: Any,
    rates: Rates,
    *,
    batch: int,
    context: int,
    drafts: int | None = None,
) -> Floor:
    """The floor of one decode step of ``batch`` requests of ``context`` tokens on a whole server.

    ``drafts``: positions that a step verifies beside its own, else as the arguments say. Raises NotModelled and
    ConfigError where nothing is known of the weights, InputError for a GPU without rates.
    """
    if batch < 1 or context < 0:
        raise InputError(f"a step of {batch} requests of {context} tokens", fix="at least one request")
    read, stream = weights_read(served, model, args), served.stream(model, args)
    positions = stream.positions if drafts is None else 1 + drafts
    writes = positions if stream.writes else 0
    own = -(-batch // (served.workers(args) * served.pipeline(args)))
    of_worker = own * positions
    tokens = min(of_worker * read.workers, batch * positions)
    touched = read.touched(tokens)
    share = (read.chosen or 1) / read.experts if read.experts else 0.0
    attended, kv_flops, notes = attention_of(model, stream.curve, context)
    ranks = max(1, served.attention_ranks(args))
    cost = [
        Part(
            WEIGHTS,
            round(read.bytes[WEIGHTS]),
            round(2 * read.parameters[WEIGHTS] * of_worker),
            "every weight of a token's way but experts and head, / ranks",
        ),
        Part(
            EXPERTS,
            round(read.bytes[EXPERTS] * touched),
            round(2 * read.parameters[EXPERTS] * share * of_worker),
            f"{touched:.1%} of {read.experts:,} experts: {read.chosen or 'at least 1'} a token, {tokens:,} tokens",
        ),
        Part(
            HEAD, round(read.bytes[HEAD]), round(2 * read.parameters[HEAD] * of_worker), "the matrix of logits, / ranks"
        ),
        Part(
            KV,
            own * attended // stream.sharing,
            round(of_worker * kv_flops / ranks),
            f"{own:,} x KV of {context:,} tokens",
        ),
        Part(
            STATE,
            own * (1 + writes) * stream.state_bytes,
            SCAN_FLOPS * of_worker * stream.state_elements,
            f"{own:,} x {stream.state_bytes:,} B, read once, written {TIMES.get(writes, f'{writes} times')}",
        ),
    ]
    if read.experts and read.chosen is None:
        notes += ("how many experts a token takes is not known: one is counted",)
    kept = tuple(part for part in cost if part.bytes or part.flops)
    return Floor(rates, kept, rates.peak(read.bits), batch, notes, positions)


def attention_of(model: Architecture, curve: "KvCurve", context: int) -> tuple[int, float, tuple[str, ...]]:
    """Bytes of KV that one query position reads, and its FLOPs on all ranks together."""
    attention = model.attention
    flops = model.attention_layers * pair_flops(model, attention) * context
    windowed = model.window_attention or attention
    flops += model.window_layers * pair_flops(model, windowed) * min(context, model.window or context)
    selected = selected_tokens(attention)
    if selected is None:
        return curve.at(context), flops, ()
    share = min(context, selected) / context if context else 0
    note = f"sparse attention: {selected:,} tokens a query" if selected else "sparse attention: its KV is not counted"
    return round(curve.at(context) * share), flops * share, (note,)


def pair_flops(model: Architecture, attention: Any, *, whole: bool = False) -> int:
    """FLOPs of one layer for one query and one key: every head's QK and AV. ``whole``: MLA before it is absorbed."""
    heads = model.num_attention_heads or 0
    if isinstance(attention, GroupedQueryKV):
        return 2 * heads * (attention.head_dim + attention.v_head_dim)
    if isinstance(attention, LatentKV):
        if whole:
            own, values = config_numbers(model, ("qk_nope_head_dim",), ("v_head_dim",))
            return 2 * heads * ((own or 0) + attention.qk_rope_head_dim + (values or 0))
        return 2 * heads * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
    return 0


def selected_tokens(attention: Any) -> int | None:
    """Tokens that a query of sparse attention selects, 0 where nobody says how many; None where it sees all."""
    if isinstance(attention, GroupedQueryKV) and attention.compressed is not None:
        return attention.compressed.budget
    return 0 if isinstance(attention, LatentKV) and attention.indexer is not None else None


def decode_step(
    model: str | Architecture,
    *,
    gpu: str,
    batch: int = 1,
    context: int | str = 0,
    engine: str | None = None,
    drafts: int | None = None,
    **arguments: Any,
) -> Floor:
    """The floor of one decode step of ``batch`` requests of ``context`` tokens, on GPUs of one kind.

    ``arguments``: ``tp_size``, ``pp_size``, ``ep_size``, ``quantization``, ``kv_cache_dtype`` or others under the
    engine's own names. ``drafts``: tokens that a step verifies beside its own, where the arguments do not say. Returns
    a Floor: ``floor_ms``, ``band_ms``, ``parts`` (name -> bytes of one rank), ``token_ms(accepted)``. Raises InputError
    for what cannot be read, NotModelled where nothing is known of the weights, and what the engine refuses.
    """
    from hybridcalc.engines.ask import arguments_of

    served, found, args = arguments_of(model, engine, arguments)
    tokens = parse_tokens(context) if isinstance(context, str) else context
    return step_of(served, found, args, rates_of(gpu), batch=batch, context=tokens, drafts=drafts)


class Moved(NamedTuple):
    """What one rank sends to move a request elsewhere, and the least time over a link of so many GB/s."""

    state_bytes: int
    kv_bytes: int
    link_gbs: float

    @property
    def floor_ms(self) -> float:
        """All ranks send at once, each what it keeps."""
        return (self.state_bytes + self.kv_bytes) / self.link_gbs / 1e6


def move(
    model: str | Architecture,
    *,
    gpu: str,
    context: int | str,
    link: str | float = "nvlink",
    engine: str | None = None,
    **arguments: Any,
) -> Moved:
    """The floor of moving a request of ``context`` tokens to another server, its state and its KV.

    ``link``: nvlink or pcie as the GPU's preset has them, or GB/s one way of each rank. Pipeline stages send their
    layers at once. Other arguments and errors as of `decode_step`.
    """
    from hybridcalc.engines.ask import arguments_of

    served, found, args = arguments_of(model, engine, arguments)
    tokens = parse_tokens(context) if isinstance(context, str) else context
    gbs = rates_of(gpu).link_gbs(link) if isinstance(link, str) else link
    if gbs <= 0 or tokens < 0:
        raise InputError(f"a link of {gbs:g} GB/s for {tokens} tokens", fix="more than nothing")
    stream, stages = served.stream(found, args), served.pipeline(args)
    return Moved(stream.state_bytes // stages, stream.curve.at(tokens) // stream.sharing // stages, gbs)
