"""What is to be said of one deployment? Its words read by its engine, the rules run, each finding put at its place.

Unknown words are set aside first: those that a sizing flag takes are reported, and no rule is judged on a guess. A flag
the engine does not take is a finding (HC071) and is left out of what follows.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import find_preset, from_preset, load_model, shipped_presets
from hybridcalc.checks.doors import Answer, Door, Memory, door
from hybridcalc.checks.results import Checked, Edit, Located, Open, Value
from hybridcalc.checks.rules import RETIRED
from hybridcalc.checks.settings import Settings
from hybridcalc.deployment import Workload
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.findings import Finding
from hybridcalc.manifests.gpus import gpu_of
from hybridcalc.manifests.records import Deployment
from hybridcalc.manifests.source import AnyWord, Place, Source, Unknown, Word

MOST_REFUSED = 20
NO_VALUE = re.compile(r"--(no-|enable-|disable-|skip-|trust-|allow-|return-|is-|show-|use-|log-requests$|enforce-)")
"""Flags that no plan needs and that take no value, as far as their names tell."""
_FREE = re.compile(r"\$\{?[A-Za-z_]\w*\[[@*]\]|\$[@*]|\$\{[@*]")
_FLAG = re.compile(r"--[a-z][a-z0-9-]*")
_NUMBER = re.compile(r"write ([0-9][0-9.,]*)(?=$|,|;| )")
_WRITE = re.compile(r"write (--[a-z][a-z0-9-]*) (\S+)$")
PLACES = {
    "HC001": ("--mem-fraction-static", "--max-mamba-cache-size", "--mamba-full-memory-ratio"),
    "HC002": ("--max-mamba-cache-size", "--max-running-requests"),
    "HC003": ("--mamba-radix-cache-strategy", "--disable-overlap-schedule", "--linear-attn-backend"),
    "HC004": ("--page-size",), "HC005": ("--mamba-track-interval", "--speculative-num-draft-tokens"),
    "HC006": ("--linear-replayssm-cache-len", "--enable-linear-replayssm", "--enable-linear-replayssm-spec"),
    "HC009": ("--tp-size",), "HC013": ("--max-mamba-cache-size",), "HC014": ("--mamba-full-memory-ratio",),
    "HC018": ("--speculative-algorithm",), "HC019": ("--dcp-size",), "HC020": ("--enable-linear-replayssm-spec",),
    "HC021": ("--pp-size",), "HC022": ("--context-length",), "HC023": ("--max-running-requests",),
    "HC040": ("--gpu-memory-utilization", "--kv-cache-memory-bytes"), "HC041": ("--max-model-len",),
    "HC042": ("--mamba-cache-mode",), "HC044": ("--max-num-seqs",), "HC045": ("--prefix-match-unit",),
    "HC046": ("--mamba-ssm-cache-dtype", "--speculative-config"), "HC047": ("--block-size",),
    "HC048": ("--prefix-cache-retention-interval",), "HC050": ("--tensor-parallel-size",),
    "HC055": ("--prefix-match-unit",), "HC056": ("--block-size",), "HC057": ("--block-size",),
    "HC058": ("--kv-cache-dtype",), "HC060": ("--max-num-seqs",), "HC062": ("--max-model-len",),
    "HC063": ("--max-num-seqs",), "HC065": ("--mamba-cache-mode",), "HC066": ("--mamba-ssm-cache-dtype",),
    "HC070": ("--tp-size", "--tensor-parallel-size"), "HC073": ("--tp-size", "--tensor-parallel-size"),
}  # fmt: skip
"""Rule -> the flags it is about, the first that is given counts."""


class Given(NamedTuple):
    """A sizing flag of a launch with its value; ``name`` is the engine's own spelling."""

    name: str
    flag: AnyWord
    value: AnyWord | None
    joined: bool = False


class _Words(NamedTuple):
    """The words of a launch, the unknown ones set aside."""

    kept: list[Word]
    given: dict[str, Given]
    opened: list[Open]
    free: bool
    refused: set[str]


