"""What is to be said of one deployment? Its words read by its engine, the rules run, each finding put at its place.

Unknown words are set aside first: those that a sizing flag takes are reported, and no rule is judged on a guess. A flag
the engine does not take is a finding (HC071) and is left out of what follows.
"""

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import (
    find_preset,
    from_preset,
    in_hub_cache,
    is_path,
    load_model,
    preset_at_end,
    shipped_presets,
)
from hybridcalc.checks import EXPECT, Checked, Located, Open, Value, judged_rules
from hybridcalc.checks.answer import Answered, Known, answer, card_of, certain, of_all, of_each
from hybridcalc.checks.forks import fork_of, refused
from hybridcalc.checks.settings import Settings
from hybridcalc.checks.typed import misnamed_flags, orphaned, retired_names
from hybridcalc.checks.words import (
    Words,
    environment,
    image_place,
    located_at,
    place_finding,
    read,
    sort_out,
    values_of,
)
from hybridcalc.deployment import Workload
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.errors import HybridcalcError, InputError, NotModelled, printable, with_release
from hybridcalc.findings import Finding, settled
from hybridcalc.manifests import Deployment
from hybridcalc.shell.flags import values_after
from hybridcalc.units import percent_text


def judge(deployment: Deployment, settings: Settings) -> Checked:
    """Run the rules on a deployment. Raises nothing for what a file may hold."""
    engine = ENGINES[deployment.engine]
    words = sort_out(deployment, engine)
    env, more = environment(deployment, engine)
    words.opened.extend(more)
    findings: list[Located] = []
    native = deployment.native
    version = native.engine_version if native is not None else None
    version = version or settings.versions.get(deployment.engine)
    assumed = "" if version else ENGINES.assumed(deployment.launch)
    version = version or ENGINES.release(deployment.launch)
    if version is not None and engine.knows(version):
        assumed = engine.newer(version)
    model_name, args = read(deployment, engine, words, env, version, findings)
    findings += misnamed_flags(deployment, engine, words, version)
    findings += retired_names(deployment, engine, words, version)
    if deployment.orphan is not None:
        findings.append(orphaned(deployment, deployment.orphan))
    values = tuple(values_of(words))
    variant = next((name for flag, name in engine.variants.items() if flag in words.kept), None)
    model = _model(deployment, engine, words, model_name, settings)
    architecture = model.architecture
    words.opened.extend(model.opened)
    known = _memory(deployment, settings)
    workload = (
        native.workload.workload if native is not None and native.workload.workload != Workload() else settings.workload
    )
    waiting: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes = [*model.notes, *filter(None, (assumed,))]
    if variant is not None:
        notes.append(f"{variant} has flags of its own, which are not known here: no flag is called unknown")
    if fork := fork_of(deployment, engine):
        notes.append(f"its image is of {fork}: what it shares with {engine.title} is judged, its own flags are not")
    unsure = {item.flag for item in words.opened if item.flag} | words.refused
    if args is not None:
        card = card_of(known.gpu)
        args = engine.seeing(args, deployment.hardware.gpus or (card is not None and card.cards) or 1)
        findings += _node_holds(deployment, known.gpu)
        findings += _gpu_count(deployment, engine, args, words, unsure, known.gpu)
    if args is None:
        waiting = (("all", ("flags that can be read",)),)
    elif architecture is None:
        text = f"a model known here ({printable((model_name or model.name or 'none is named')[:60])})"
        waiting = (("all", (text,)),)
    else:
        try:
            guessed = bool(words.opened or words.refused)
            copies, each = deployment.replicas, of_each(workload, deployment.replicas, args)
            said = answer(engine, architecture, args, Known() if guessed else known, each)
            answered = of_all(said, engine, workload, copies, args)
        except NotModelled as error:  # that is about this library, not about the deployment
            answered = Answered((), (("all", (f"rules for {error.lacking}",)),))
        except HybridcalcError as error:
            answered = Answered((refused(error, engine, deployment.image),), ())
        answered = _of_any_ranks(answered, deployment, engine, words)
        opened = [*(item.text for item in words.opened), *sorted(words.refused)]
        typed = frozenset(words.given) if words.free else None
        answered = certain(answered, judged_rules(engine.name), unsure, opened, typed)
        findings += [
            located_at(finding, tagged, deployment)
            if finding.release and _tagged(deployment) and (tagged := image_place(deployment)) is not None
            else place_finding(finding, deployment, words.given)
            for finding in answered.findings
        ]
        told = settled(judged_rules(engine.name), (item.finding.rule for item in findings))
        findings = [
            item._replace(finding=_versioned(item.finding, deployment))
            for item in findings
            if item.finding.rule not in told
        ]
        waiting = answered.waiting
        if native is not None:
            findings += _expectations(deployment, native.expect, answered, words)
            unheld = _unheld(native.expect, answered)
            waiting += unheld
            if not words.opened:
                words.opened.extend(_unjudged(deployment, [item for item in unheld if settings.counts(item[0])]))
    return _checked(
        deployment,
        model.name,
        model.preset,
        values,
        words.opened,
        findings,
        waiting,
        settings,
        env=tuple(sorted(env.items())),
        gpu=known.gpu or deployment.hardware.label,
        notes=tuple(notes),
        version=engine.release(version) if version is None or engine.knows(version) else version,
        assumed_release=assumed,
    )


