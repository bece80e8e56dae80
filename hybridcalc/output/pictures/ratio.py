"""The page of a balanced ratio, and its pictures."""

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.sglang.balance import Balance
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.crossover import compare
from hybridcalc.findings import Finding
from hybridcalc.output.pictures.crossover import crossover_picture
from hybridcalc.output.pictures.page import Choice, Page, command_line
from hybridcalc.output.pictures.pages import Draw, drawn
from hybridcalc.output.pictures.sglang import balance_pictures
from hybridcalc.output.pictures.sglang_play import sglang_play
from hybridcalc.output.ratio_text import ratio_figures, ratio_meaning, ratio_settings
from hybridcalc.units import ratio_text

ASSUMED_GIB = 24.0
"""Memory a page's settings start from where none is given."""

ratio_pictures = balance_pictures


def ratio_page(
    answer: Balance, findings: tuple[Finding, ...], model: Architecture | None, args: ServerArgs, draw: Draw
) -> Page:
    """The page of a ratio; its settings to play with start from what was given."""
    play = None
    if model is not None and answer.constants.origin == "architecture":
        play = sglang_play(model, args, answer.rest_gib or ASSUMED_GIB, answer.workload)
    notes = [*answer.notes]
    if play is not None and answer.rest_gib is None:
        notes.append(f"no --rest given: the settings start at {ASSUMED_GIB:g} GiB for both pools")
    choices = tuple(Choice(label, flags, effect) for label, flags, effect in ratio_settings(answer))
    crossed = () if model is None else (lambda: crossover_picture(compare(model, None, args)),)
    title = f"{answer.model or 'As logged'} on SGLang {answer.engine_version}: the balanced ratio"
    return Page(
        title,
        f"r* = {ratio_text(answer.ratio)}",
        ratio_meaning(answer),
        command_line(),
        tuple(ratio_figures(answer)),
        drawn((*draw.values(), *crossed)),
        play,
        findings=findings,
        choices=choices,
        notes=tuple(notes),
        steps=answer.steps,
    )
