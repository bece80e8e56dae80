"""What was typed for ``hybridcalc plan``, turned into arguments, a workload and the memory left.

Everything that is no option of the command is read as the engine's own command line. A launch line after ``--`` may be
words, one quoted text, the path of a script, or ``-`` for stdin; it is read and never run.
"""

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import find_preset, is_path, named_as_quantised, preset_at_end
from hybridcalc.cli import options
from hybridcalc.deployment import KINDS, Memory, Rest, Workload, parse_lengths
from hybridcalc.engines import ENGINES
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.spelling import UNKNOWN_FLAG, misspelt_names, old_names
from hybridcalc.errors import InputError, MisspeltFlag, printable, quoted
from hybridcalc.findings import Finding
from hybridcalc.shell import ELISIONS
from hybridcalc.shell.flags import FlagTable, advice_of, question_of, values_after

if TYPE_CHECKING:
    from hybridcalc.hardware import Gpu
    from hybridcalc.reuse.requests import Workload as Traffic
    from hybridcalc.shell.launch import Launch

MOST_NAMES = 100
MOST_SHOWN = 4
TOO_FEW, BEYOND_NODE = "HC070", "HC081"


class LaunchWords(NamedTuple):
    """The engine's words and environment, and what there is to say about them.

    ``strict`` words were typed for this command, where a flag nobody knows is a mistake; the others come from a launch
    line, whose engine may be newer than the list of its flags. ``mounted`` is what a container finds where the line
    looks for its model, ``script`` the file that the line stands in, ``before`` how many of the words, the last, stood
    before the ``--``, ``command`` the one they were given to and ``own`` its options.
    """

    words: tuple[str, ...]
    env: dict[str, str]
    strict: bool
    mounted: str | None = None
    script: str | None = None
    before: int = 0
    command: str = "plan"
    own: tuple[str, ...] = ()


class Asked(NamedTuple):
    """MODEL, the arguments, the flags that were ignored although no list of the engine's has them, and what a path of
    somebody else's machine is taken for; GPUs that ranks share since nothing names ranks, and why they do not.
    """

    model: str
    args: Any
    unknown: tuple[str, ...]
    taken: str = ""
    shared: int = 0
    uneven: str = ""