def judge(deployment: Deployment, settings: Settings) -> Checked:
    """Run the rules on a deployment. Raises nothing for what a file may hold."""
    engine = door(deployment.engine)
    name = deployment.name
    words = _sorted_out(deployment, engine)
    env, more = _environment(deployment, engine)
    words.opened.extend(more)
    findings: list[Located] = []
    native = deployment.native
    version = native.engine_version if native is not None else None
    version = version or getattr(settings, f"{deployment.engine}_version")
    model_name, args = _read(deployment, engine, words, env, version, findings)
    findings += _retired(deployment, words)
    values = tuple(_values(words))
    preset, architecture, opened = _model(deployment, engine, words, model_name, settings)
    words.opened.extend(opened)
    hardware = deployment.hardware
    known = _memory(deployment, settings)
    workload = native.workload.workload if native is not None and native.workload.workload != Workload() else settings.workload
    waiting: tuple[tuple[str, tuple[str, ...]], ...] = ()
    notes: list[str] = []
    unsure = {item.flag for item in words.opened if item.flag} | words.refused
    if args is not None:
        findings += _gpu_count(deployment, engine, args, words, unsure)
    if args is None:
        waiting = (("all", ("flags that can be read",)),)
    elif architecture is None:
        text = f"a model known here ({(model_name or 'none is named')[:60]})"
        waiting = (("all", (text,)),)
    elif architecture.state is None:
        notes.append(f"{architecture.name} has no recurrent state: nothing to check")
    else:
        try:
            guessed = bool(words.opened or words.refused)
            answer = engine.answer(architecture, args, Memory() if guessed else known, workload)
        except HybridcalcError as error:
            answer = Answer((Finding("HC071", "error", error.message, error.fix),), ())
        answer = _certain(answer, unsure, [*(item.text for item in words.opened), *sorted(words.refused)])
        findings += [_located(finding, deployment, words) for finding in answer.findings]
        waiting = answer.waiting
        if native is not None:
            findings += _expectations(deployment, native.expect, answer, words)
    return _checked(
        deployment, model_name, preset, values, words.opened, findings, waiting, settings,
        env=tuple(sorted(env.items())), gpu=known.gpu or hardware.label, notes=tuple(notes), name=name,
    )  # fmt: skip


def _checked(
    deployment: Deployment, model: str | None, preset: str | None, values: tuple[Value, ...], opened: Sequence[Open],
    findings: Sequence[Located], waiting: tuple[tuple[str, tuple[str, ...]], ...], settings: Settings, *,
    env: tuple[tuple[str, str], ...] = (), gpu: str | None = None, notes: tuple[str, ...] = (), name: str = "",
) -> Checked:  # fmt: skip
    kept = []
    for located in findings:
        rule = located.finding.rule
        if settings.counts(rule):
            severity = settings.severity.get(rule, located.finding.severity)
            kept.append(located._replace(finding=located.finding._replace(severity=severity)))
    return Checked(
        deployment.path, deployment.place.line, deployment.kind, deployment.name, deployment.engine, model, preset,
        values, tuple(item._replace(deployment=deployment.name) for item in opened), tuple(kept),
        tuple((rule, needs) for rule, needs in waiting if rule == "all" or settings.counts(rule)), env, gpu,
        deployment.hardware.gpus, deployment.hardware.nodes, deployment.replicas, notes,
    )  # fmt: skip