def _tagged(deployment: Deployment) -> bool:
    """Whether the tag of its image says the release of a deployment."""
    return not deployment.launch.release and ENGINES.launchers.image_version(deployment.image) is not None


def _versioned(finding: Finding, deployment: Deployment) -> Finding:
    """A fix that names a release, as a deployment file can follow it: by the image's tag."""
    tag = " (the tag of its image)" if _tagged(deployment) else f" of {deployment.engine}"
    fix = finding.fix.replace(with_release(finding.release), f"run release {finding.release}{tag}")
    return finding._replace(fix=fix)


def _checked(
    deployment: Deployment,
    model: str | None,
    preset: str | None,
    values: tuple[Value, ...],
    opened: Sequence[Open],
    findings: Sequence[Located],
    waiting: tuple[tuple[str, tuple[str, ...]], ...],
    settings: Settings,
    *,
    env: tuple[tuple[str, str], ...] = (),
    gpu: str | None = None,
    notes: tuple[str, ...] = (),
    version: str = "",
    assumed_release: str = "",
) -> Checked:
    kept = []
    for item in findings:
        rule = item.finding.rule
        if settings.counts(rule):
            severity = settings.severity.get(rule, item.finding.severity)
            kept.append(item._replace(finding=item.finding._replace(severity=severity)))
    return Checked(
        deployment.path,
        deployment.place.line,
        deployment.kind,
        deployment.name,
        deployment.engine,
        model,
        preset,
        values,
        tuple(item._replace(deployment=deployment.name) for item in opened),
        tuple(kept),
        tuple((rule, needs) for rule, needs in waiting if rule == "all" or settings.counts(rule)),
        env,
        gpu,
        deployment.hardware.gpus,
        deployment.hardware.nodes,
        deployment.replicas,
        notes,
        version,
        tuple(sorted(deployment.launch.assumed)),
        assumed_release,
    )


_MODEL_NAME = re.compile(r"(?=[^0-9]*[0-9])[A-Za-z][\w.]*(-[\w.]+)+")
"""A name as models have it, with their size or version, and not as a folder of any model has it."""


def _last_part(path: str) -> str:
    return path.replace("\\", "/").rstrip("/").rpartition("/")[2]


class _Model(NamedTuple):
    """The model a deployment serves: as it is named, its preset or file, what it stores, and what is open or noted."""

    name: str | None
    preset: str | None = None
    architecture: Architecture | None = None
    opened: tuple[Open, ...] = ()
    notes: tuple[str, ...] = ()


