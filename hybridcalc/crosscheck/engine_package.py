"""Does the engine installed beside hybridcalc still follow the rules? Its own classes, asked for shapes and tensors.

SGLang: the state shapes of configs/mamba_utils.py at this rank count, and the tensors of a MambaPool of two slots made
on torch's meta device. vLLM: the shapes of MambaStateShapeCalculator. Each is held against what is allocated here, so
that an upgrade of the engine shows at once. What does not import is said and counts as no answer. Leaves out: model
classes, weights, and KV pools, which an engine builds from a model.
"""

import importlib
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from hybridcalc.architecture.families.family import rule_for
from hybridcalc.crosscheck.backend import torch
from hybridcalc.crosscheck.subject import Subject
from hybridcalc.crosscheck.tensors import Sizes
from hybridcalc.engines.sglang.states import state_ranks
from hybridcalc.errors import HybridcalcError, InputError

SMALL = Sizes(slots=2, rows=2, tokens=1, window_tokens=1, checkpoints=1)
"""Two slots and one request with its padding row: what a tensor of the engine has beyond that is its padding."""


class EngineRow(NamedTuple):
    """One shape or tensor: what the engine makes of it, and what is made of it here."""

    name: str
    engine: str
    here: str

    @property
    def ok(self) -> bool:
        """Whether they are the same."""
        return self.engine == self.here


class EngineComparison(NamedTuple):
    """The installed engine's version, and everything that was compared."""

    package: str
    version: str
    rows: tuple[EngineRow, ...]

    @property
    def ok(self) -> bool:
        """Whether all of it is the same."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        rows = [{**row._asdict(), "ok": row.ok} for row in self.rows]
        return {"package": self.package, "version": self.version, "rows": rows, "ok": self.ok}


def compare_with_engine(subject: Subject) -> EngineComparison:
    """Hold the installed engine against ``subject``. Raises InputError when there is none or it does not import."""
    package = subject.engine
    try:
        installed = version(package)
    except PackageNotFoundError:
        raise InputError(
            f"--engine-package: no {package} is installed beside hybridcalc",
            fix="run it in the environment that serves: pip install 'hybridcalc[torch]' there, then verify",
        ) from None
    what, compare = f"{package} {installed}", _sglang_rows if package == "sglang" else _vllm_rows
    try:
        return EngineComparison(package, installed, tuple(compare(subject, what)))
    except HybridcalcError:
        raise
    except Exception as error:  # a class that moved, a signature that changed: whatever the engine raises
        said = " ".join(str(error).split())[:160]
        raise InputError(
            f"--engine-package: {what} no longer answers: {type(error).__name__}: {said}",
            fix="its classes have changed; this comparison knows SGLang 0.5.23 and vLLM 0.33.0",
        ) from error


def engine_module(name: str, what: str) -> Any:
    """A module of the engine. Raises InputError with the reason when it does not import."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except Exception as error:  # an engine may fail to import in any way
        said = " ".join(str(error).split())[:160]
        raise InputError(
            f"--engine-package: {what} does not import: {name}: {type(error).__name__}: {said}",
            fix="run it where the server runs, with all that the engine needs",
        ) from error


def _sglang_rows(subject: Subject, what: str) -> Iterator[EngineRow]:
    shapes = engine_module("sglang.srt.configs.mamba_utils", what)
    model, args = subject.model, subject.args
    ranks = state_ranks(model, args)
    made = rule_for(model.family, SGLANG_SHAPES, "the comparison with SGLang")(shapes, model.state, ranks)
    if made is None:
        return
    params, shape = made
    tensors = {tensor.name: tensor for tensor in subject.stages[0](SMALL)}
    conv, state = [tensors[name] for name in tensors if name.startswith("conv_state")], tensors["ssm_state"]
    yield EngineRow("conv shape", str([tuple(c) for c in shape.conv]), str([c.shape[2:] for c in conv]))
    yield EngineRow("temporal shape", str(tuple(shape.temporal)), str(state.shape[2:]))
    dtypes = shapes.Mamba2StateDType(conv=getattr(torch, conv[0].dtype), temporal=getattr(torch, state.dtype))
    layers = list(range(state.shape[0]))
    made_params = params(shape=shape, layers=layers, dtype=dtypes)
    slot = sum(tensor.shape_bytes for tensor in (*conv, state)) // (SMALL.slots + 1)
    yield EngineRow("bytes a slot", f"{made_params.mamba_cache_per_req:,}", f"{slot:,}")
    pool = engine_module("sglang.srt.mem_cache.memory_pool", what).MambaPool(
        size=SMALL.slots,
        spec_state_size=SMALL.rows - 1,
        cache_params=made_params,
        mamba_layer_ids=layers,
        device="meta",
        speculative_num_draft_tokens=args.most_draft_tokens or None,
        speculative_eagle_topk=args.speculative_eagle_topk,
        enable_linear_replayssm=args.enable_linear_replayssm,
        linear_replayssm_cache_len=args.linear_replayssm_cache_len,
        enable_linear_replayssm_spec=args.enable_linear_replayssm_spec,
    )
    yield from _pool_rows(pool.mamba_cache, tensors)


