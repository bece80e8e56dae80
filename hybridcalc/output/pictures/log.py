"""A boot's memory as its log prints it, and, where the engine's planner reproduces the boot, what other flags would do.

Printed figures are those of one rank, to two decimals; what a log does not print is not drawn.
"""

from collections.abc import Callable, Sequence

from hybridcalc.bootlog.boots import figure_list
from hybridcalc.bootlog.records import Printed
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.boot import LogAnswer
from hybridcalc.errors import InputError
from hybridcalc.output.pictures import sglang
from hybridcalc.output.pictures.chart import Bar, Bars, Part, Picture
from hybridcalc.output.pictures.memory import part
from hybridcalc.output.pictures.page import Page, Table, command_line
from hybridcalc.output.pictures.pages import drawn, suggested
from hybridcalc.output.pictures.sglang_play import sglang_play
from hybridcalc.units import GIB, MIB

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
MOST_BOOTS = 200


def printed_picture(answer: Diagnosis) -> Bars:
    """The memory of one rank, as printed. Raises InputError where the log prints no size."""
    seen: dict[str, int] = {}
    for figure in figure_list(answer.boot):
        if isinstance(figure.value, Printed) and figure.name not in seen:
            unit = MIB if figure.name.endswith("_mib") else GIB
            seen[figure.name] = round(figure.value.number * unit)
    parts = [_part(name, role, [seen.get(figure, 0) for figure in figures]) for name, role, figures in PRINTED]
    shown = tuple(p for p in parts if 0 < p.bytes < 2**50)
    if not shown:
        raise InputError("the log prints no sizes to draw", fix="the answer without --save says what it prints")
    title = f"Memory as printed: {answer.headline}"
    return Bars(
        title, f"One rank, to the printed digits. {_sentence(answer.meaning)}", "memory of one rank", (Bar("", shown),)
    )


def pictures(answer: Diagnosis) -> dict[str, Callable[[], Picture]]:
    """The pictures of a boot by name, the most telling first."""
    planned = answer.planned
    printed: dict[str, Callable[[], Picture]] = {"printed": lambda: printed_picture(answer)}
    if planned is None:
        return printed
    found = sglang.pictures(planned) | {"change": lambda: sglang.change_picture(planned, "as booted")}
    telling = ["change"] if planned.workload.lengths and planned.suggestions else []
    return {name: found[name] for name in telling} | printed | found


def told_boot(answers: Sequence[LogAnswer]) -> Diagnosis | None:
    """The boot that pictures are about: the first that the planner reproduces, else the one that prints the most."""
    boots = [boot for answer in answers for boot in answer.boots]
    reproduced = next((boot for boot in boots if boot.planned is not None), None)
    return reproduced or max(boots, key=lambda boot: len(boot.rows), default=None)


def log_page(answers: Sequence[LogAnswer], remarks: Sequence[str] = ()) -> Page:
    """The page about logs: the boot that tells most, and a line for each of the others."""
    names = ", ".join(answer.source for answer in answers)
    said = [finding for answer in answers for finding in answer.findings]
    notes = (*remarks, *(remark for answer in answers for remark in answer.remarks))
    boot = told_boot(answers)
    if boot is None:
        return Page(
            names,
            "No boot in it",
            "no line of SGLang, vLLM or llama.cpp that sizes memory",
            command_line(),
            findings=tuple(said),
            notes=notes,
        )
    play = None
    if boot.planned is not None:
        planned = boot.planned
        play = sglang_play(planned.model, planned.args, planned.rest.likely_gib, planned.workload)
    evidence = Table("What the log says", ("", "figure", "arithmetic"), tuple(boot.rows))
    boots = [other for answer in answers for other in answer.boots]
    rows = tuple((f"line {b.boot.line:,}", b.headline, b.meaning) for b in boots[:MOST_BOOTS])
    tables = (evidence, *((Table("All boots", ("", "verdict", ""), rows),) if len(boots) > 1 else ()))
    return Page(
        names,
        boot.headline,
        boot.meaning,
        command_line(),
        pictures=drawn(tuple(pictures(boot).values())),
        play=play,
        tables=tables,
        findings=(*boot.findings, *said),
        choices=suggested(boot.suggestions),
        notes=notes,
        steps=tuple(boot.steps),
    )


def _part(name: str, role: str, sizes: Sequence[int]) -> Part:
    return part(name, role, sum(sizes))


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}." if text else ""