def _sorted_out(deployment: Deployment, engine: Door) -> _Words:
    """The words an engine can read, the sizing flags among them, and what is unknown."""
    kept: list[Word] = []
    given: dict[str, Given] = {}
    opened: list[Open] = []
    free = False
    words = list(deployment.words)
    at = 0
    before: str | None = None
    if words and not words[0].startswith("-"):
        first = words[0]
        if isinstance(first, Unknown) and not _FREE.search(first):
            opened.append(_open(first, engine.model_flag))
            words, at = words[1:], 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, _ = word.partition("=")
        sized = engine.table.known(name) if word.startswith("-") else None
        if isinstance(word, Unknown) and sized is None:
            if word.startswith("--") and equals:  # a flag of no account
                before = None
            elif before is not None and not _FREE.search(word) and not NO_VALUE.match(before):
                before = None  # the value of one
            else:
                free = True
                opened.append(_open(word, ""))
            continue
        if sized is None:
            before = word if word.startswith("-") and not equals else before if word.startswith("-") else None
            if name in engine.table.files:
                value = words[at] if not equals and at < len(words) else word
                opened.append(_open_file(word, value, name))
                at += 0 if equals else 1
                continue
            if isinstance(word, Word):
                kept.append(word)
            continue
        before = None
        spelling, switch = sized.spellings[0], sized.kind in ("flag", "switch")
        if isinstance(word, Unknown):
            opened.append(_open(word, spelling))
            continue
        if equals or switch or at == len(words) or _is_flag(words[at]):
            kept.append(word)
            given[spelling] = Given(spelling, word, None, bool(equals))
            continue
        value = words[at]
        at += 1
        if isinstance(value, Unknown):
            opened.append(_open(value, spelling))
            given.pop(spelling, None)
        else:
            kept += (word, value)
            given[spelling] = Given(spelling, word, value)
    return _Words(kept, given, opened, free, set())


def _is_flag(word: str) -> bool:
    return re.match(r"-(?![0-9.])", word) is not None


def _open(word: Unknown, flag: str) -> Open:
    place = word.place
    return Open(str(word)[:80], flag, word.why, place.path, place.line, place.column)


def _open_file(word: AnyWord, value: AnyWord, name: str) -> Open:
    place = word.place
    text = value.partition("=")[2] or str(value)
    return Open(text[:80], name, "the file is not among those that were read", place.path, place.line, place.column)


def _environment(deployment: Deployment, engine: Door) -> tuple[dict[str, str], list[Open]]:
    env: dict[str, str] = {}
    opened: list[Open] = []
    for name in sorted(engine.environment & deployment.env.keys()):
        setting = deployment.env[name]
        if setting.text is not None:
            env[name] = setting.text
        else:
            place = setting.place or deployment.place
            opened.append(Open(f"${name}", name, setting.reason, place.path, place.line, place.column))
    return env, opened


def _read(
    deployment: Deployment, engine: Door, words: _Words, env: Mapping[str, str], version: str | None,
    findings: list[Located],
) -> tuple[str | None, Any]:  # fmt: skip
    """The model and the arguments; flags that the engine refuses are reported and left out."""
    for _ in range(MOST_REFUSED):
        try:
            return engine.read(words.kept, env, version)
        except InputError as error:
            at = _word_of(error.message, words.kept)
            finding = Finding("HC071", "error", error.message, error.fix)
            if at is None:
                findings.append(_at(finding, deployment.place, deployment))
                return None, None
            word = words.kept[at]
            flag = engine.table.known(word.partition("=")[0])
            until = at + 1
            while until < len(words.kept) and not words.kept[until].startswith("-"):
                until += 1
            shown = words.kept[at + 1] if until > at + 1 else word
            findings.append(_at(finding, shown.place, deployment, edit=_spelling_edit(error.fix, word)))
            if flag is not None:
                words.given.pop(flag.spellings[0], None)
                words.refused.add(flag.spellings[0])
            del words.kept[at:until]
    return None, None


def _word_of(message: str, words: Sequence[Word]) -> int | None:
    """The word a message speaks of: a flag it names, or a text it quotes."""
    for name in re.findall(r"-{1,2}[\w-]+", message):
        for at in range(len(words) - 1, -1, -1):
            if words[at].partition("=")[0] == name or (len(name) > 30 and words[at].startswith(name)):
                return at
    for quoted in re.findall(r"'([^']+)'", message):
        for at, word in enumerate(words):
            if word == quoted or (quoted.endswith("...") and word.startswith(quoted[:-3])):
                return at
    return None