def _model(deployment: Deployment, engine: Engine, words: Words, named: str | None, settings: Settings) -> _Model:
    """The model that a flag, the file or the served name says, else the end of a path; no file of the host is read for
    it, but what the settings or a hybridcalc.yaml name themselves.
    """
    hint = str(deployment.model) if deployment.model is not None else None
    served = values_after(words.kept, ("--served-model-name", "--served_model_name"))
    for candidate in (named, hint, *served, settings.models.get("*")):
        if candidate is None:
            continue
        said = settings.models.get(candidate, candidate).removeprefix("hf://")
        found = find_preset(said)
        if found is not None:
            own = said.rstrip("/").rpartition("/")[2] if is_path(said) else said
            return _Model(said, found[0], from_preset(shipped_presets()[found[0]], reading=found[1], asked=own))
        own = os.path.join(os.path.dirname(deployment.path), said) if deployment.native is not None else said
        if said in settings.models.values() or (deployment.native is not None and is_path(said)):
            try:
                return _Model(said, said, load_model(own))
            except HybridcalcError:
                continue
    for text in (named, hint):
        tail = preset_at_end(text) if text is not None and is_path(text) else None
        if tail is not None:
            taken = from_preset(shipped_presets()[tail.preset], asked=tail.name)
            return _Model(text, tail.preset, taken, notes=(tail.note,))
    text = in_hub_cache(named or hint or "") or None
    if text is not None and hint is not None and is_path(text) and not _MODEL_NAME.fullmatch(_last_part(text)):
        text = hint  # what is mounted where the flag looks for it
    already = any(item.flag == engine.model_flag for item in words.opened)
    plain = [name for name in (text, *served) if name is not None and not is_path(name)]
    last = _last_part(text or "")
    if text is not None and is_path(text) and (_MODEL_NAME.fullmatch(last) or any(map(_MODEL_NAME.search, plain))):
        named = next(filter(_MODEL_NAME.search, plain), last)
        return _Model(
            named, notes=(f"no preset is named {printable(named[:60])}, as the model's path or served name is",)
        )
    if text is None and engine.serves_any(words.kept):
        return _Model(None, notes=("it serves whatever model a request names: --model PRESET judges it with one",))
    if (text is not None and not is_path(text)) or already:
        return _Model((text or "").removeprefix("hf://") or None)
    flag = words.given.get(engine.model_flag)
    stands = (flag.value or flag.flag) if flag is not None else next((w for w in deployment.words if w == named), None)
    place = deployment.place if stands is None else stands.place
    why = "no preset has the name of this path's last part" if text else "no flag names the model"
    fix = f"give --model {text[:60]}=PRESET" if text else "give --model PRESET"
    shown = printable((text or "the model")[:80])
    return _Model(text, opened=(Open(shown, engine.model_flag, why, fix, *place[:3]),))


def _memory(deployment: Deployment, settings: Settings) -> Known:
    native = deployment.native.hardware if deployment.native is not None else None
    label = deployment.hardware.label
    gpu = label
    if label is None or native is None:
        gpu = _certain_gpu(label) or settings.gpu or _unclear(label)
    if native is not None and (native.rest or native.available or native.weights):
        return Known(gpu, native.weights or settings.weights, native.rest, native.available)
    return Known(gpu, settings.weights, settings.rest, settings.available)


def _certain_gpu(label: str | None) -> str | None:
    """The GPU that a label names for certain."""
    if label is None:
        return None
    from hybridcalc.hardware import gpu_of_label

    return gpu_of_label(label)


def _unclear(label: str | None) -> str | None:
    """A label that names no GPU for certain, so that no preset of that name is taken for it."""
    return f"{printable(label[:40])}, of which there are several" if label is not None else None


def _node_holds(deployment: Deployment, named: str | None) -> list[Located]:
    """More GPUs than a node of that card holds, where one alone is asked for them."""
    hardware, card = deployment.hardware, card_of(named)
    if hardware.nodes > 1 or hardware.gpus is None or card is None:
        return []
    from hybridcalc.hardware import beyond_node

    many, place = beyond_node(hardware.gpus, card), hardware.gpus_place or deployment.place
    return [] if many is None else [located_at(Finding("HC081", "warning", *many), place, deployment)]


def _gpu_count(
    deployment: Deployment, engine: Engine, args: Any, words: Words, unsure: set[str], named: str | None
) -> list[Located]:
    """Ranks against the GPUs that are asked for, or those that are named (8xh200)."""
    hardware, card = deployment.hardware, card_of(named)
    gpus = hardware.gpus if hardware.gpus is not None or card is None else card.cards
    elsewhere = any(word.partition("=")[0] in ELSEWHERE or word == "ray" for word in words.kept)
    if gpus is None or not engine.ranked or words.free or elsewhere or unsure & PARALLEL:
        return []
    nodes, said = hardware.nodes, "".join(values_after(words.kept, ("--nnodes",)))
    if nodes == 1 and any(word.startswith("--nnodes") for word in deployment.words) and not said.isdecimal():
        return []
    try:
        ranks = engine.ranks(args)
    except InputError:
        return []
    held = gpus * nodes
    if ranks > held and nodes == 1 and _CLUSTER.search(deployment.source.text):
        return []  # other nodes join it, which nothing here counts
    from hybridcalc.hardware import few_in_words, gpus_in_words, idle_in_words

    of = f"{nodes} x {gpus_in_words(gpus)}" if nodes > 1 else gpus_in_words(gpus)
    if ranks > held:
        finding = Finding(
            "HC070",
            "error",
            few_in_words(ranks, of),
            f"ask for {gpus_in_words(-(-ranks // nodes))} a node, or run fewer ranks",
        )
        return [place_finding(finding, deployment, words.given)]
    if ranks < held and gpus != 0 and deployment.replicas != 0:
        fix = f"ask for {gpus_in_words(-(-ranks // nodes))} a node"
        finding = Finding("HC073", "note", idle_in_words(ranks, of), fix)
        if hardware.gpus_place is not None:
            return [located_at(finding, hardware.gpus_place, deployment)]
        if hardware.gpus is None:
            return [place_finding(finding, deployment, words.given)]
    return []


