"""Published launch recipes of hybrids beside what they hold: docs/recipes.md, and a test's points.

tests/data/recipes.tsv has one recipe a row: its launch line as far as it concerns memory, the GPU, weights on a rank
where they are stated, what its source measured, and the source. tok_s_gpu counts prompts and answers, as sources do.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc import plan
from hybridcalc.engines import ENGINES
from hybridcalc.errors import Refusal

DATA = Path(__file__).resolve().parent.parent / "tests" / "data" / "recipes.tsv"
LENGTH = 9216
"""Tokens of a request where the source measured none: 8,192 of prompt and 1,024 of answer, as the others have."""
INTRODUCTION = """# Published recipes, audited

<!-- written by tools/make_docs.py from tests/data/recipes.tsv -->

What the launch lines hold that engines' own guides publish for hybrid models, beside what these guides measured.
Predictions are those of `hybridcalc plan` with the line and the GPU, nothing fitted to the measurements; figures in
brackets are the ends of an estimate.

## SGLang's cookbook

High-throughput cells of [Qwen3.6]({cookbook}):
one GPU, no speculation, the default ratio 0.9, requests of 8,192 tokens of prompt and 1,024 of answer, 1,024 clients.
*Decoding* is the published output throughput times the time per token: requests that decode at once. A server holds
more, since some are in prefill; how many is not published. The last columns are the same card with the balanced
`--mamba-full-memory-ratio`, which moves memory from one pool to the other and changes no output.

| model | GPU | release | holds | binds | decoding | share | idle KV | balanced | holds then | more |
|---|---|---|---|---|---|---|---|---|---|---|
"""
BETWEEN = """
In every cell the state pool binds and {idle} of the KV idles; the balanced ratio holds {more} more requests. With
BF16 and FP8 weights the measured share lies between {low} and {high} of what is predicted; the 27B model in NVFP4
takes twice the time per token of FP8 and has a smaller share.

## vLLM's recipes

