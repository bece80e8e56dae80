"""Slots and the host cache: what a real server picks, reuses and saves of random prompts, against the simulation."""

import re
from pathlib import Path
from typing import Any

import pytest
from llamacpp_server import boot, write_tiny
from test_llamacpp_checkpoints import prompts_of

from hybridcalc import llamacpp, load_model
from hybridcalc.reuse.llamacpp import asked
from hybridcalc.reuse.server_slots import SlotCache

PICKED = re.compile(r"id +(\d+) \|.*selected slot by (?:LCP|LRU)")
STARTED = re.compile(r"task (\d+) \| cached n_tokens = (\d+)")
SAVED = re.compile(r"cache state: (\d+) prompts, ([\d.]+) MiB")


@pytest.mark.needs("xllamacpp")
@pytest.mark.parametrize(
    ("kind", "seed", "slots", "cache_ram", "unified"),
    [
        ("qwen35", 1, 3, 0, False),
        ("lfm2", 2, 2, 2, False),
        ("qwen35", 5, 2, 1, True),
        ("qwen35", 7, 3, 0, True),
        ("mamba2", 6, 3, -1, True),
    ],
)
def test_a_server_picks_and_reuses_as_simulated(
    kind: str, seed: int, slots: int, cache_ram: int, unified: bool, tmp_path: Path
) -> None:
    """Of 30 prompts to a real server: the slot of each, the tokens it does not compute, and what the host holds."""
    path, prompts = write_tiny(kind, tmp_path / "tiny.gguf"), prompts_of(seed, 30)
    context = 2560 if unified else 4096 * slots
    kept: dict[str, Any] = {"n_batch": 256, "n_ubatch": 64}
    starts, log = boot(
        path,
        prompts=prompts,
        n_ctx=context,
        n_parallel=slots,
        kv_unified=unified,
        cache_ram_mib=cache_ram,
        n_ctx_checkpoints=4,
        checkpoint_min_step=128,
        **kept,
    )
    assert starts, log[-2000:]
    first = dict[str, int]()
    for task, tokens in STARTED.findall(log):
        first.setdefault(task, int(tokens))
    args = llamacpp.ContextParams(n_ctx=context, kv_unified=unified, **kept)
    given = {
        "ctx_checkpoints": 4,
        "checkpoint_min_step": 128,
        "cache_ram": cache_ram,
        "slots": slots,
        "max_total_tokens": context,
        "running": 0,
        "host_slots": 0,
        "host_kv_tokens": None,
        "engine_version": None,
        "slot_prompt_similarity": None,
    }
    cache = asked(given, load_model(str(path)), args)[0].setup.cache()
    assert isinstance(cache, SlotCache)
    simulated = []
    for prompt in prompts:
        before = cache.number
        hit = cache.pass_through(tuple(prompt), tuple(range(1, len(prompt) + 1)), len(prompt))
        assert cache.number == before + 1
        simulated.append((next(reversed(cache.idle)), hit))
    slots_picked = [int(slot) for slot in PICKED.findall(log)]
    assert list(zip(slots_picked, first.values(), strict=True)) == simulated
    if cache_ram:
        number, mib = SAVED.findall(log)[-1]
        assert int(number) == len(cache.host.entries)
        assert cache.host.bytes / 2**20 == pytest.approx(float(mib), rel=0.03)