ELSEWHERE = frozenset({
    "--data-parallel-size-local", "--data-parallel-address", "--data-parallel-rank", "--data-parallel-start-rank",
    "--data-parallel-hybrid-lb", "--data-parallel-external-lb", "--headless",
})  # fmt: skip
"""Flags with which some of the ranks run in other pods."""
_CLUSTER = re.compile(r"\bray start\b|\bray_cluster_size\b")
"""How a script begins a cluster that other nodes join."""
PARALLEL = frozenset({
    "--tp-size", "--pp-size", "--dp-size", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
    "--attn-dp-size", "--enable-dp-attention",
})  # fmt: skip
"""Flags that say how many ranks there are."""


def _of_any_ranks(answered: Answered, deployment: Deployment, engine: Engine, words: Words) -> Answered:
    """What is said of a list of flags that is a part of a launch: its ranks, named elsewhere, are not one."""
    refused = any(finding.rule == engine.indivisible[1] for finding in answered.findings)
    if deployment.kind != "flags" or not refused or PARALLEL & words.given.keys():
        return answered
    why, fix = "these flags are a part of a launch, and name no ranks", "give the whole launch"
    flag = next(name for name in ("--tensor-parallel-size", "--tp-size") if name in engine.flags.by_spelling)
    words.opened.append(Open("the number of ranks", flag, why, fix, *deployment.place[:3]))
    return Answered((), (("all", (why,)),))


def _unheld(expect: Any, answered: Answered) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Expectations that nothing is known to hold against."""
    if answered.refused or (answered.plan is not None and answered.plan.idle_percent is not None):
        return ()
    missing = answered.missing or ("the length of requests",)
    rules = ["HC077"] if answered.plan is not None else list(EXPECTED)
    return tuple((rule, missing) for rule in rules if getattr(expect, EXPECTED[rule]) is not None)


def _unjudged(deployment: Deployment, unheld: Sequence[tuple[str, tuple[str, ...]]]) -> Iterator[Open]:
    """Expectations that wait for a figure: they are not met as long as nobody knows."""
    for rule, missing in unheld:
        place = deployment.marks.get(EXPECTED[rule], deployment.place)
        needs = ", ".join(missing)
        yield Open(f"expect: {EXPECTED[rule]}", EXPECT, "figures are missing", f"give {needs}", *place[:3])


def _expectations(deployment: Deployment, expect: Any, answered: Answered, words: Words) -> list[Located]:
    """What a native file expects, against the plan."""
    found: list[Finding] = []
    plan = answered.plan
    if expect.fits is not None and (plan is not None or answered.refused) and expect.fits == answered.refused:
        said = "does not start" if answered.refused else "starts, and is expected not to"
        found.append(Finding("HC074", "error", f"{deployment.name or 'the deployment'} {said}"))
    if plan is not None:
        if expect.min_requests is not None and plan.requests < expect.min_requests:
            found.append(
                Finding("HC075", "error", f"{plan.requests:,} requests run, {expect.min_requests:,} are expected")
            )
        if expect.min_tokens is not None and plan.tokens < expect.min_tokens:
            found.append(Finding("HC076", "error", f"{plan.tokens:,} KV tokens, {expect.min_tokens:,} are expected"))
        if (
            expect.max_idle_percent is not None
            and plan.idle_percent is not None
            and plan.idle_percent > expect.max_idle_percent
        ):
            found.append(
                Finding(
                    "HC077",
                    "error",
                    f"{percent_text(plan.idle_percent)} % of a pool idles, {expect.max_idle_percent:g} % are allowed",
                )
            )
    located = []
    for finding in found:
        place = deployment.marks.get(EXPECTED[finding.rule])
        located.append(
            place_finding(finding, deployment, words.given) if place is None else located_at(finding, place, deployment)
        )
    return located


EXPECTED = {"HC074": "fits", "HC075": "min_requests", "HC076": "min_tokens", "HC077": "max_idle_percent"}
"""Rule -> the expectation it holds."""
