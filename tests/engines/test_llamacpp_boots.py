"""A plan against what a real llama-server prints: nineteen kinds of tiny models, each booted on the CPU in 3 ways."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
from llamacpp_server import GGML_TYPES, TINY, boot, write_tiny

from hybridcalc import llamacpp, load_model
from hybridcalc.architecture.gguf import read_header
from hybridcalc.bootlog import Value
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan
from hybridcalc.engines.llamacpp.memory import compute_buffer
from hybridcalc.units import MIB

SETTINGS: dict[str, dict[str, Any]] = {
    "streams": {"n_ctx": 16384, "n_seq_max": 16},
    "unified-q8_0": {"n_ctx": 4000, "n_seq_max": 8, "kv_unified": True, "n_ubatch": 128, "type_k": "q8_0",
                     "type_v": "q8_0"},
    "no-flash": {"n_ctx": 10000, "n_seq_max": 3, "flash_attn_type": 0, "type_k": "q4_0"},
}  # fmt: skip
REASONS = {
    "HC200": r"model does not support different K \((\w+)\) and V \((\w+)\) cache types",
    "HC203": r"(K) cache type (\w+) with block size (\d+) does not divide n_embd_head_k=(\d+)",
}
"""Rule of a refusal -> what the engine says of it; what it names, the plan names too."""
REFUSED = {
    "unified-q8_0": dict.fromkeys(
        ("bailingmoe3", "jamba", "kimi-k3", "kimi-linear", "lfm2", "lfm2moe", "llama"), "HC203"
    ),
    "no-flash": dict.fromkeys(("bailingmoe3", "glm5-next", "kimi-k3", "kimi-linear"), "HC200"),
}
"""What does not start, 11 of 57: settings -> kind -> rule."""
PARAMETERS = {"n_seq_max": "n_parallel", "type_k": "cache_type_k", "type_v": "cache_type_v"}


def served(path: Path, settings: dict[str, Any]) -> tuple[bool, str]:
    """The log of a server with the settings of a context, under the names that the wheel has for them."""
    asked = {PARAMETERS.get(name, name): GGML_TYPES.get(value, value) for name, value in settings.items()}
    return boot(path, **asked)


def printed(log: str, kind: str) -> list[float]:
    """Sizes of the buffers of a kind, MiB."""
    return [float(size) for size in re.findall(rf" {kind} buffer size = +([\d.]+) MiB", log)]


def read_back(log: str) -> dict[str, list[tuple[tuple[str, Value], ...]]]:
    """What the grammar reads in a log of the lines that a plan predicts: figures by kind, in order."""
    (boot,) = assemble(scan(io.BytesIO(log.encode()))).boots
    return {
        kind: [tuple(pair for pair in record.figures if pair[0] != "device") for record in boot.of(kind)]
        for kind in ("kv_total", "state_total", "output_buffer")
    }


def lines(log: str, name: str) -> list[str]:
    return re.findall(rf"({name}: size = .*?)\r?$", log, re.MULTILINE)


@pytest.mark.needs("xllamacpp")
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("kind", TINY)
def test_every_printed_buffer_is_planned(kind: str, name: str, tmp_path: Path) -> None:
    """Both caches line by line, KV, state and output buffers to the digit, weights to the padding between tensors, a
    checkpoint of a real request; the compute buffer within its bounds. What is refused is refused for the same reason.
    """
    path, settings = write_tiny(kind, tmp_path / "tiny.gguf"), SETTINGS[name]
    model = load_model(str(path))
    starts, log = served(path, settings)
    rule = REFUSED.get(name, {}).get(kind)
    assert starts == (rule is None), log[-2000:]
    if rule is not None:
        with pytest.raises(llamacpp.Refusal) as caught:
            llamacpp.plan(model, llamacpp.ContextParams(**settings))
        (named,) = re.findall(REASONS[rule], log)
        assert caught.value.rule == rule
        assert set(named) <= set(re.findall(r"\w+", caught.value.message))
        return
    plan = llamacpp.plan(model, llamacpp.ContextParams(**settings))
    ready = plan.ready
    expected = plan.log_lines
    assert sorted(lines(log, "llama_kv_cache") + lines(log, "llama_memory_recurrent")) == sorted(
        line for line in expected if "size = " in line and "buffer" not in line
    )
    assert read_back("\n".join(expected)) == read_back(log)
    caches = [cache.k_bytes + cache.v_bytes for cache in ready.caches]
    for buffer, sizes in (("KV", caches), ("RS", [ready.state_bytes]), ("output", [plan.output_bytes])):
        assert printed(log, buffer) == [float(f"{size / MIB:.2f}") for size in sizes if size], buffer
    tensors = read_header(path).tensors
    held = max(tensor.offset + tensor.bytes for tensor in tensors) / MIB
    assert printed(log, "model") == [pytest.approx(held, abs=0.0051)]
    assert f"n_slots = {ready.sequences}, n_ctx_slot = {ready.slot_tokens}," in log
    (compute,), bounds = printed(log, "compute"), compute_buffer(ready)
    assert bounds is not None and bounds.low <= (compute + 0.005) * MIB and (compute - 0.005) * MIB <= bounds.high
    checkpoints = set(re.findall(r"created context checkpoint .* size = ([\d.]+) MiB", log))
    assert checkpoints == ({f"{ready.checkpoint_bytes / MIB:.3f}"} if model.state is not None else set())