class Question(NamedTuple):
    """A server as it is asked for: its engine, its words, the options of the command beside them, and the memory.

    ``options`` are by name, None where they are not given; ``known`` leaves the checkpoint to the model's name;
    ``assumed`` says that the release is, where an image names none; ``gpus`` are those that the launch sees, where it
    says which; ``misspelt``: its flags under names that the release lacks.
    """

    engine: Engine
    launch: LaunchWords
    options: Mapping[str, Any]
    known: Memory
    assumed: str = ""
    gpus: int | None = None
    misspelt: Sequence[MisspeltFlag] = ()

    def model_named(self, more: Sequence[str] = ()) -> str:
        """MODEL of the words and ``more`` of them. Raises InputError where none is named."""
        return self._read(more).model

    def arguments(self, more: Sequence[str] = ()) -> Asked:
        """MODEL and arguments of the words and ``more`` of them, held together. Raises InputError."""
        more, counts = options.expert_ranks(self.engine, more)
        asked = self._read(more)
        table, words = self.engine.flags.by_spelling, (*self.launch.words, *more)
        fields = {table[name].field for word in words if (name := word.partition("=")[0]) in table}
        share = self.launch.strict and self.engine.renamed.get("tp_size", "tp_size") not in fields
        given = {**self.options, **counts, "share": share}
        args = self.engine.with_options(asked.args, given)
        self.engine.check_together(args)
        quantization = getattr(args, "quantization", None)
        if quantization:
            from hybridcalc.architecture.quantization_names import check_quantization

            check_quantization(quantization)
        shared, uneven = self.engine.shared_gpus(asked.args, given), self.engine.uneven_gpus(asked.args, given)
        return asked._replace(args=args, shared=shared, uneven=uneven)

    def memory(self, model: Architecture, args: Any, first: tuple[Architecture, Any] | None = None) -> Rest:
        """The memory left for that model and those arguments; weights that were given are those of the ``first`` ones.

        Raises InputError, Refusal.
        """
        known = self.known if first is None else self.engine.weights_moved(self.known, model, args, first)
        return self.engine.memory(model, args, known)

    def remarks(self, asked: Asked) -> list[str]:
        """What to know of the words: ignored, without effect, or read by another release's rules."""
        own: Iterable[str] = ()
        if self.launch.before:
            from hybridcalc.cli.launch_text import overruled

            own = overruled(self.engine, self.launch.words, self.launch.before, self.launch.env)
        old = old_names(self.engine, self.launch.words, self.options.get("engine_version"))
        said = (self.assumed, asked.taken, asked.uneven, *old, *own, *self.engine.remarks(asked.args, self.known))
        return [text for text in said if text]

    def passed_over(self, asked: Asked) -> tuple[Finding, ...]:
        """That words are passed over which no list of the engine's flags has, or read under a name that the release
        lacks, in warnings, and that the launch sees fewer GPUs than it has ranks.
        """
        found: list[Finding] = []
        if self.gpus is not None:
            from hybridcalc.hardware import beyond_node, few_in_words, gpus_in_words

            if (many := beyond_node(self.gpus, self.known.gpu)) is not None:
                found.append(Finding(BEYOND_NODE, "warning", *many))
            if (ranks := self.engine.ranks(asked.args) if self.engine.ranked else 0) > self.gpus:
                fix = f"let it see {gpus_in_words(ranks)}, or run fewer ranks"
                found.append(Finding(TOO_FEW, "error", few_in_words(ranks, gpus_in_words(self.gpus)), fix))
        if asked.unknown:
            shown = ", ".join(name[:40] for name in asked.unknown[:MOST_SHOWN])
            shown += ", ..." if len(asked.unknown) > MOST_SHOWN else ""
            said = f"no {self.engine.title} known here takes {shown}: the server may not start"
            found.append(Finding(UNKNOWN_FLAG, "warning", said, advice_of(shown, self.engine.flags.names)))
        found += (Finding(UNKNOWN_FLAG, "warning", f"no start: {each.message}", each.fix) for each in self.misspelt)
        return tuple(found)

    def _read(self, more: Sequence[str]) -> Asked:
        unknown: list[str] = []
        try:
            model, args = self.engine.read([*self.launch.words, *more], self.launch.env, unknown)
        except InputError as error:
            if self.launch.script is not None:
                from hybridcalc.cli.launch_text import place_in

                error.message = f"{place_in(self.launch.script)}: {error.message}"
            raise
        model = model or self.launch.mounted
        if unknown and self.launch.strict:
            command, known = self.launch.command, [*self.launch.own, *self.engine.flags.names]
            message = f"{unknown[0][:40]} is no flag of {self.engine.title} nor of {command}"
            raise InputError(message, fix=question_of(unknown[0], known) or f"see `hybridcalc {command} --help`")
        if model is None:
            raise InputError(
                f"{self.launch.command} needs a MODEL" if self.launch.strict else "the launch line names no MODEL",
                fix=f"name a preset (`hybridcalc models`), a config.json, or {self.engine.model_flag}",
            )
        named, taken = (model, "") if self.launch.strict else self._elsewhere(model)
        if (len(named.split()) > 1 or named.endswith(".sh")) and not os.path.lexists(named):
            raise InputError(f"MODEL {quoted(named)} looks like a launch line", fix="write it after --")
        return Asked(named, args, tuple(unknown), taken)

    def _elsewhere(self, model: str) -> tuple[str, str]:
        """The model that a line means by a path that is not here: what is mounted there, the name it is served under,
        the end of the path; as `hybridcalc check` takes it.
        """
        if not is_path(model) or os.path.lexists(os.path.expanduser(model)):
            return model, ""
        served = values_after(self.launch.words, ("--served-model-name", "--served_model_name"))
        at_end = preset_at_end(model)
        for name in (self.launch.mounted, *served):
            if name is not None and (found := find_preset(name) or preset_at_end(name)) is not None:
                same = at_end is not None and at_end.preset == found[0] and named_as_quantised(at_end.name)
                taken = at_end.name if same and at_end is not None else name if find_preset(name) else found[-1]
                return taken, f"{printable(model[:60])} is taken for {found[0]}, by {printable(name[:60])}"
        return (model, "") if at_end is None else (at_end.name, at_end.note)


def question(
    words: Sequence[str],
    launch: list[str] | None,
    env: dict[str, str],
    own: Sequence[str],
    engine: str | None,
    given: Mapping[str, Any],
    command: str = "plan",
) -> Question:
    """The question of a command: ``words`` beside its ``own`` options, a ``launch`` line, and its options as ``given``.

    Raises InputError for an option or a word that only another engine has, and for sizes that are none.
    """
    line = read_line(launch)
    served = ENGINES[engine_of(engine, line, words)]
    served.check_options(given)
    assumed = ""
    if line is not None and given.get("engine_version") is None:
        if old := ENGINES.older(line):
            raise InputError(served.older(old), fix=f"add --engine-version {served.newest} to plan it by those rules")
        given, assumed = {**given, "engine_version": ENGINES.release(line)}, ENGINES.assumed(line)
    misspelt = misspelt_names(served, line.words if line is not None else (), given.get("engine_version"))
    if given.get("private") is not None and given.get("shared_prefix") is None:
        raise InputError("--private says nothing without --shared-prefix", fix="add --shared-prefix N")
    words, counts = options.expert_ranks(served, words)
    given = {**given, **counts}
    said = launch_words(
        options.spelt_for(served, words), line, env, own, served.flags, served.model_flag, served.environment, command
    )
    seen = None
    if launch is not None and line is not None:
        if len(launch) == 1:
            from hybridcalc.cli.launch_text import script_of

            said = said._replace(script=script_of(launch))
        if line.gpus is not None or line.env:
            from hybridcalc.shell.containers import visible

            sight = visible(line.gpus, line.env)
            seen = None if sight is None else sight.gpus
    known = memory_of(given)
    served.check_memory(known)
    return Question(served, said, {**given, "gpu": known.gpu}, known, assumed, seen, misspelt)


