"""Context checkpoints: what a real server saves of random prompts, and where it goes on, against the closed form."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_server import boot, write_tiny

from hybridcalc import llamacpp, load_model
from hybridcalc.engines.llamacpp.saved import ContextCheckpoint, ServerSlot, served

PLACE = r"\(pos_min = -?\d+, pos_max = -?\d+, n_tokens ="
MARKS = re.compile(
    rf"created context checkpoint \d+ of \d+ {PLACE} (?P<made>\d+), size = (?P<size>[\d.]+)"
    r"|new prompt, n_ctx_slot = (?P<new>\d+)"
    rf"|restored context checkpoint {PLACE} \d+, n_past = (?P<restored>\d+)"
    r"|(?P<reset>forcing full prompt re-processing)"
)


def prompts_of(seed: int, count: int) -> list[list[int]]:
    """Prompts of random tokens, most of which begin as one before them does."""
    some, found = random.Random(seed), list[list[int]]()
    for _ in range(count):
        shared = some.choice(found) if found and some.random() < 0.8 else []
        cut = some.randint(0, len(shared)) if some.random() < 0.7 else len(shared)
        found.append([*shared[:cut], *(some.randint(2, 255) for _ in range(some.choice([1, 3, 40, 300, 900])))][:2500])
    return found


@pytest.mark.needs("xllamacpp")
@pytest.mark.parametrize(
    ("kind", "seed", "settings"),
    [
        ("qwen35", 1, {"n_batch": 2048, "n_ubatch": 512}),
        ("lfm2", 2, {"n_batch": 256, "n_ubatch": 64, "n_ctx_checkpoints": 4, "checkpoint_min_step": 128}),
        ("mamba2", 3, {"n_batch": 128, "n_ubatch": 128, "n_ctx_checkpoints": 2, "checkpoint_min_step": 64}),
    ],
)
def test_a_server_saves_and_goes_on_as_said(kind: str, seed: int, settings: dict[str, Any], tmp_path: Path) -> None:
    """Of 14 prompts: every checkpoint's place and size, and the token from which each prompt is computed."""
    path, prompts = write_tiny(kind, tmp_path / "tiny.gguf"), prompts_of(seed, 14)
    starts, log = boot(path, n_ctx=4096, n_parallel=1, cache_ram_mib=0, prompts=prompts, **settings)
    assert starts, log[-2000:]
    printed: list[tuple[int, list[int]]] = []
    sizes = set()
    for mark in MARKS.finditer(log):
        if mark["new"]:
            printed.append((-1, []))
        elif mark["made"]:
            printed[-1][1].append(int(mark["made"]))
            sizes.add(mark["size"])
        else:
            printed[-1] = (int(mark["restored"] or 0), printed[-1][1])
    ready = llamacpp.plan(load_model(str(path)), llamacpp.ContextParams(n_ctx=4096)).ready
    assert sizes == {f"{ready.checkpoint_bytes / 2**20:.3f}"}
    slot, before = ServerSlot(), list[int]()
    for prompt, (restored, made) in zip(prompts, printed, strict=True):
        agreed = next((at for at, (one, other) in enumerate(zip(prompt, before, strict=False)) if one != other), None)
        agreed = min(len(prompt), len(before)) if agreed is None else agreed
        start = slot.resumed(agreed, len(prompt))
        slot, expected = served(
            slot,
            len(prompt),
            start,
            batch=settings["n_batch"],
            ubatch=settings["n_ubatch"],
            limit=settings.get("n_ctx_checkpoints", 32),
            min_step=settings.get("checkpoint_min_step", 8192),
        )
        assert list(expected) == made
        assert restored in (start, -1)
        before = prompt


def test_a_long_prompt_leaves_two() -> None:
    """At N - 4 - ubatch and at N - 4; a short one its tail alone; nothing where none are kept."""
    usual = {"batch": 2048, "ubatch": 512, "limit": 32}
    assert served(ServerSlot(), 10_000, 0, **usual)[1] == (9_484, 9_996)
    assert served(ServerSlot(), 300, 0, **usual)[1] == (296,)
    assert not served(ServerSlot(), 3, 0, **usual)[1]
    assert not served(ServerSlot(), 10_000, 0, batch=2048, ubatch=512, limit=0)[1]


@pytest.mark.parametrize(("answer", "held"), [(0, 300), (1, 300), (2, 301), (100, 399)])
def test_a_slot_holds_its_prompt_and_the_answer_but_its_last_token(answer: int, held: int) -> None:
    """The next prompt goes on with all of it where it is longer, and from a checkpoint where it is not."""
    slot, _ = served(ServerSlot(), 300, 0, batch=2048, ubatch=512, limit=32, answer=answer)
    assert (slot.held, slot.prompts) == (held, 1)
    assert (slot.resumed(held, held + 1), slot.resumed(held, held), slot.resumed(295, 400)) == (held, 296, 0)


@pytest.mark.parametrize(("apart", "kept"), [(8192, (100, 20_000)), (8193, (100, 8293, 20_000))])
def test_a_full_slot_gives_up_what_lies_within_8192_tokens_of_an_earlier_one(apart: int, kept: tuple[int, ...]) -> None:
    """--checkpoint-min-step of b11434, by default; room for the new one is made of other prompts' alone."""
    assert llamacpp.ContextParams().checkpoint_min_step == 8192
    slot = ServerSlot(tuple(ContextCheckpoint(at, n) for n, at in enumerate((100, 100 + apart, 20_000))), 3, 20_100)
    after, made = served(slot, 20_101, 20_100, batch=2048, ubatch=512, limit=4)
    assert made == (20_100,)
    assert tuple(each.tokens for each in after.checkpoints) == (*kept, 20_100)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 5000)), max_size=12), st.integers(1, 6))
def test_a_slot_keeps_no_more_than_its_limit(prompts: list[tuple[int, int]], limit: int) -> None:
    """Places ascend, none lies beyond the prompt, and where it goes on is one of them, or the start."""
    slot = ServerSlot()
    for prompt, agreed in prompts:
        start = slot.resumed(min(agreed, prompt), prompt)
        assert start in (0, slot.held, *(each.tokens for each in slot.checkpoints)) and start < prompt
        slot, made = served(slot, prompt, start, batch=512, ubatch=128, limit=limit, min_step=256)
        places = [each.tokens for each in slot.checkpoints]
        assert places == sorted(set(places)) and len(places) <= limit
        assert all(start <= each < prompt for each in made)