def _spelling_edit(fix: str, word: Word) -> Edit | None:
    match = re.fullmatch(r"write (--[a-z][a-z0-9-]*)", fix)
    name, equals, _ = word.partition("=")
    if match is None or not name.startswith("--") or equals:
        return None
    return _edit(word.place, word.source, str(word), match[1])


def _retired(deployment: Deployment, words: _Words) -> list[Located]:
    found = []
    for word in words.kept:
        name, equals, _ = word.partition("=")
        if name in RETIRED and deployment.engine == "sglang":
            finding = Finding("HC072", "note", f"{name} is an old name of {RETIRED[name]}", f"write {RETIRED[name]}")
            edit = None if equals else _edit(word.place, word.source, name, RETIRED[name])
            found.append(_at(finding, word.place, deployment, edit=edit))
    return found


def _values(words: _Words) -> list[Value]:
    found = []
    for item in words.given.values():
        text = item.flag.partition("=")[2] if item.joined else str(item.value) if item.value is not None else None
        found.append(Value(item.name, text, *item.flag.place[:3]))
    return found


def _model(
    deployment: Deployment, engine: Door, words: _Words, named: str | None, settings: Settings
) -> tuple[str | None, Architecture | None, list[Open]]:
    """The preset a deployment serves: what its model flag, its file or its served name says; never a file of the host."""
    hint = str(deployment.model) if deployment.model is not None else None
    served = _after(words.kept, ("--served-model-name", "--served_model_name"))
    for candidate in (named, hint, *served, settings.models.get("*")):
        if candidate is None:
            continue
        candidate = settings.models.get(candidate, candidate).removeprefix("hf://")
        found = find_preset(candidate)
        if found is not None:
            return found[0], from_preset(shipped_presets()[found[0]], reading=found[1]), []
        if candidate in settings.models.values():
            try:
                return candidate, load_model(candidate), []
            except HybridcalcError:
                continue
    pathlike = named is None or named.startswith(("/", "./", "../", "~", "pvc://", "s3://", "gs://", "oci://"))
    already = any(item.flag == engine.model_flag for item in words.opened)
    if pathlike and not already and not (hint or "").count("/") == 1:
        flag = words.given.get(engine.model_flag)
        place = (flag.value or flag.flag).place if flag is not None else deployment.place
        text = named or "the model"
        why = "a path says nothing of the model" if named else "no flag names the model"
        fix = f"give --model {text[:60]}=PRESET" if named else "give --model PRESET"
        return None, None, [Open(text[:80], engine.model_flag, why, *place[:3], fix=fix)]
    return None, None, []


def _after(words: Sequence[Word], names: tuple[str, ...]) -> list[str]:
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            if equals:
                return [value]
            until = at + 1
            while until < len(words) and not words[until].startswith("-"):
                until += 1
            return [str(item) for item in words[at + 1 : until]]
    return []


def _memory(deployment: Deployment, settings: Settings) -> Memory:
    native = deployment.native.hardware if deployment.native is not None else None
    label = deployment.hardware.label
    gpu = (gpu_of(label) or label) if label is not None else settings.gpu
    if native is not None and (native.rest or native.available or native.weights):
        return Memory(gpu, native.weights or settings.weights, native.rest, native.available)
    return Memory(gpu, settings.weights, settings.rest, settings.available)


