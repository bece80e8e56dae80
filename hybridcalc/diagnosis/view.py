"""What a log says, for people: of every boot a verdict, the lines it rests on, findings, what to set, and its memory.

Printed figures are those of one rank, to two decimals; what a log does not print is not drawn. Where the engine's
planner reproduces a boot, its pictures say what other flags would do.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from hybridcalc.bootlog import Printed
from hybridcalc.bootlog.boots import figure_list
from hybridcalc.diagnosis import LogAnswer
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.findings import Table, View, safest_first, suggested
from hybridcalc.units import GIB, MIB

if TYPE_CHECKING:
    from hybridcalc.diagnosis.expectation import Compared
    from hybridcalc.engines.charts import Bars, Picture

PRINTED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("weights", "weights", ("weights_gib", "weights_buffer_mib")),
    ("draft weights", "headroom", ("draft_weights_gib",)),
    ("state pool", "state", ("conv_gib", "ssm_gib", "rs_buffer_mib")),
    ("draft states", "scratch", ("intermediate_ssm_gib", "intermediate_conv_gib")),
    ("KV pool", "kv", ("kv_gib", "k_gib", "v_gib", "kv_buffer_mib")),
    ("draft KV", "kv", ("draft_k_gib", "draft_v_gib", "draft_kv_buffer_mib")),
    ("blocks of states and KV", "kv", ("available_kv_gib",)),
    ("activations", "other", ("peak_activation_gib", "compute_buffer_mib")),
    ("CUDA graphs", "context", ("cuda_graph_gib",)),
    ("free", "unused", ("avail_mem_after_graph_gib",)),
)
"""Parts of a bar: what they are called, what they stand for, and the printed figures that they add up."""
MOST_BOOTS, MOST_LISTED = 20, 200
LONGEST_CELL = 24
NEEDS_LENGTH = "-L TOKENS shows what the pools admit, what idles, and what to set"
NO_BOOT = ("no boot in it", "no line of SGLang, vLLM or llama.cpp that sizes memory; metrics are for `hybridcalc live`")
NOTHING_PREDICTED = "the boot prints nothing that the plan predicts"


def boot_view(answer: Diagnosis, *, length: bool, compared: "Sequence[Compared] | None" = None) -> View:
    """One boot; ``length``: one was given; ``compared``: it is held against a plan."""
    starts = not any(found.severity == "error" for found in answer.findings)
    notes = [NEEDS_LENGTH] if not length and answer.rows and starts and answer.boot.engine in ENGINES else []
    tables: tuple[Table, ...] = ()
    headline, meaning, subject = answer.headline, answer.meaning, ""
    if compared is not None:
        agreed = {True: "as planned", False: "differs", None: "not printed"}
        rows = tuple(
            (c.name, _shown(c.expected), "-" if c.printed is None else _shown(c.printed), agreed[c.agrees])
            for c in compared
        )
        header, differing = ("figure", "planned", "printed", ""), (False, True, None)
        telling = sorted(range(len(rows)), key=lambda n: differing.index(compared[n].agrees))
        tables = (Table("Against the plan", header, rows, (1, 2), asked=True, telling=tuple(telling)),)
        differ = [c for c in compared if c.agrees is False]
        if differ:
            said = "differs from the plan in " + (differ[0].name if len(differ) == 1 else f"{len(differ)} figures")
            others = [_other(c) for c in differ if c.name in ("engine", "model")]
            headline, meaning, subject = said, "; ".join(others), ": ".join(filter(None, (headline, meaning)))
        elif not any(c.agrees for c in compared):
            subject = NOTHING_PREDICTED
    planned = answer.planned
    failure = next((found for found in answer.findings if found.fix and found.message == answer.meaning), None)
    return View(
        f"boot from line {answer.boot.line}",
        headline,
        meaning,
        subject=subject,
        evidence=tuple(answer.rows),
        said=("HC110", "HC111", "HC112"),
        asked=("HC155",),
        findings=tuple(found for found in answer.findings if found is not failure),
        fix=f"{failure.fix} ({failure.rule})" if failure is not None else "",
        wanted=answer.wanted,
        choices=suggested(safest_first(answer.suggestions)),
        tables=tables,
        notes=tuple(notes),
        steps=tuple(answer.steps),
        pictures=Pictures(partial(_pictures, answer)),
        play=None if planned is None else partial(_play, planned),
    )


def log_view(answers: Sequence[LogAnswer]) -> View:
    """All logs as one: the boot that tells most, and a line for each of the others."""
    boots = [boot for answer in answers for boot in answer.boots]
    reproduced = next((boot for boot in boots if boot.planned is not None), None)
    boot = reproduced or max(boots, key=lambda boot: len(boot.rows), default=None)
    view = View("", *NO_BOOT) if boot is None else boot_view(boot, length=True)
    rows = tuple((f"line {b.boot.line:,}", b.headline, b.meaning) for b in boots[:MOST_LISTED])
    return view._replace(
        title=", ".join(answer.source for answer in answers),
        tables=(*view.tables, *((Table("All boots", ("", "verdict", ""), rows),) if len(boots) > 1 else ())),
        findings=(*view.findings, *(found for answer in answers for found in answer.findings)),
        notes=(*view.notes, *(remark for answer in answers for remark in answer.remarks)),
    )


class Pictures(Mapping[str, Any]):
    """Pictures by name; what draws them is loaded when the first is looked for."""

    def __init__(self, find: "Callable[[], dict[str, Callable[[], Picture]]]") -> None:
        self._find = find

    @cached_property
    def _found(self) -> "dict[str, Callable[[], Picture]]":
        return self._find()

    def __getitem__(self, name: str) -> "Callable[[], Picture]":
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


def _play(planned: Any) -> Any:
    """The settings of a page to try, of the plan that reproduces a boot."""
    from hybridcalc.engines.view import facts_of

    return facts_of(ENGINES[planned.engine]).play(planned)


def _pictures(answer: Diagnosis) -> "dict[str, Callable[[], Picture]]":
    """Its memory as printed, and those of the plan that reproduces it; the most telling first."""
    planned = answer.planned
    found: dict[str, Callable[[], Picture]] = {"printed": lambda: printed_picture(answer)}
    if planned is None:
        return found
    from hybridcalc.engines.view import plan_pictures

    drawn = plan_pictures(ENGINES[planned.engine], planned, "as booted")
    telling = ["change"] if planned.workload.lengths and planned.suggestions else []
    return {name: drawn[name] for name in telling} | found | dict(drawn)


def printed_picture(answer: Diagnosis) -> "Bars":
    """The memory of one rank, as printed. Raises InputError where the log prints no size."""
    from hybridcalc.engines.charts import Bar, Bars, part

    seen: dict[str, int] = {}
    for figure in figure_list(answer.boot):
        if isinstance(figure.value, Printed) and figure.name not in seen:
            unit = MIB if figure.name.endswith("_mib") else GIB
            seen[figure.name] = round(figure.value.number * unit)
    parts = [part(name, role, sum(seen.get(figure, 0) for figure in figures)) for name, role, figures in PRINTED]
    shown = tuple(p for p in parts if 0 < p.bytes < 2**50)
    if not shown:
        raise InputError("the log prints no sizes to draw", fix="the answer without --save says what it prints")
    meaning = f" {answer.meaning[:1].upper()}{answer.meaning[1:]}." if answer.meaning else ""
    told = f"One rank, to the printed digits.{meaning}"
    return Bars(f"Memory as printed: {answer.headline}", told, "memory of one rank", (Bar("", shown),))


def _other(differing: "Compared") -> str:
    """Of which other engine or model the plan is."""
    planned, here = differing.expected, differing.printed
    if differing.name == "engine":
        planned, here = ENGINES.rows[planned].title, ENGINES.rows[here].title
    return f"the plan is of {planned}, this is {here}"


def _shown(value: Any) -> str:
    """A figure in a cell: one that is too long for any machine, by its length."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 3] + "..."
