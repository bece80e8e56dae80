"""``hybridcalc verify`` as text: whether every byte agrees, the tensors with alike ones together, and what does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any

from rich.console import Console

from hybridcalc.crosscheck.plan_figures import Stated
from hybridcalc.crosscheck.run import RankResult, Verified, VerifyAnswer
from hybridcalc.crosscheck.verification import Row, Shard, percent
from hybridcalc.errors import quoted
from hybridcalc.findings import Quantity, Step
from hybridcalc.output import terminal
from hybridcalc.units import format_bytes, short_dtype

MOST_PROBLEMS = 12
LINES, HEAD, LEAST = 12, 4, 2
"""Lines of a short answer, those of its verdict and its last one, and ranks or problems that it shows at most."""
POOL_NAMES = {
    "state": "states",
    "scratch": "draft states, rings",
    "kv": "KV",
    "blocks": "blocks",
    "other": "request table",
}


def print_answer(answer: VerifyAnswer, *, explain: bool = False, verbose: bool = False) -> None:
    """One server, with every tensor and every step where asked, or a line for each of many."""
    out = terminal.console()
    if answer.many:
        _print_many(out, answer)
        return
    _print_server(out, answer.servers[0], verbose=verbose)
    if explain:
        terminal.explanation(out, [step for shard in answer.servers[0].shards for step in _steps(shard)])


def _print_server(out: Console, server: Verified, *, verbose: bool) -> None:
    shards = server.shards
    _verdict(out, server)
    for number, shard in enumerate(shards if verbose else ()):
        if len(shards) > 1:
            if number:
                out.print()
            out.print(f"stage {shard.stage}")
        _print_tensors(out, shard)
    if verbose:
        out.print()
    figures, roles = _pools(server, shards[0])
    ranks = _rank_rows(server.ranks) if len(server.ranks) > 1 else []
    problems = _problems(server)
    notes = [*server.subject.notes, *_allocator_notes(shards[0].memory_stats)]
    if not verbose:
        taken = (min(len(ranks), LEAST + 1) + 2 if ranks else 0) + (2 * min(len(problems), LEAST + 1) + bool(problems))
        room = max(LEAST, LINES - HEAD - taken)
        said = notes[: max(0, room - len(figures) - 1) // 2]
        left = len(notes) - len(said)
        more = _more((len(figures) - room, "figure"), (len(ranks) - LEAST - 1, "rank"), (left, "note"))
        figures, notes, ranks = figures[:room], said, [*ranks[:-1][:LEAST], *ranks[-1:]]
    terminal.figures(out, figures, roles, brief=not verbose)
    if ranks:
        out.print()
        header = (terminal.INDENT + "rank", "stage", "tp", "dp", "bytes", "")
        terminal.listing(out, header, ranks, right=(0, 1, 2, 3, 4))
    _print_problems(out, problems, MOST_PROBLEMS if verbose else LEAST)
    terminal.notes(out, notes)
    if not verbose:
        terminal.notes(out, [f"every tensor{more}"], label="-v", style=terminal.QUIET, gap=False)


def _more(*counted: tuple[int, str]) -> str:
    """What else -v adds, in words."""
    return "".join(f", {count} {name}{'' if count == 1 else 's'}" for count, name in counted if count > 0)


def _steps(shard: Shard) -> Iterator[Step]:
    """The line through both sizes of each kind of tensor, and where it leads at full scale."""
    for name, alike in _alike(shard.rows):
        row, unit = alike[0], alike[0].tensor.grows_with
        if row.slope_bytes is None or row.intercept_bytes is None:
            numbers = f"there is one size of it: {row.full_bytes:,}"
        else:
            padding = terminal.number(row.intercept_bytes)
            numbers = f"{terminal.number(row.slope_bytes)} x {row.full_units:,} + {padding}"
        source = f"torch: {row.storage_bytes:,} B at {row.units:,}; formula {row.full_formula_bytes:,} B"
        symbol = name if len(alike) == 1 else f"{name}, each of {len(alike)}"
        yield Step(symbol, f"bytes a {unit} x {unit}s + those that pad", numbers, row.full_bytes, "B", source)


def _verdict(out: Console, server: Verified) -> None:
    first = server.ranks[0].shard
    tensors = sum(len(result.shard.rows) for result in server.ranks)
    size = sum(result.shard.totals["storage_bytes"] for result in server.ranks)
    scale = "at full scale" if first.scale == 1 else f"at {percent(first.scale)} of full scale"
    where = f"{tensors} {'tensor' if tensors == 1 else 'tensors'}, {format_bytes(size)} on {server.device} {scale}"
    if len(server.ranks) > 1:
        where += f", {len(server.ranks)} ranks"
    if server.ok:
        agreed = (
            "formula = storage"
            if first.totals["allocator_bytes"] is None
            else "formula = storage, allocator as its rules say"
        )
        terminal.verdict(out, "every byte agrees", f"{where}: {agreed}")
        return
    wrong = sum(not row.ok for result in server.ranks for row in result.shard.rows)
    headline = f"{wrong} of {tensors} tensors differ" if wrong else "the tensors agree, a check does not"
    terminal.verdict(out, headline, where, style=terminal.TROUBLE)


def _shape(row: Row, times: str) -> str:
    return f"{short_dtype(row.tensor.dtype)} {times.join(str(n) for n in row.tensor.shape)}"


def _print_tensors(out: Console, shard: Shard) -> None:
    rows, spaced = [], []
    for name, alike in _alike(shard.rows):
        first, many = alike[0], len(alike)
        label = name if many == 1 else f"{name} x {many}"
        size = sum(row.storage_bytes for row in alike)
        each = "" if first.slope_bytes is None else f"{_slope(alike)} a {first.tensor.grows_with}"
        rows.append((terminal.INDENT + label, f"{size:,}", each, _shape(first, "x")))
        spaced.append((*rows[-1][:-1], _shape(first, " x ")))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    if max(len(" grows by"), widths[2]) + widths[0] + widths[1] + widths[3] + 6 > out.width:
        rows = spaced  # lines break between the dimensions, not inside one
    terminal.listing(out, (terminal.INDENT + "tensor", "bytes", "grows by", "dtype and shape"), rows, right=(1, 2))


def _alike(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    """Rows of one kind together: ``latent[0]`` and ``latent[1]`` of one shape."""

    def kind(row: Row) -> tuple[str, tuple[int, ...], str]:
        return (re.sub(r"\[\d+\]", "", row.tensor.name), row.tensor.shape, row.tensor.dtype)

    found: dict[tuple[str, tuple[int, ...], str], list[Row]] = {}
    for row in rows:
        found.setdefault(kind(row), []).append(row)
    for (name, *_), alike in found.items():
        yield (name if len(alike) > 1 else alike[0].tensor.name), alike


def _pools(server: Verified, shard: Shard) -> tuple[list[Quantity], list[str]]:
    """Each pool at full scale as count times unit, with its role; what else was held against it; and what a caching
    allocator makes of it all.
    """
    figures, roles = [], []
    ordered = sorted(shard.rows, key=lambda row: (list(POOL_NAMES).index(row.tensor.pool), row.tensor.grows_with))
    for (pool, unit), group in groupby(ordered, key=lambda row: (row.tensor.pool, row.tensor.grows_with)):
        rows = list(group)
        total = sum(row.full_bytes for row in rows)
        if not total:
            continue
        slope = sum((row.slope_bytes or Fraction() for row in rows), Fraction())
        name = "KV windows" if unit == "window token" else POOL_NAMES[pool]
        figures.append(Quantity(name, f"{total:,} B", format_bytes(total), _product(total, slope, rows[0], unit)))
        roles.append(pool)
    if server.engine is not None:
        said = f"{server.engine.package} {server.engine.version}"
        same = "follows" if server.engine.ok else "differs"
        names = (
            ", ".join(row.name for row in server.engine.rows)
            or "its model class makes its own shapes: nothing to compare"
        )
        figures.append(Quantity(said, same, "", names))
    if server.stated:
        wrong = sum(not figure.ok for figure in server.stated)
        shown = sum(figure.held_against == "tensors" for figure in server.stated)
        names = f"{shown} against the tensors, {len(server.stated) - shown} against the rules"
        said = f"{wrong} of {len(server.stated)} differ" if wrong else f"{len(server.stated)} figures hold"
        figures.append(Quantity("plan", said, "", names))
    if server.behaviour:
        failed = [check.name for check in server.behaviour if not check.ok]
        names = ", ".join(check.name for check in server.behaviour)
        said = f"{len(server.behaviour)} properties of recurrences: {names}"
        figures.append(Quantity.of("behaviour", "failed" if failed else "holds", "", ", ".join(failed) or said))
    views = [view for row in shard.rows for view in row.tensor.views]
    if views and all(row.tensor.pool == "blocks" for row in shard.rows):
        figures.append(Quantity("views", f"{len(views):,}", "", "pages of states and attention, inside the storage"))
    totals, stats = shard.totals, shard.memory_stats
    if totals["expected_allocator_bytes"] is not None and "predicted_reserved_bytes" in stats:
        more = totals["expected_allocator_bytes"] - totals["storage_bytes"]
        segments = stats["predicted_reserved_bytes"]
        why = f"{format_bytes(segments)} reserved on a GPU: {more:,} B of rounding"
        expected = totals["expected_allocator_bytes"]
        figures.append(Quantity.of("allocator", f"{expected:,} B", format_bytes(expected), why))
    elif totals["allocator_bytes"] is not None:
        resident = stats.get("resident_held_bytes", 0) - stats.get("resident_before_bytes", 0)
        why = f"resident pages; the process grew by {format_bytes(max(0, resident))}"
        figures.append(
            Quantity("allocator", f"{totals['allocator_bytes']:,} B", format_bytes(totals["allocator_bytes"]), why)
        )
    return figures, roles


def _slope(rows: Sequence[Row]) -> str:
    return terminal.number(sum((row.slope_bytes or Fraction() for row in rows), Fraction()))


def _product(total: int, slope: Fraction, row: Row, unit: str) -> str:
    """``258 x 56,171,520 B a slot``; where there is no such product, what it grows by."""
    if slope and (total / slope).denominator == 1:
        padded = int(total / slope) - row.full_units
        pads = f"; {padded:,} pad" if padded > 1 else "; one pads" if padded else ""
        return f"{int(total / slope):,} x {terminal.number(slope)} B{pads}"
    return f"{terminal.number(slope)} B a {unit}"


def _rank_rows(ranks: Sequence[RankResult]) -> list[tuple[str, ...]]:
    """What each rank holds, and all of them."""
    usual = ranks[0].shard.totals["full_bytes"]
    rows = list[tuple[str, ...]]()
    for result in ranks:
        size, rank = result.shard.totals["full_bytes"], result.rank
        other = "" if size == usual else f"differs from rank {ranks[0].rank.rank} by {size - usual:+,} B"
        said = "does not agree" if not result.shard.ok else other
        rows.append(
            (f"{terminal.INDENT}{rank.rank}", str(rank.stage), str(rank.tp_rank), str(rank.dp_rank), f"{size:,}", said)
        )
    total = sum(result.shard.totals["full_bytes"] for result in ranks)
    rows.append((terminal.INDENT + "all", "", "", "", f"{total:,}", format_bytes(total)))
    return rows


def _allocator_notes(stats: Mapping[str, Any]) -> list[str]:
    """What the environment says to torch's allocator, and what of it counts here; nothing where it says nothing."""
    settings = stats.get("allocator_settings") or {}
    if not settings.get("variable"):
        return []
    name = settings["variable"]
    found = [f"{name} is {settings['text'][:200]}"] if settings["text"] else [f"{name} is set, and empty"]
    found += [f"{name}: torch refuses it on a GPU: {problem}" for problem in settings["refused"]]
    found += [f"{name}: {said} is not known here, and changes nothing" for said in settings["unread"]]
    if settings["backend"] != "native" and not settings["refused"]:
        found.append(f"the blocks of {settings['backend'][:40]} are the driver's: none are predicted")
    return found