def _gpu_count(
    deployment: Deployment, engine: Door, args: Any, words: _Words, unsure: set[str]
) -> list[Located]:
    """Ranks against the GPUs that are asked for."""
    hardware = deployment.hardware
    if hardware.gpus is None or words.free or unsure & _PARALLEL:
        return []
    nnodes = _after(words.kept, ("--nnodes",))
    nodes = hardware.nodes
    if nnodes and nnodes[0].isdecimal() and len(nnodes[0]) < 5:
        nodes = max(nodes, int(nnodes[0]))
    elif any(word.startswith("--nnodes") for word in deployment.words) and nodes == 1:
        return []
    try:
        ranks = engine.ranks(args)
    except InputError:
        return []
    held = hardware.gpus * nodes
    of = f"{nodes} x {hardware.gpus} GPUs" if nodes > 1 else f"{hardware.gpus} GPU{'' if hardware.gpus == 1 else 's'}"
    if ranks > held:
        finding = Finding("HC070", "error", f"{ranks} ranks, and {of} to run them on",
                          f"ask for {-(-ranks // nodes)} GPUs a node, or lower --tp")  # fmt: skip
        return [_located(finding, deployment, words)]
    if ranks < held and not hardware.gpus == 0 and hardware.gpus_place is not None and deployment.replicas != 0:
        finding = Finding("HC073", "note", f"{ranks} rank{'' if ranks == 1 else 's'} on {of}: the others idle",
                          f"ask for {-(-ranks // nodes)} GPUs a node")  # fmt: skip
        return [_at(finding, hardware.gpus_place, deployment)]
    return []


_PARALLEL = frozenset({
    "--tp-size", "--pp-size", "--dp-size", "--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size",
    "--attn-dp-size", "--enable-dp-attention",
})  # fmt: skip
DEPENDS = {
    "HC002": {"--max-mamba-cache-size", "--max-running-requests", "--mamba-radix-cache-strategy", "--pp-size",
              "--disable-overlap-schedule", "--disable-radix-cache", "--dp-size", "--enable-dp-attention",
              "--disaggregation-mode", "--model-path", "--page-size", "--linear-attn-backend"},
    "HC014": {"--max-mamba-cache-size", "--mamba-full-memory-ratio"},
    "HC018": {"--speculative-algorithm", "--max-running-requests"},
    "HC072": set(),
    "HC071": set(),
}  # fmt: skip
"""Rule -> the flags it rests on; where one of them is unknown it is not judged. Other rules rest on every flag."""


def _certain(answer: Answer, unsure: set[str], opened: Sequence[str]) -> Answer:
    """Without the findings that a flag nobody knows could change; what waits, waits for the unknown words first."""
    if not opened:
        return answer
    kept = []
    waiting = [(rule, tuple(opened)) for rule, _ in answer.waiting]
    for finding in answer.findings:
        rests = DEPENDS.get(finding.rule)
        missing = unsure if rests is None else unsure & rests
        if missing:
            waiting.append((finding.rule, tuple(sorted(missing))))
        else:
            kept.append(finding)
    return Answer(tuple(kept), tuple(waiting), answer.figures, answer.refused)


def _expectations(deployment: Deployment, expect: Any, answer: Answer, words: _Words) -> list[Located]:
    """What a native file expects, against the plan."""
    found: list[Finding] = []
    figures = answer.figures
    if expect.fits is not None and (figures is not None or answer.refused) and expect.fits == answer.refused:
        said = "does not start" if answer.refused else "starts, and is expected not to"
        found.append(Finding("HC074", "error", f"{deployment.name or 'the deployment'} {said}"))
    if figures is not None:
        if expect.min_requests is not None and figures.requests < expect.min_requests:
            found.append(Finding("HC075", "error", f"{figures.requests:,} requests run, {expect.min_requests:,} are expected"))
        if expect.min_tokens is not None and figures.tokens < expect.min_tokens:
            found.append(Finding("HC076", "error", f"{figures.tokens:,} KV tokens, {expect.min_tokens:,} are expected"))
        if expect.max_idle_percent is not None and figures.idle_percent is not None and figures.idle_percent > expect.max_idle_percent:
            found.append(
                Finding("HC077", "error", f"{figures.idle_percent:.0f} % of a pool idles, {expect.max_idle_percent:g} % are allowed")
            )
    located = []
    for finding in found:
        place = deployment.marks.get(EXPECTED[finding.rule])
        located.append(_located(finding, deployment, words) if place is None else _at(finding, place, deployment))
    return located


