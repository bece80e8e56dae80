"""vLLM, asked by checks: what its flags alone decide, and its plan where the memory for its cache is known."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.checks.doors import Answer, Door, Figures, Memory, behind, refusal_finding, still_waiting
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.vllm.command import TABLE, from_words
from hybridcalc.engines.vllm.config import KNOWN_ENVIRONMENT, EngineArgs
from hybridcalc.engines.vllm.memory import rest_from_flag, rest_from_gpu
from hybridcalc.engines.vllm.releases import NEWEST_VERSION, rules_for
from hybridcalc.engines.vllm.rules import RULES
from hybridcalc.engines.vllm.server_plan import plan
from hybridcalc.engines.vllm.without_memory import MEMORY, decide
from hybridcalc.errors import InputError, Refusal
from hybridcalc.hardware import Gpu, find_gpu
from hybridcalc.units import GIB, parse_bytes

REFUSALS = frozenset(rule.id for rule in RULES if rule.check is None)


def read(words: Sequence[str], env: Mapping[str, str], version: str | None) -> tuple[str | None, EngineArgs]:
    """Model and arguments of a launch."""
    model, args = from_words(words, env)
    return model, args if version is None else replace(args, engine_version=version)


def answer(model: Architecture, args: EngineArgs, known: Memory, workload: Workload) -> Answer:
    """What is to be said of these arguments."""
    card = _card(known)
    if card is not None:
        args = replace(args, gpu_memory_gib=card.gib, gpu_capability=card.capability or args.gpu_capability)
    decided = decide(model, args, workload)
    refusing = next((finding.rule for finding in decided.findings if finding.rule in REFUSALS), None)
    if refusing is not None:
        return Answer(decided.findings, behind(refusing), refused=True)
    try:
        rest, missing = _rest(args, known, card)
        if rest is None and decided.bytes_of_override is None:
            return Answer(decided.findings, still_waiting(decided.waiting, MEMORY, missing))
        planned = plan(model, args, rest=rest, available_bytes=decided.bytes_of_override, workload=workload)
        findings = planned.findings
    except Refusal as refusal:
        said = refusal_finding(refusal)
        again = any(finding.rule == said.rule for finding in decided.findings)
        return Answer((*decided.findings, *(() if again else (said,))), behind(said.rule), refused=True)
    idle = planned.running.idle_percent if workload.lengths else None
    figures = Figures(planned.concurrency, planned.kv_cache_size_tokens, idle)
    return Answer(findings, still_waiting(decided.waiting, MEMORY, ()), figures)


def _card(known: Memory) -> Gpu | None:
    try:
        return find_gpu(known.gpu) if known.gpu is not None else None
    except InputError:
        return None


def _rest(args: EngineArgs, known: Memory, card: Gpu | None) -> tuple[Rest | None, list[str]]:
    """The memory for the cache, or the figures that are missing for it."""
    if args.num_gpu_blocks_override is not None:
        return None, []
    if known.available is not None:
        return exact_rest(parse_bytes(known.available) / GIB), []
    flagged = rest_from_flag(args)
    if flagged is not None:
        return flagged, []
    wanted = {"the GPU": card, "the weights on a rank": known.weights}
    missing = [name for name, value in wanted.items() if value is None]
    if card is None or known.weights is None:
        return None, missing
    return rest_from_gpu(card, parse_bytes(known.weights) / GIB, args), []


def ranks(args: EngineArgs) -> int:
    """GPUs a server takes."""
    return args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size


DOOR = Door(TABLE, KNOWN_ENVIRONMENT, read, answer, ranks, "--model", NEWEST_VERSION, rules_for)
