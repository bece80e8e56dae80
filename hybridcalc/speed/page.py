"""What does a page need to recompute floors of time in the browser?

For each combination of ranks and dtypes the sizes that a step's bytes and operations follow from; the script repeats
step.py over the requests at once and their length (output/pictures/web/speed.js).
"""

from typing import TYPE_CHECKING, Any

from hybridcalc.engines.play import Play
from hybridcalc.errors import HybridcalcError
from hybridcalc.hardware import Rates
from hybridcalc.speed.floor import EXPERTS, HEAD, SCAN_FLOPS, WEIGHTS
from hybridcalc.speed.step import pair_flops, selected_tokens, weights_read

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.engines.engine import Engine

RESULTS = {
    "step-ms": "ms a step takes at least",
    "pace-each": "tokens/s a request, at most",
    "pace-all": "tokens/s in all, at most",
}
CHARTS = {"step": "Least time of a step by requests in it", "roofline": "Arithmetic a byte of a step's parts"}


def with_speed(served: "Engine", model: "Architecture", args: Any, rates: Rates, play: Play) -> Play:
    """The settings of a page with the floors of a step for each of them."""
    sizes: dict[str, Any] = {}
    for key, cell in play.data["table"].items():
        tp, kv, ssm = key.split("|")[:3]
        known = "|".join((tp, kv, ssm))
        if "refused" not in cell and known not in sizes:
            asked = {"tp_size": int(tp), "kv_cache_dtype": kv, "mamba_ssm_dtype": ssm}
            try:
                sizes[known] = sizes_of(served, model, served.with_options(args, asked), rates)
            except HybridcalcError:
                continue
    speed = {"bandwidth": rates.bandwidth_gbs, "workers": served.workers(args), "cells": sizes}
    return play._replace(
        results={**play.results, **RESULTS}, charts={**play.charts, **CHARTS}, data={**play.data, "speed": speed}
    )


def sizes_of(served: "Engine", model: "Architecture", args: Any, rates: Rates) -> dict[str, Any]:
    """What a step of any requests and length follows from, for one rank."""
    read, stream = weights_read(served, model, args), served.stream(model, args)
    share = (read.chosen or 1) / read.experts if read.experts else 0.0
    flops = read.parameters[WEIGHTS] + read.parameters[HEAD] + read.parameters[EXPERTS] * share
    curve, ranks = stream.curve, max(1, served.attention_ranks(args))
    return {
        "weights": read.bytes[WEIGHTS] + read.bytes[HEAD],
        "experts": read.bytes[EXPERTS],
        "share": min(1.0, share),
        "meeting": read.workers,
        "workers": served.workers(args) * served.pipeline(args),
        "positions": stream.positions,
        "flops": 2 * flops,
        "kv": [curve.bytes_per_token, curve.window_bytes_per_token, curve.window_tokens, stream.sharing],
        "pairs": [
            model.attention_layers * pair_flops(model, model.attention) / ranks,
            model.window_layers * pair_flops(model, model.window_attention or model.attention) / ranks,
            model.window or 0,
        ],
        "selected": selected_tokens(model.attention),
        "state": (1 + (stream.positions if stream.writes else 0)) * stream.state_bytes,
        "scan": SCAN_FLOPS * stream.state_elements,
        "tflops": rates.peak(read.bits),
    }
