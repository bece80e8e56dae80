"""SGLang, asked by checks: what its flags alone decide, and its plan where the memory left is known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.checks.doors import Answer, Door, Figures, Memory, behind, refusal_finding, still_waiting
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.sglang.command import TABLE, from_words
from hybridcalc.engines.sglang.config import KNOWN_ENVIRONMENT, ServerArgs
from hybridcalc.engines.sglang.memory import rest_from_gpu
from hybridcalc.engines.sglang.releases import NEWEST_VERSION, rules_for
from hybridcalc.engines.sglang.rules import RULES
from hybridcalc.engines.sglang.server_plan import plan
from hybridcalc.engines.sglang.without_memory import MEMORY, decide
from hybridcalc.errors import InputError, Refusal
from hybridcalc.hardware import find_gpu
from hybridcalc.units import GIB, parse_bytes

REFUSALS = frozenset(rule.id for rule in RULES if rule.check is None)


def read(words: Sequence[str], env: Mapping[str, str], version: str | None) -> tuple[str | None, ServerArgs]:
    """Model and arguments of a launch."""
    model, args = from_words(words, env)
    return model, args if version is None else replace(args, engine_version=version)


def answer(model: Architecture, args: ServerArgs, known: Memory, workload: Workload) -> Answer:
    """What is to be said of these arguments."""
    decided = decide(model, args, workload)
    refusing = next((finding.rule for finding in decided.findings if finding.rule in REFUSALS), None)
    if refusing is not None:
        return Answer(decided.findings, behind(refusing), refused=True)
    try:
        rest, missing = _rest(model, args, known)
        if rest is None:
            return Answer(decided.findings, still_waiting(decided.waiting, MEMORY, missing))
        planned = plan(model, args, rest=rest, workload=workload)
    except Refusal as refusal:
        said = refusal_finding(refusal)
        again = any(finding.rule == said.rule for finding in decided.findings)
        return Answer((*decided.findings, *(() if again else (said,))), behind(said.rule), refused=True)
    own = {finding.rule for finding in decided.findings}
    settled = {"HC023", "HC013"} if "HC002" in own else set()
    more = tuple(finding for finding in planned.findings if finding.rule not in own | settled)
    idle = planned.capacity.idle_percent if workload.lengths else None
    figures = Figures(planned.concurrency * args.attn_dp_size, planned.logical_token_capacity, idle)
    return Answer((*decided.findings, *more), still_waiting(decided.waiting, MEMORY, ()), figures)


def _rest(model: Architecture, args: ServerArgs, known: Memory) -> tuple[Rest | None, list[str]]:
    """The memory left, or the figures that are missing for it."""
    if known.rest is not None:
        return exact_rest(parse_bytes(known.rest) / GIB), []
    wanted = {
        "the GPU": known.gpu,
        "the weights on a rank": known.weights,
        "--mem-fraction-static": args.mem_fraction_static,
    }
    missing = [name for name, value in wanted.items() if value is None]
    if missing or known.gpu is None or known.weights is None:
        return None, missing
    try:
        card = find_gpu(known.gpu)
    except InputError:
        return None, [f"a GPU known here ({known.gpu[:40]})"]
    return rest_from_gpu(card, parse_bytes(known.weights) / GIB, model, args), []


def ranks(args: ServerArgs) -> int:
    """GPUs a server takes: data-parallel workers beside attention workers have ranks of their own."""
    return args.tp_size * args.pp_size * (1 if args.enable_dp_attention else args.dp_size)


DOOR = Door(TABLE, KNOWN_ENVIRONMENT, read, answer, ranks, "--model-path", NEWEST_VERSION, rules_for)