def _models(count: int) -> str:
    return f"{count} model" if count == 1 else f"{count} models"


def _passed_over(answer: VerifyAnswer) -> str:
    """How many presets were passed over, and for what."""
    words = {"memory": "for too little memory", "refused": "refused under these flags", "no state": "without a state"}
    kinds = [skipped.kind for skipped in answer.skipped]
    parts = [f"{kinds.count(kind)} {said}" for kind, said in words.items() if kind in kinds]
    return f"{len(kinds)} passed over: {', '.join(parts)}"


def _print_problems(out: Console, found: Sequence[str], most: int = MOST_PROBLEMS) -> None:
    """What does not agree, the first of it."""
    rest = [f"and {len(found) - most} more"] if len(found) > most else []
    terminal.notes(out, [*found[:most], *rest], label="differs", style=terminal.TROUBLE)


def _problems(server: Verified) -> list[str]:
    """What does not agree, with the differences."""
    found = []
    for result in server.ranks:
        where = f"rank {result.rank.rank} " if len(server.ranks) > 1 else ""
        found += [f"{where}{name}: {problem}" for name, problem in _row_problems(result.shard)]
        found += [
            f"{where}{check.name}: {check.found:,} B, expected {check.expected:,} B"
            for check in result.shard.checks
            if not check.ok
        ]
    for figure in server.stated:
        if not figure.ok:
            found.append(_stated(figure))
    if server.engine is not None:
        said = f"{server.engine.package} {server.engine.version}"
        found += [f"{row.name}: {said} {row.engine}, here {row.here}" for row in server.engine.rows if not row.ok]
    return found + [f"{c.name}: {c.found:.3g}, bound {c.expected:.3g}" for c in server.behaviour if not c.ok]