def _gpu(_: str, text: str) -> "Gpu":
    from hybridcalc.hardware import find_gpu

    return find_gpu(text)


def memory_of(given: Mapping[str, Any]) -> Memory:
    """The options that say how much memory there is, read. Raises InputError naming the option."""

    def read(name: str, parse: Callable[[str, str], Any]) -> Any:
        text = given.get(name)
        return None if text is None else parse(f"--{name.replace('_', '-')}", text)

    return Memory(
        read("rest", signed_gib),
        read("available", signed_gib),
        read("gpu", _gpu),
        read("weights", options.gib),
        read("non_cache", options.gib),
        read("avail_before", options.boot_figure),
        read("avail_after", options.boot_figure),
    )


def read_line(launch: list[str] | None) -> "Launch | None":
    """The launch line after ``--``; None without one."""
    if launch is None:
        return None
    if len(launch) == 1 or "".join(launch[:1]).endswith("sh") or any(word.startswith("--config") for word in launch):
        from hybridcalc.cli.launch_text import launch_of

        return launch_of(launch)
    return ENGINES.launch(launch)


def engine_of(asked: str | None, line: "Launch | None", words: Iterable[str] = ()) -> str:
    """Which engine is meant: the one asked for, else the one that the launch line starts, else by the model's name."""
    started = line.engine if line is not None else None
    if asked is None:
        return started or ENGINES.meant_by((*words, *(line.words if line is not None else ())))
    named = ENGINES.named(asked)
    if started and started != named:
        raise InputError(f"the launch line starts {started}, not {named}", fix="leave out --engine")
    return named


def launch_words(
    words: list[str],
    line: "Launch | None",
    env: dict[str, str],
    own: Sequence[str],
    table: FlagTable,
    model_flag: str,
    known: frozenset[str],
    command: str = "plan",
) -> LaunchWords:
    """The engine's words; what stands outside the launch line comes last, so that it wins. ``own``: the options of
    ``command``, which are out of place in a launch line; ``known``: environment switches of the engine.
    """
    env = {**environment_words(words, known), **env}
    _check_options(words, own, table, command)
    if line is None:
        return LaunchWords(tuple(words), env, True, command=command, own=tuple(own))
    typed = list[str](line.words)
    env = {**environment_words(typed, known), **env}
    for word in typed:
        if word.partition("=")[0] in own and word.partition("=")[0] not in table.by_spelling:
            raise InputError(f"{word[:40]} belongs to {command}, not to the engine", fix="write it before the --")
    if words and not words[0].startswith("-"):
        words = [model_flag, *words]
    said = (word for word in typed if word not in ELISIONS)
    mounted = str(line.model) if line.model is not None else None
    return LaunchWords((*said, *words), {**line.variables, **env}, False, mounted, before=len(words), command=command)


def environment_words(words: list[str], known: frozenset[str]) -> dict[str, str]:
    """Environment switches among the words, as suggestions write them: taken out of there."""
    switches = [word for word in words if word.partition("=")[0] in known and "=" in word]
    words[:] = [word for word in words if word not in switches]
    return dict(word.split("=", 1) for word in switches)


def comparison_flags(
    text: str, own: Sequence[str], table: FlagTable, model_flag: str
) -> tuple[list[str], dict[str, str]]:
    """Flags of a comparison: as a suggestion states them, variables first, a MODEL may follow; or a launch line."""
    from hybridcalc.shell.parse import split_command

    words, env = list[str](split_command(text)), dict[str, str]()
    while words and not words[0].startswith("-") and "=" in words[0]:
        env |= options.environment([words.pop(0)])
    if len(words) > 1 and not words[0].startswith("-") and not words[1].startswith("-"):
        read = ENGINES.launch(text)
        if read.engine and read.engine != table.engine.lower():
            raise InputError(f"--compare starts {read.engine}, not {table.engine}", fix="compare flags of one engine")
        words, env = list(read.words), read.variables
    if words and not words[0].startswith("-"):
        words.insert(0, model_flag)
    for word in words:
        if word.partition("=")[0] in own:
            raise InputError(f"--compare takes the engine's flags, not {word[:40]}", fix="write it outside --compare")
    _check_options(words, own, table)
    return words, env


