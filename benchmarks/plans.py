"""How many exact plans a second does one core make, and what do the stages cost?

    python benchmarks/plans.py [--rounds 7] [--least 20000] [--weights 15]

A point of a sweep over memory, ratio or limits costs `size`; a point that changes shapes costs `prepare` too, and the
tensors are only laid out (`allocation`) for a plan that is shown. Each stage is timed in turn by processor time, the
least of all rounds counts (a shared machine only ever adds time), beside a fixed piece of Python arithmetic. Exits with
1 when fewer than ``--least`` sizings are made in a second, an engine's public call with its whole document takes more
than its MOST times what json.dumps takes for that document, or the first weights of a model more than ``--weights``
times what it takes for SGLang's.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hybridcalc import Architecture, llamacpp, load_model, sglang, vllm
from hybridcalc.architecture.weights import parameters, schemes, stored_bytes
from hybridcalc.deployment import Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.planner import allocation, prepare, size
from hybridcalc.engines.sglang.weights import placement
from hybridcalc.engines.sweep import SweepAxis, sweep
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm import planner as vllm_planner
from hybridcalc.engines.weights import weigh
from hybridcalc.units import GIB

CALLS = 2_000
MODEL = load_model("kimi-k3")
ARGS = ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3", mamba_ssm_dtype="float32")
FP8, CACHES = load_model("Qwen/Qwen3.5-397B-A17B-FP8"), (parameters, schemes, stored_bytes)
SPECULATIVE = ServerArgs(
    tp_size=8, kv_cache_dtype="fp8_e4m3", speculative_algorithm="EAGLE", speculative_num_draft_tokens=4,
    speculative_eagle_topk=1, draft_layers=1, pp_size=1,
)  # fmt: skip
OTHER = ServerArgs(tp_size=4, kv_cache_dtype="fp8_e4m3")
NEMOTRON, VLLM = load_model("nemotron-h-8b"), EngineArgs(max_model_len=8192)
PLANS: dict[str, Callable[[], dict[str, Any]]] = {
    "SGLang": lambda: sglang.plan(MODEL, ARGS, rest_gib=28.55).to_dict(),
    "vLLM": lambda: vllm.plan(NEMOTRON, VLLM, available_bytes=40 * GIB).to_dict(),
    "llama.cpp": lambda: llamacpp.plan(NEMOTRON, llamacpp.ContextParams()).to_dict(),
}
"""The public call of each engine, with its whole document."""
MOST = {"SGLang": 3.6, "vLLM": 5.0, "llama.cpp": 7.0}
"""Times json.dumps of that document that it may take."""


def unit() -> int:
    """A thousand additions: what this machine takes for a known amount of work."""
    total = 0
    for number in range(1_000):
        total += number
    return total


def stages() -> dict[str, Callable[[], object]]:
    """What is timed."""
    ready, drafts = prepare(MODEL, ARGS), prepare(MODEL, SPECULATIVE)
    sizing = size(ready, 28.55)
    axis = (SweepAxis("rest", tuple(f"{20 + step / 100:.2f}" for step in range(100))),)
    points = lambda: list(  # noqa: E731
        sweep(
            ENGINES["sglang"], axis, lambda _: ARGS, MODEL, memory=lambda _: exact_rest(28.55), work=Workload.at(9216)
        )
    )
    served = vllm_planner.prepare(NEMOTRON, VLLM)
    documents = {engine: call() for engine, call in PLANS.items()}
    return {
        "unit": unit,
        "size": lambda: size(ready, 28.55),
        "size, speculative": lambda: size(drafts, 28.55),
        "allocation": lambda: allocation(ready, sizing),
        "prepare, as before": lambda: prepare(MODEL, ARGS),
        "prepare two others": lambda: (prepare(MODEL, SPECULATIVE), prepare(MODEL, OTHER)),
        "plan": lambda: sglang.plan(MODEL, ARGS, rest_gib=28.55),
        "first weights": lambda: first_weights(MODEL),
        "first weights, fp8": lambda: first_weights(FP8),
        **{f"{engine} document": call for engine, call in PLANS.items()},
        **{f"{engine} to JSON": partial(json.dumps, document) for engine, document in documents.items()},
        "100 points of a sweep": points,
        "vLLM size": lambda: vllm_planner.size(served, 40 * GIB),
        "vLLM prepare": lambda: vllm_planner.prepare(NEMOTRON, VLLM),
    }


def first_weights(model: Architecture) -> object:
    """Weights on a rank with nothing kept from before."""
    for cache in CACHES:
        cache.cache_clear()
    return weigh(model, placement(model, ARGS), ranks=ARGS.tp_size)


def seconds(call: Callable[[], object], calls: int) -> float:
    """Seconds one call takes, over a run of them."""
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls


def main() -> int:
    """Measure and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--least", type=int, default=20_000, help="sizings a second")
    parser.add_argument("--weights", type=float, default=15.0, help="times json.dumps that the first weights take")
    options = parser.parse_args()
    timed = stages()
    least = dict.fromkeys(timed, float("inf"))
    for _ in range(options.rounds):
        for name, call in timed.items():
            least[name] = min(least[name], seconds(call, CALLS // 100 if name.startswith("100") else CALLS))
    for name, taken in least.items():
        print(f"{name:22} {1e6 * taken:9.2f} us   {taken / least['unit']:7.2f} x 1,000 additions")
    slowest = max(least["size"], least["vLLM size"])
    print(
        f"{1 / least['size']:,.0f} exact plans a second for SGLang, {1 / least['vLLM size']:,.0f} for vLLM; "
        f"at least {options.least:,} are wanted"
    )
    times = {engine: least[f"{engine} document"] / least[f"{engine} to JSON"] for engine in PLANS}
    told = ", ".join(f"{taken:.1f} of {MOST[engine]:g} for {engine}" for engine, taken in times.items())
    print(f"times json.dumps of it that a plan with its document takes, and may take: {told}")
    weights = max(least["first weights"], least["first weights, fp8"]) / least["SGLang to JSON"]
    print(f"first weights take {weights:.1f} x json.dumps of a document; at most {options.weights:g} are wanted")
    over = any(taken > MOST[engine] for engine, taken in times.items())
    return int(1 / slowest < options.least or over or weights > options.weights)


if __name__ == "__main__":
    sys.exit(main())
