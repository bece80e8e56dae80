"""The document of a plan: one top level for every engine, and the engine's own figures under their own names.

One quantity has one key, whatever the engine: what a slot and a token take, requests of the whole deployment and of one
worker, the memory, what to set, the launch line that the plan is of. What a plan that does not start has no figure
for is null. `engine_figures` are the names that the engine itself uses; some of them stood at the top level of the
first version of the documents and still do, for scripts that read them there (`answer.Documented.promised`).
"""

import json
from math import ceil
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import HEADROOM, WEIGHTS_NAME, Rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.answer import Documented, own
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import Refusal
from hybridcalc.findings import Finding

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture

FIGURES = (
    "requests", "requests_range", "requests_per_worker", "workers", "gpus", "binding", "idle_percent", "workload",
    "slots_per_request", "slots_reason", "state_bytes_per_slot", "conv_bytes_per_slot", "ssm_bytes_per_slot",
    "kv_bytes_per_token", "kv_bytes_per_token_by_stage", "token_equiv", "ratio", "fixed_bytes_per_request",
    "marginal_bytes_per_token", "memory", "intervals",
)  # fmt: skip
"""Keys of the top level that only a plan that starts can fill."""


def plan_document(plan: Documented) -> dict[str, Any]:
    """The whole document of a plan that starts."""
    figures, engine, ready = plan.engine_figures, ENGINES[plan.engine], plan.ready
    return {
        **_head(engine, plan.model, plan.version, ready.asked, ready.launch),
        "starts": True,
        "refusal": None,
        **common_figures(plan),
        "memory": memory_document(engine, plan.args, plan.rest),
        "intervals": {} if plan.rest.exact else plan.intervals,
        "budget": [line.to_dict() for line in plan.budget],
        "findings": [finding.to_dict() for finding in plan.findings],
        "suggestions": [suggestion.to_dict() for suggestion in plan.suggestions],
        "log_lines": plan.log_lines,
        "notes": plan.notes,
        "steps": [step.to_dict() for step in plan.steps],
        "engine_figures": figures,
        **{name: figures[name] for name in plan.promised if name in figures},
    }


def common_figures(plan: Documented) -> dict[str, Any]:
    """The figures that every engine's plan has, and what they are of."""
    slot, work, by_stage = plan.slot, plan.workload, plan.kv_bytes_by_stage
    kv, state_bytes, each, workers = max(by_stage), slot.state_bytes, plan.concurrency, plan.workers
    return {
        "requests": each * workers,
        "requests_range": None if plan.rest.exact else _range(each * workers, *plan.requests_at_ends),
        "requests_per_worker": each,
        "workers": workers,
        "gpus": ENGINES[plan.engine].ranks(plan.args),
        "binding": plan.binding,
        "idle_percent": None if plan.idle_percent is None else round(plan.idle_percent, 2),
        "workload": {
            "length_tokens": work.longest or None,
            "mean_length_tokens": float(work.mean_length) if work.mean_length else None,
            "requests": work.wanted,
        },
        "slots_per_request": plan.slots_per_request,
        "slots_reason": plan.slots_reason,
        "state_bytes_per_slot": state_bytes,
        "conv_bytes_per_slot": slot.conv_bytes,
        "ssm_bytes_per_slot": slot.ssm_bytes,
        "kv_bytes_per_token": kv,
        "kv_bytes_per_token_by_stage": by_stage if len(set(by_stage)) > 1 else None,
        "token_equiv": state_bytes / kv if kv else None,
        "ratio": plan.ratio,
        "fixed_bytes_per_request": plan.fixed_bytes_per_request,
        "marginal_bytes_per_token": ceil(plan.marginal_bytes_per_token),
    }


def _range(likely: int, *ends: int) -> list[int]:
    """[low, likely, high]."""
    return [min(likely, *ends), likely, max(likely, *ends)]


def refusal_document(engine: Engine, model: "Architecture", args: Any, refusal: Refusal) -> dict[str, Any]:
    """The document of a plan that does not start: the refusal, and what the stages before it settled."""
    settled = {name: value for name, value in refusal.outputs.items() if name not in ("log", "rest")}
    given = args.given()
    return {
        **_head(engine, model, engine.release(args.engine_version), given, launch_of(engine, model, given)),
        "starts": False,
        "refusal": {"rule": refusal.rule, "stage": refusal.stage, "reason": refusal.reason, "fix": refusal.fix},
        **dict.fromkeys(FIGURES),
        "budget": [],
        "findings": [Finding(refusal.rule, "error", refusal.reason, refusal.fix).to_dict()],
        "suggestions": [],
        "log_lines": refusal.outputs.get("log", []),
        "notes": [],
        "steps": [],
        "engine_figures": settled,
    }


def launch_of(engine: Engine, model: "Architecture", given: dict[str, Any]) -> dict[str, Any]:
    """``argv`` and ``env`` of the command that asks the engine for the arguments that were given."""
    return launch_named(engine, engine.file_of(model), given)


def launch_named(engine: Engine, model: str, given: dict[str, Any]) -> dict[str, Any]:
    """The same of a model by its name or path."""
    argv = list(engine.command(model))
    for name, value in given.items():
        for flag in engine.typed(name, given) if value is not None else ():
            spelling = engine.spelt(flag.spellings[0], given.get("engine_version"))
            if flag.kind in ("flag", "switch"):
                off = (f"--no-{spelling.removeprefix('--')}",) if flag.kind == "switch" else ()
                argv += (spelling,) if value else off
            else:
                shown = json.dumps(value) if flag.kind == "json" or isinstance(value, bool) else f"{value}"
                argv += (spelling, shown)
    return {"argv": argv, "env": dict(given.get("env", {}))}


def _head(
    engine: Engine, model: "Architecture", version: str, given: dict[str, Any], launch: dict[str, Any]
) -> dict[str, Any]:
    return {
        "engine": engine.name,
        "engine_version": version,
        "model": model.name,
        "launch": own(launch),
        "arguments": own(given),
    }


def _fraction(engine: Engine, args: Any, rest: Rest) -> dict[str, Any]:
    if rest.fraction is None:
        return engine.fraction(args)
    return {"fraction": rest.fraction, "fraction_from": f"{engine.title}'s default"}


def memory_document(engine: Engine, args: Any, rest: Rest) -> dict[str, Any]:
    """What one GPU holds; null for what the plan was not told."""
    others = dict(rest.others)
    weights = others.pop("weights", None)
    return {
        "gpu": rest.gpu,
        "total_gib": rest.total_gib,
        "weights_gib": next((part.to_dict()["gib"] for part in rest.parts if part.name == WEIGHTS_NAME), weights),
        "weights_from": rest.weights_from if weights is not None else None,
        "reserved_gib": sum(others.values()) if HEADROOM in others else None,
        **_fraction(engine, args, rest),
        "rest_gib": rest.likely_gib if rest.exact else [rest.low_gib, rest.likely_gib, rest.high_gib],
        "why": rest.why,
        "parts": [part.to_dict() for part in rest.parts],
    }