def _stated(figure: Stated) -> str:
    """What a plan states and what it should be; the difference, where both are whole numbers."""
    stated, expected = figure.stated, figure.expected
    said = f"{figure.figure}: the plan states {_value(stated)}, the {figure.held_against} give {_value(expected)}"
    if type(stated) is int and type(expected) is int:
        said += f", {abs(expected - stated):,} {'more' if expected > stated else 'less'}"
    return said


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else quoted(value)


def _row_problems(shard: Shard) -> Iterator[tuple[str, str]]:
    """Problems with the tensors that have them; ``index x 11`` where alike tensors share one."""
    for name, alike in _alike(shard.rows):
        for problem in dict.fromkeys(problem for row in alike for problem in row.problems):
            having = [row.tensor.name for row in alike if problem in row.problems]
            yield (f"{name} x {len(having)}" if len(having) > 1 else having[0]), problem


def _print_many(out: Console, answer: VerifyAnswer) -> None:
    wrong = sum(not server.ok for server in answer.servers)
    tensors = sum(len(result.shard.rows) for server in answer.servers for result in server.ranks)
    if wrong:
        headline, style = f"{wrong} of {len(answer.servers)} models differ", terminal.TROUBLE
    elif answer.servers:
        headline, style = "every byte agrees", "bold"
    else:
        headline, style = "nothing is verified", terminal.TROUBLE
    device = answer.servers[0].device if answer.servers else "no device"
    over = f"; {_passed_over(answer)}" if answer.skipped else ""
    terminal.verdict(
        out, headline, f"{_models(len(answer.servers))}, {tensors:,} tensors on {device}{over}", style=style
    )
    rows = []
    for server in answer.servers:
        first, size = server.ranks[0].shard, server.all_bytes
        scale = "full" if first.scale == 1 else percent(first.scale)
        rows.append(
            (
                terminal.INDENT + server.subject.model.name,
                str(len(first.rows)),
                f"{size:,}",
                scale,
                "agrees" if server.ok else "differs",
            )
        )
    if rows:
        terminal.listing(out, (terminal.INDENT + "model", "tensors", "bytes", "scale", ""), rows, right=(1, 2, 3))
    found = [f"{server.subject.model.name}: {problem}" for server in answer.servers for problem in _problems(server)]
    _print_problems(out, found)
    terminal.notes(out, [f"{skipped.model} is passed over: {skipped.reason}" for skipped in answer.skipped])