CHOICES = frozenset({"HC013"})
EXPECTED = {"HC074": "fits", "HC075": "min_requests", "HC076": "min_tokens", "HC077": "max_idle_percent"}
"""Rule -> the expectation it holds."""


def _located(finding: Finding, deployment: Deployment, words: _Words) -> Located:
    """A finding at the flag it is about."""
    item = _flag_of(finding, words)
    if item is None:
        return _at(finding, deployment.place, deployment)
    return _at(finding, _value_place(item), deployment, edit=_value_edit(finding, item, words))


def _value_place(item: Given) -> Place:
    """Where a flag's value stands; the flag itself where it takes none."""
    if item.value is not None:
        return item.value.place
    chars = item.flag.chars if item.joined and isinstance(item.flag, Word) else None
    if chars is None or chars.text != item.flag:
        return item.flag.place
    begin = len(item.flag.partition("=")[0]) + 1
    return item.flag.source.place(chars.at(begin), chars.end(len(item.flag)))


def _flag_of(finding: Finding, words: _Words) -> Given | None:
    named = [*PLACES.get(finding.rule, ()), *_FLAG.findall(finding.message), *_FLAG.findall(finding.fix)]
    for name in named:
        for item in words.given.values():
            if name == item.name or item.flag.partition("=")[0] == name:
                return item
    return None


def _value_edit(finding: Finding, item: Given, words: _Words) -> Edit | None:
    """The one value that mends it, where the fix is one. A choice (HC013) is left to whoever reads it."""
    if finding.rule in CHOICES:
        return None
    whole = _WRITE.fullmatch(finding.fix)
    if whole is not None:
        target = next((g for g in words.given.values() if whole[1] in (g.name, g.flag.partition("=")[0])), None)
        return _replace_value(target, whole[2]) if target is not None else None
    number = _NUMBER.match(finding.fix)
    return _replace_value(item, number[1].replace(",", "")) if number is not None else None


def _replace_value(item: Given, text: str) -> Edit | None:
    if item.joined and isinstance(item.flag, Word):
        _, _, value = item.flag.partition("=")
        chars = item.flag.chars
        if chars is None or chars.text != item.flag:
            return None
        return _edit(_value_place(item), item.flag.source, value, text) if value else None
    if not isinstance(item.value, Word):
        return None
    place = item.value.written or item.value.place
    return _edit(place, item.value.source, str(item.value), text)


def _edit(place: Place, source: Source, before: str, text: str) -> Edit | None:
    """An edit of a span that holds exactly the text that is to go, quotes aside."""
    if place.path != source.path:
        return None
    raw = source.text[place.begin : place.end]
    begin, end = place.begin, place.end
    if raw[1:-1] == before and raw[:1] in ("'", '"'):
        begin, end = begin + 1, end - 1
    elif raw != before:
        return None
    first, last = source.place(begin), source.place(end)
    return Edit(source.path, begin, end, first.line, first.column, last.line, last.column, before, text)


def _at(finding: Finding, place: Place, deployment: Deployment, *, edit: Edit | None = None) -> Located:
    source = deployment.source if deployment.source.path == place.path else None
    source = source or next((word.source for word in deployment.words if word.source.path == place.path), None)
    quote: tuple[tuple[int, str], ...] = ()
    width = 1
    if source is not None:
        line = source.line(place.line)
        quote = ((place.line, line),)
        if place.line > 1 and not line.strip().startswith("#") and "--" not in line and "--" in source.line(place.line - 1):
            quote = ((place.line - 1, source.line(place.line - 1)), *quote)
        width = max(1, min(place.end - place.begin, len(line) - place.column + 1))
    return Located(finding, place.path, place.line, place.column, place.column + width, deployment.name, quote, edit)