Lines as [vLLM's recipes]({recipes}) give them,
in vLLM {release}, for requests of 9,216 tokens. *Free* is what `--gpu-memory-utilization` leaves of a GPU to nobody;
*sets* the first setting that helps and changes neither output nor memory.

| line | GPU | holds | binds | free | sets |
|---|---|---|---|---|---|
"""
AFTER = """
One recipe gives two lines of the same model: the guide's, which is refused, and that of its table of variants, which
limits the sequences to 512 and starts.

### Measured

Pools that the recipes quote, and requests that decoded at once, with the weights that they state and the rules of
their builds.

| line | release | GPU | figure | measured | predicted |
|---|---|---|---|---|---|
"""
OPEN = """
All measured figures lie within the predicted ones. What they rest on is not all written beside them:

- The pools of Qwen3.8-27B are of vLLM 0.26.1rc1.dev608, a build of main between 0.26 and 0.28: it caches prefixes of
  hybrids by default, 0.26 and 0.27 do not. No 0.26.1 was ever released, so `--engine-version 0.26.1` means such builds.
- A token figure is blocks / blocks of a request x length, so it says which KV dtype it was: 377,456 is 491/341 of
  262,144 and 445,875 is 580/341, with 341 blocks a request of bf16 KV; 920,517 is 611/174, with 174 of fp8 KV. The
  guide's line has `--kv-cache-dtype fp8` for all three. That is why one NVFP4 checkpoint seems to leave room for twice
  the KV.
- On one card, the guide's 135,926 tokens with fp8 KV and 76,458 with bf16 are 112/27 and 112/48 of 32,768: the same 112
  blocks, so both are without the vision tower. Its weights are not stated: twice those of a rank of two are planned.
- Nemotron 3 Nano ran vLLM 0.12, which caches no prefixes of hybrids by default, as 0.18 does. In 0.33.0 the line holds
  {cached} requests.
"""


class Cell(NamedTuple):
    """A recipe, its plan or why the engine refuses it, and what was measured: requests that decode at once."""

    recipe: dict[str, str]
    plan: Any
    decoding: float | None


def recipes() -> list[dict[str, str]]:
    """Every published line."""
    with DATA.open(encoding="utf-8", newline="") as table:
        return list(csv.DictReader(table, delimiter="\t"))


def cell(recipe: dict[str, str]) -> Cell:
    """A recipe planned for what its source measured."""
    tokens = (int(recipe["tokens_in"]), int(recipe["tokens_out"])) if recipe["tokens_in"] else (LENGTH, 0)
    given: dict[str, Any] = {"engine_version": recipe["release"]} if recipe["release"] else {}
    given |= {"weights": recipe["weights"]} if recipe["weights"] else {}
    try:
        planned: Any = plan(recipe["line"], gpu=recipe["gpu"], length=sum(tokens), **given)
    except Refusal as refusal:
        planned = refusal
    if not recipe["tpot_ms"]:
        return Cell(recipe, planned, None)
    answers = float(recipe["tok_s_gpu"]) * tokens[1] / sum(tokens)
    return Cell(recipe, planned, answers * float(recipe["tpot_ms"]) / 1000)


def cells(engine: str) -> list[Cell]:
    """Every recipe of an engine, planned."""
    return [cell(recipe) for recipe in recipes() if recipe["line"].startswith(engine)]


def page() -> str:
    """docs/recipes.md."""
    cookbook, others = cells("sglang"), cells("vllm")
    shares = [each.decoding / each.plan.requests for each in cookbook if each.decoding and "NVFP4" not in _model(each)]
    more = [_balanced(each) / each.plan.requests - 1 for each in cookbook]
    idle = [each.plan.idle_percent for each in cookbook]
    release = ENGINES["vllm"].newest
    lines = [
        INTRODUCTION.format(cookbook=cookbook[0].recipe["source"]),
        *map(_cookbook_row, cookbook),
        BETWEEN.format(
            idle=f"{min(idle):.0f} to {max(idle):.0f} %",
            more=f"{100 * min(more):.0f} to {100 * max(more):.0f} %",
            low=f"{min(shares):.2f}",
            high=f"{max(shares):.2f}",
            recipes="https://github.com/vllm-project/recipes",
            release=release,
        ),
        *(_recipe_row(each) for each in others if not measured(each)),
        AFTER,
        *_measured_rows(others),
        OPEN.format(cached=_cached(others)),
    ]
    return "".join(lines)


def _model(each: Cell) -> str:
    return next(word for word in each.recipe["line"].split() if "/" in word)


def _balanced(each: Cell) -> int:
    """Requests at r*: the fewer of what either pool then holds."""
    at = each.plan.balanced
    return int(min(at.state_requests, at.kv_requests))


def measured(each: Cell) -> bool:
    """Whether its source says what came of it."""
    return bool(each.recipe["tpot_ms"] or each.recipe["pool_tokens"])


def _cached(found: list[Cell]) -> str:
    """Requests of the recipe whose decoding was measured, in the newest release."""
    return f"{cell(next(each.recipe for each in found if each.decoding) | {'release': ''}).plan.requests:,}"


def _holds(each: Cell) -> str:
    low, high = each.plan.requests_at_ends
    ends = "" if low == high else f" ({low:,} to {high:,})"
    return f"{each.plan.requests:,}{ends}"


def _cookbook_row(each: Cell) -> str:
    assert each.decoding is not None
    held, at = each.plan.requests, _balanced(each)
    row = [_model(each), each.recipe["gpu"], each.plan.version, _holds(each), each.plan.binding, f"{each.decoding:.0f}"]
    row += [f"{each.decoding / held:.2f}", f"{each.plan.idle_percent:.0f} %", f"{float(each.plan.ratio):.2f}"]
    row += [f"{at:,}", f"{100 * (at / held - 1):.0f} %"]
    return f"| {' | '.join(row)} |\n"


def _recipe_row(each: Cell) -> str:
    if isinstance(each.plan, Refusal):
        row = [_line(each), each.recipe["gpu"], "does not start", each.plan.message, "", f"`{each.plan.fix}`"]
        return f"| {' | '.join(row)} |\n"
    safe = [made for made in each.plan.suggestions if made.risk == "none"]
    sets = f"`{safe[0].flags}` {safe[0].before:,} -> {safe[0].after:,}" if safe else "nothing"
    free = f"{dict(each.plan.rest.others)['headroom']:.1f} GiB"
    row = [_line(each), each.recipe["gpu"], _holds(each), each.plan.binding, free, sets]
    return f"| {' | '.join(row)} |\n"


def _measured_rows(others: list[Cell]) -> Iterator[str]:
    for each in others:
        if each.decoding is not None:
            figure, found, predicted = "requests decoding", f"{each.decoding:,.0f}", f"holds {_holds(each)}"
        elif each.recipe["pool_tokens"]:
            figure, found = "KV tokens", f"{int(each.recipe['pool_tokens']):,}"
            predicted = f"{each.plan.kv_cache_size_tokens:,} ({each.plan.low.tokens:,} to {each.plan.high.tokens:,})"
        else:
            continue
        row = [_line(each), each.recipe["release"], each.recipe["gpu"], figure, found, predicted]
        yield f"| {' | '.join(row)} |\n"


def _line(each: Cell) -> str:
    return f"[`{each.recipe['line']}`]({each.recipe['source']})"