def _check_options(words: Sequence[str], own: Sequence[str], table: FlagTable, command: str = "plan") -> None:
    """Refuse a misspelt or shortened option of this command: it could pass for a flag of the engine."""
    from difflib import get_close_matches

    engine = set(table.names)
    names = {table.spelling(word.partition("=")[0]) for word in words if word.startswith("-")} - engine
    for name in sorted(names)[:MOST_NAMES]:
        meant = [option for option in own if len(name) > 2 and option.startswith(name.lower())]
        if not meant and not any(spelling.startswith(name) for spelling in engine):
            near = get_close_matches(name[:80], [*own, *engine], n=1, cutoff=0.8)
            meant = near if near and near[0] in own else []
        if meant:
            raise InputError(f"{name[:40]} is not an option of {command}", fix=f"write {meant[0]}")


def check_together(
    *,
    sweep: Sequence[str],
    compare: Sequence[str],
    as_csv: bool,
    as_json: bool,
    fail_on: str | None,
    length: bool,
    fixed_memory: bool,
) -> None:
    """Refuse options of which one would be passed over. ``fixed_memory``: no flag of the engine changes the memory."""
    if sweep and compare:
        raise InputError("--sweep and --compare exclude each other", fix="give one of them")
    if as_csv and not sweep:
        raise InputError("--csv prints a sweep, and there is none", fix="add --sweep NAME=values, or write --json")
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other", fix="give one of them")
    if fail_on is not None and (sweep or compare):
        raise InputError("--fail-on judges one plan", fix="leave out --sweep and --compare, or --fail-on")
    if length and swept("length", sweep):
        raise InputError("-L or --lengths beside --sweep length", fix="leave one of them out")
    for name in ("mem-fraction-static", "gpu-memory-utilization"):
        if fixed_memory and swept(name, sweep):
            raise InputError(
                f"--sweep {name} changes nothing beside a given memory", fix="give --gpu, or the avail figures"
            )


def swept(name: str, sweep: Sequence[str]) -> bool:
    """Whether an axis of that name is swept."""
    return any(axis.partition("=")[0].strip().removeprefix("--").replace("_", "-") == name for axis in sweep)


def is_traffic(text: str) -> bool:
    """Whether a workload says what requests hold, as ``hybridcalc reuse`` takes it, and not only what kind it is."""
    return ":" in text or _names_file(text)


def _names_file(text: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        if Path(text).is_file():
            return True
    return "=" not in text and ("/" in text or bool(Path(text).suffix))


def traffic(text: str, *, seed: int = 0, workers: int = 1) -> "Traffic":
    """Requests of a synthetic workload, of ``workers`` those of one, or of a trace. Raises InputError for neither."""
    from hybridcalc.reuse.traces import read_trace
    from hybridcalc.reuse.workloads import KINDS as GENERATORS
    from hybridcalc.reuse.workloads import parse_workload

    if text.partition(":")[0] in GENERATORS or not _names_file(text):
        return parse_workload(text, seed=seed, workers=workers)
    return read_trace(text)


def workload_of(
    length: str | None,
    lengths: str | None,
    concurrency: int | None,
    kind: str | None,
    *,
    shared: int | None = None,
    private: int | None = None,
) -> Workload:
    """The workload, from -L or --lengths; a shared prefix and its private rest are a length where none is given."""
    if length is not None and lengths is not None:
        raise InputError("-L and --lengths exclude each other", fix="give one of them")
    if kind is not None and kind not in KINDS:
        if not is_traffic(kind):
            raise InputError(f"--workload {quoted(kind)} is not a kind of work", fix=f"write {', '.join(KINDS)}")
        if length is not None or lengths is not None:
            raise InputError("--workload says how long requests are", fix="leave out -L and --lengths")
        from hybridcalc.reuse.requests import planned_workload

        return planned_workload(traffic(kind), concurrency=concurrency)._replace(
            shared_prefix=shared or 0, private=private or 0
        )
    given = options.tokens("-L", length)
    if shared is not None and private is None and given is not None:
        private = max(0, given - shared)
    prefix = (shared or 0, private or 0)
    if given is not None and given < sum(prefix):
        raise InputError(
            f"-L {given:,} is shorter than the {sum(prefix):,} tokens of --shared-prefix and --private",
            fix="leave out -L, or count the answer in: prompt and answer together",
        )
    if lengths is not None:
        return Workload(parse_lengths(lengths), concurrency, kind, *prefix)
    tokens = given or sum(prefix)
    return Workload(((tokens, 1),) if tokens else (), concurrency, kind, *prefix)


def signed_gib(flag: str, text: str) -> float:
    """A size in GiB that may be below zero, as a boot that runs out of memory prints it."""
    sign, size = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text)
    return sign * (options.gib(flag, size) or 0.0)