def _pool_rows(cache: Any, tensors: dict[str, Any]) -> Iterator[EngineRow]:
    """Storages of the engine's pool under this package's names."""
    made: dict[str, Any] = {"ssm_state": cache.temporal, "intermediate_ssm": getattr(cache, "intermediate_ssm", None)}
    for name, several in (
        ("conv_state", cache.conv),
        ("intermediate_conv", getattr(cache, "intermediate_conv_window", [])),
    ):
        many = len(several) > 1
        made |= {f"{name}[{i}]" if many else name: tensor for i, tensor in enumerate(several)}
    made |= {
        f"replayssm_{ring}": getattr(cache, f"replayssm_{ring}", None)
        for ring in ("d", "k", "g", "rawv", "rawk", "beta")
    }
    for name, tensor in made.items():
        ours = tensors.get(name)
        if tensor is not None or ours is not None:
            engine = "none" if tensor is None else f"{tensor.untyped_storage().nbytes():,} B"
            yield EngineRow(name, engine, "none" if ours is None else f"{ours.shape_bytes:,} B")


def _mamba2_shape(shapes: Any, ranks: int, *sizes: int) -> tuple[Any, Any]:
    names = ("intermediate_size", "n_groups", "num_heads", "head_dim", "state_size", "conv_kernel")
    made = shapes.Mamba2StateShape.create(tp_world_size=ranks, **dict(zip(names, sizes, strict=True)))
    return shapes.Mamba2CacheParams, made


SGLANG_SHAPES: dict[str, Callable[[Any, Any, int], tuple[Any, Any] | None]] = {
    "gdn": lambda shapes, state, ranks: _mamba2_shape(
        shapes,
        ranks,
        state.num_v_heads * state.v_head_dim,
        state.num_k_heads,
        state.num_v_heads,
        state.v_head_dim,
        state.k_head_dim,
        state.conv_kernel,
    ),
    "kda": lambda shapes, state, ranks: (
        shapes.KimiLinearCacheParams,
        shapes.KimiLinearStateShape.create(
            tp_world_size=ranks, num_heads=state.num_heads, head_dim=state.head_dim, conv_kernel_size=state.conv_kernel
        ),
    ),
    "mamba2": lambda shapes, state, ranks: _mamba2_shape(
        shapes,
        ranks,
        state.inner_size,
        state.n_groups,
        state.num_heads,
        state.head_dim,
        state.state_size,
        state.conv_kernel,
    ),
    "mamba1": lambda shapes, state, ranks: (
        shapes.Mamba2CacheParams,
        shapes.Mamba2StateShape.create_full_rank(
            tp_world_size=ranks,
            intermediate_size=state.inner_size,
            state_size=state.state_size,
            conv_kernel=state.conv_kernel,
        ),
    ),
    "lightning": lambda shapes, state, ranks: _mamba2_shape(
        shapes, ranks, 0, 0, state.num_heads, state.head_dim, state.head_dim, 1
    ),
    "shortconv": lambda shapes, state, ranks: None,
    "attention": lambda shapes, state, ranks: None,
}
"""Family -> the engine's parameter class and shape for (module, sizes, ranks); None where a model class makes them."""


def _vllm_rows(subject: Subject, what: str) -> Iterator[EngineRow]:
    from hybridcalc.engines.vllm.states import layer_state

    module = engine_module("vllm.model_executor.layers.mamba.mamba_utils", what)
    model, args = subject.model, subject.args
    shape = rule_for(model.family, VLLM_SHAPES, "the comparison with vLLM")
    tp, drafts = args.tensor_parallel_size, args.num_speculative_tokens
    made = shape(module.MambaStateShapeCalculator, model.state, tp, drafts)
    if made is not None:
        ours = [tensor.shape for tensor in layer_state(model, args)][: len(made)]
        yield EngineRow("state shapes", str([tuple(shape) for shape in made]), str(ours))


VLLM_SHAPES: dict[str, Callable[[Any, Any, int, int], Any]] = {
    "gdn": lambda made, state, tp, drafts: made.gated_delta_net_state_shape(
        tp, state.num_k_heads, state.num_v_heads, state.k_head_dim, state.v_head_dim, state.conv_kernel, drafts
    ),
    "kda": lambda made, state, tp, drafts: made.kda_state_shape(
        tp, state.num_heads, state.head_dim, conv_kernel_size=state.conv_kernel, num_spec=drafts
    ),
    "mamba2": lambda made, state, tp, drafts: made.mamba2_state_shape(
        tp_world_size=tp,
        intermediate_size=state.inner_size,
        n_groups=state.n_groups,
        num_heads=state.num_heads,
        head_dim=state.head_dim,
        state_size=state.state_size,
        conv_kernel=state.conv_kernel,
        num_spec=drafts,
    ),
    "mamba1": lambda made, state, tp, drafts: made.mamba1_state_shape(
        tp, state.inner_size, state.state_size, state.conv_kernel
    ),
    "lightning": lambda made, state, tp, drafts: made.linear_attention_state_shape(state.num_heads, tp, state.head_dim),
    "shortconv": lambda made, state, tp, drafts: (
        made.short_conv_state_shape(tp, state.streams[0].width, state.streams[0].rows + 1, drafts)
        if len(state.streams) == 1
        else None
    ),
    "attention": lambda made, state, tp, drafts: None,
}
"""Family -> the engine's shapes of a layer for (its calculator, sizes, ranks, drafts); None where it has no method."""
