"""What pace does a plan keep? The floor of a step at its requests and mean length, as a plan's answer shows it.

A figure for the few lines, a table for the whole, two pictures: time over the batch, and the roofline.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import requests_text
from hybridcalc.errors import InputError, NotModelled
from hybridcalc.findings import LONGEST_REASON, Quantity, Table, View
from hybridcalc.hardware import rates_of
from hybridcalc.speed import (
    EXPERTS,
    HEAD,
    KV,
    STATE,
    USUAL_SHARES,
    WEIGHTS,
    Boundary,
    Floor,
    boundaries,
    prefill_of,
    step_of,
)
from hybridcalc.speed.prompt import SHARED

if TYPE_CHECKING:
    from hybridcalc.engines.answer import Answer
    from hybridcalc.engines.charts import Chart
    from hybridcalc.engines.crossover import StateGrid
    from hybridcalc.engines.engine import Engine
    from hybridcalc.engines.play import Play

NAMES = {WEIGHTS: "weights", EXPERTS: "weights", HEAD: "weights", KV: "KV", STATE: "state"}
"""Parts of a step as people call them: all weights are one."""
ROLES = {"weights": "weights", "KV": "kv", "state": "state"}
MEASUREMENTS, PROMPTS = 20, 16
"""Public measurements of 16 requests and more without speculation, and of prompts, that the bands are of
(docs/speed.md).
"""
LONGER = {None: 2, "--mamba-track-interval": 4}
"""How many times longer another distance of states is that is priced beside, by the flag that says it."""
POINTS, MOST_REQUESTS = 33, 4
"""Points of a curve, and how many times the planned requests it goes on to."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The floors of a plan: one decode step at ``context`` tokens a request, and the prefill of as many; ``at`` gives
    the floor of a step of other requests and lengths. ``fewer``: the step is of the requests that are wanted, which are
    fewer than run.
    """

    step: Floor
    prompt: Floor
    context: int
    at: Callable[[int, int], Floor]
    name: str
    saved: "StateGrid | None" = None
    price: Callable[[int, tuple[int, ...]], "tuple[Boundary, ...]"] | None = None
    live: "Callable[[Play], Play] | None" = None
    fewer: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The key ``speed`` of ``plan --json``."""
        prompt = {
            "floor_ms": round(self.prompt.floor_ms, 4),
            "band_ms": [round(end, 4) for end in self.prompt.prompt_band_ms],
            "band_measurements": PROMPTS,
            "chunks_ms": round(sum(map(self.prompt.part_ms, self.prompt.beyond)), 4),
            "binding": self.prompt.binding,
        }
        return {
            "context_tokens": self.context,
            **self.step.to_dict(),
            "band_measurements": MEASUREMENTS,
            "prefill": {"tokens": self.context, **prompt},
            "shared_prefixes": [
                {
                    "shared_tokens": each.shared,
                    "saved_every_tokens": each.every,
                    "recomputed_tokens": each.cost.tokens,
                    "floor_ms": round(1000 * each.cost.seconds, 4),
                }
                for each in self._boundaries()
            ],
        }

    def _boundaries(self) -> "list[Boundary]":
        """What shared prefixes cost where states are kept as they are, and less often."""
        if self.saved is None or self.price is None:
            return []
        every = self.saved.prompts
        return [each for n in (every, LONGER[None] * every) for each in self.price(n, SHARED)]

    def _lost(self) -> "list[tuple[str, str, str, str]]":
        """Rows of what a prefix costs that is computed again: at the boundaries of states, and after an answer."""
        found, rows = self._boundaries(), []
        for now, longer in zip(found[: len(SHARED)], found[len(SHARED) :], strict=True):
            why = f"{now.cost.tokens:,} again: a state every {now.every:,}"
            why += f"; every {longer.every:,}: {longer.cost.tokens:,}"
            rows.append((f"prefix of {now.shared:,}", "", ms_text(1000 * now.cost.seconds), why))
        if self.saved is not None and self.price is not None and self.saved.flag is not None:
            every, times = self.saved.generated, LONGER[self.saved.flag]
            (cost,) = self.price(every, (self.context // every * every + every // 2,))
            why = f"{every // 2:,} of an answer again, on average"
            why += f"; {self.saved.flag} {times * every}: {times * every // 2:,}"
            rows.append(("a next turn", "", ms_text(1000 * cost.cost.seconds), why))
        return rows

    def figure(self) -> Quantity:
        """What a step takes, in a line: as many of its parts as that has room for, the largest first."""
        step, taken = self.step, by_name(self.step)
        rate = f"{rate_text(step.tokens_per_second())} tokens/s at most"
        if self.fewer:
            rate += f" at {requests_text(step.batch)}"
        told = [f"{name} {ms_text(ms)}" for name, ms in sorted(taken.items(), key=lambda part: -part[1])]
        kept = next((n for n in range(len(told), 0, -1) if len(f"{rate}: {', '.join(told[:n])}") <= LONGEST_REASON), 0)
        parts = ", ".join(told[:kept])
        more = [*told[kept:], f"{rate_text(step.batch * step.tokens_per_second())} tokens/s in all"]
        if step.positions > 1:
            more.append(f"with all of {step.positions - 1} drafts accepted")
        brief = f"{rate}: {parts}" if parts else rate
        return Quantity("a step", f"{ms_text(step.floor_ms)} ms", "or more", brief, ", ".join(more), ", ")

    def prompt_figure(self) -> Quantity:
        """What the first token of an answer waits for: the prefill of a prompt as long as a request, alone."""
        least, most = self.prompt.prompt_band_ms
        brief = f"{self.context:,} tokens, usually {ms_text(least)} to {ms_text(most)}"
        return Quantity(
            "a prompt", f"{ms_text(self.prompt.floor_ms)} ms", "or more", brief, f"{self.prompt.binding} binds", "; "
        )

    def table(self) -> Table:
        """Every part of a step, the whole, the band of public measurements, and the prefill of a prompt."""
        rows = [
            (part.name, f"{part.bytes:,}", f"{ms_text(self.step.part_ms(part))}", part.why) for part in self.step.cost
        ]
        size, (low, high) = sum(part.bytes for part in self.step.cost), self.step.band_ms
        bandwidth, peak = self.step.rates.bandwidth_gbs, self.step.tflops
        why = f"{size:,} B at {bandwidth:,.0f} GB/s"
        if self.step.binding == "compute":
            why = f"its FLOPs at {peak:,.0f} TFLOP/s"
        shares = f"the floor / {USUAL_SHARES[1]:g} and / {USUAL_SHARES[0]:g}: {MEASUREMENTS} public measurements"
        least, most = self.prompt.prompt_band_ms
        rows += [
            ("a step", f"{size:,}", ms_text(self.step.floor_ms), why),
            ("expect", "", f"{ms_text(low)} to {ms_text(high)}", shares),
            ("prefill", "", ms_text(self.prompt.floor_ms), f"{self.context:,} tokens: {self.prompt.binding} binds"),
            ("expect", "", f"{ms_text(least)} to {ms_text(most)}", f"as {PROMPTS} public measurements of prompts"),
            *(
                (f"+ {part.name}", "", ms_text(self.prompt.part_ms(part)), f"{part.why}; not in the floor")
                for part in self.prompt.beyond
            ),
            *self._lost(),
        ]
        return Table("Speed", ("least time", "B of a rank", "ms", "why"), tuple(rows), (1, 2))

    def shown(self, view: View, *, prompt: bool = False) -> View:
        """The answer of a plan with its pace: a figure after the memory, one of a ``prompt`` where that is asked for, a
        table, pictures, what it leaves out.
        """
        own = (self.figure(), *((self.prompt_figure(),) if prompt else ()))
        at = next((n + 1 for n, row in enumerate(view.figures) if row.label == "memory"), len(view.figures))
        pictures: Mapping[str, Callable[[], Any]] = {
            **view.pictures,
            "step": self.step_picture,
            "roofline": self.roofline_picture,
        }
        play, live = view.play, self.live

        def timed() -> "Play | None":
            found = None if play is None else play()
            return found if found is None or live is None else live(found)

        return view._replace(
            play=None if play is None else timed,
            figures=(*view.figures[:at], *own, *view.figures[at:]),
            tables=(*view.tables, self.table()),
            notes=(*view.notes, *self.step.notes),
            pictures=pictures,
            essential=view.essential + len(own),
            fewest=min(at, view.essential) + len(own),
            kept=tuple(row.label for row in own),
        )

    def step_picture(self) -> "Chart":
        """The least time of a step and of its parts over the batch, and at other lengths."""
        from hybridcalc.engines.charts import Axis, Chart, Mark, Series, lengths

        batches = lengths(1, max(16, MOST_REQUESTS * self.step.batch), POINTS)
        found = [(batch, self.at(batch, self.context)) for batch in batches]
        curves = [
            Series(name, role, tuple((float(n), by_name(floor).get(name, 0.0)) for n, floor in found), name[0].lower())
            for name, role in ROLES.items()
            if name in by_name(found[-1][1])
        ]
        whole = Series("a step", "balanced", tuple((float(n), floor.floor_ms) for n, floor in found), "#")
        others = [
            Series(
                f"of {tokens:,} tokens",
                "balanced",
                tuple((float(n), self.at(n, tokens).floor_ms) for n in batches),
                letter,
                "dashed",
            )
            for tokens, letter in ((self.context // 4, "-"), (self.context * 4, "+"))
            if tokens
        ]
        label = f"{self.step.batch:,} at once: {ms_text(self.step.floor_ms)} ms"
        return Chart(
            f"Least time of a step: {self.name} on {self.step.rates.name}",
            f"Requests of {self.context:,} tokens; public measurements are 1.5 to 4 times as long.",
            Axis("requests in a step", "number", True, 1, batches[-1]),
            Axis("ms", "ratio", True),
            (whole, *curves, *others),
            (Mark(self.step.batch, label),),
        )

    def roofline_picture(self) -> "Chart":
        """Arithmetic a byte of every part, under what memory and arithmetic units of the GPU do at most."""
        from hybridcalc.engines.charts import Axis, Chart, Mark, Series

        peak, slope = self.step.tflops, self.step.rates.bandwidth_gbs / 1000
        dots = [(name, role, *intensity(self.step, name, slope, peak)) for name, role in ROLES.items()]
        dots = [("a step", "balanced", *intensity(self.step, "", slope, peak)), *dots]
        dots.append(("prefill", "baseline", *intensity(self.prompt, "", slope, peak)))
        kept = [dot for dot in dots if dot[2]]
        ridge = peak / slope
        low = min(0.1, *(x / 2 for _, _, x, _ in kept))
        high = max(4 * ridge, *(2 * x for _, _, x, _ in kept))
        roof = Series("the GPU's most", "other", ((low, low * slope), (ridge, peak), (high, peak)), ".")
        points = (Series(name, role, ((x, y),), name[0].lower(), "dots") for name, role, x, y in kept)
        return Chart(
            f"Roofline of a step: {self.name} on {self.step.rates.name}",
            f"{self.step.batch:,} requests of {self.context:,} tokens. Left of the ridge at {ridge:,.0f} FLOP a byte "
            "memory binds, right of it arithmetic.",
            Axis("FLOP a byte moved", "ratio", True, low, high),
            Axis("TFLOP/s", "ratio", True),
            (roof, *points),
            (Mark(ridge, f"{ridge:,.0f} FLOP/B"),),
        )


def intensity(floor: Floor, name: str, slope: float, peak: float) -> tuple[float, float]:
    """FLOPs a byte of one part by its name in NAMES, or of the whole, and TFLOP/s that they allow; 0, 0 for none."""
    parts = [part for part in floor.cost if not name or NAMES[part.name] == name]
    size, flops = sum(part.bytes for part in parts), sum(part.flops for part in parts)
    return (flops / size, min(peak, slope * flops / size)) if size and flops else (0.0, 0.0)


def by_name(step: Floor) -> dict[str, float]:
    """Milliseconds of weights, KV and state, none of what a model lacks."""
    found: dict[str, float] = {}
    for part in step.cost:
        found[NAMES[part.name]] = found.get(NAMES[part.name], 0.0) + step.part_ms(part)
    return found


def pace_of(served: "Engine", plan: "Answer", *, wanted: int | None = None) -> Pace:
    """The pace of a plan on its GPU, at its requests, or at those that are ``wanted`` where they are fewer, and their
    mean length.

    Raises InputError where there is no GPU, no rates of it, no length or no request, NotModelled where nothing is known
    of the weights.
    """
    length, gpu = plan.workload.mean_length, plan.rest.gpu
    if gpu is None or length is None or not plan.requests:
        raise InputError("no step to time", fix="name the GPU and the length: --gpu h200 -L 8k")
    if getattr(plan.args, "cpu_offload_gb", 0) > 0:
        raise NotModelled("weights in host memory are read over a link that is not modelled")
    rates, context = rates_of(gpu), round(length)

    def at(batch: int, tokens: int) -> Floor:
        return step_of(served, plan.model, plan.args, rates, batch=batch, context=tokens)

    prompt = prefill_of(served, plan.model, plan.args, rates, tokens=context)

    def price(every: int, shared: tuple[int, ...]) -> tuple[Boundary, ...]:
        return boundaries(served, plan.model, plan.args, rates, every=every, shared=shared)

    def live(play: "Play") -> "Play":
        from hybridcalc.speed.page import with_speed

        return with_speed(served, plan.model, plan.args, rates, play)

    requests = min(plan.requests, wanted or plan.requests)
    step, fewer = at(requests, context), requests < plan.requests
    return Pace(step, prompt, context, at, plan.model.name, served.saved(plan), price, live, fewer)


def ms_text(ms: float) -> str:
    """Milliseconds to three digits."""
    return f"{ms:,.0f}" if ms >= 99.95 else f"{ms:.1f}" if ms >= 0.95 else f"{ms:.2g}"


def rate_text(rate: float) -> str:
    """Tokens a second, whole from 10 on."""
    return f"{rate:,.0f}" if rate >= 9.95 else f"{rate:.1f}"
