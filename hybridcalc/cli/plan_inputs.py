"""What was typed for ``hybridcalc plan``, turned into arguments, a workload and the memory left.

Everything that is no option of the command is read as the engine's own command line. A launch line after ``--`` may be
words, one quoted text, the path of a script, or ``-`` for stdin; it is read and never run.
"""

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options
from hybridcalc.deployment import KINDS, Rest, Workload, exact_rest, parse_lengths
from hybridcalc.engines.sglang import memory
from hybridcalc.engines.sglang.config import ServerArgs, rules_for
from hybridcalc.engines.sglang.kv import OWN_DRAFT_CELL
from hybridcalc.errors import InputError
from hybridcalc.hardware import find_gpu, weights_from_index

PLATFORMS = ("cuda", "hip", "npu", "xpu", "musa", "cpu")
LARGEST_SCRIPT_BYTES = 2**20
MOST_SHOWN = 4
MOST_NAMES = 100
_FIGURE = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(?:GB|GiB)?\s*", re.ASCII | re.IGNORECASE)
Memory = Callable[[ServerArgs], Rest]
"""Memory left for the pools, which may depend on the arguments (--mem-fraction-static)."""


class LaunchWords(NamedTuple):
    """The engine's words and environment, and what there is to say about them.

    ``strict`` words were typed for this command, where a flag nobody knows is a mistake; the others come from a launch
    line, whose engine may be newer than the list of its flags.
    """

    words: tuple[str, ...]
    env: dict[str, str]
    strict: bool


class Asked(NamedTuple):
    """MODEL, the arguments, and the flags that were passed over although no list of SGLang's has them."""

    model: str
    args: ServerArgs
    unknown: tuple[str, ...]


class MemoryOptions(NamedTuple):
    """The options that say how much memory there is, as typed."""

    rest: str | None
    gpu: str | None
    weights: str | None
    avail_before: str | None
    avail_after: str | None


def launch_words(words: list[str], launch: list[str] | None, env: dict[str, str], own: Sequence[str]) -> LaunchWords:
    """The engine's words; what stands outside the launch line comes last, so that it wins. ``own``: this command's
    options, which are out of place in a launch line.
    """
    from hybridcalc.commandline import read_launch

    _check_options(words, own)
    if launch is None:
        return LaunchWords(tuple(words), env, True)
    read = read_launch(_launch_text(launch))
    if read.engine not in (None, "sglang"):
        raise InputError(f"the launch line starts {read.engine}, which is not planned yet", fix="give an SGLang line")
    for word in read.words:
        if word.partition("=")[0] in own:
            raise InputError(f"{word[:40]} belongs to plan, not to the engine", fix="write it before the --")
    if words and not words[0].startswith("-"):
        words = ["--model-path", *words]
    return LaunchWords((*read.words, *words), {**read.env, **env}, False)


def _launch_text(launch: list[str]) -> list[str]:
    """The words of a launch line, or of the text, script or stdin that a single word stands for."""
    from hybridcalc.shell import split_command

    if len(launch) != 1:
        return launch
    if launch[0] == "-":
        return split_command(_bounded(sys.stdin.buffer, "stdin"))
    if any(letter.isspace() for letter in launch[0]):
        return split_command(launch[0])
    try:
        script = Path(launch[0])
        if script.is_file():
            with script.open("rb") as stream:
                return split_command(_bounded(stream, launch[0][:60]))
    except (OSError, ValueError) as error:
        raise InputError(f"{launch[0][:60]!r} cannot be read: {error.__class__.__name__}") from None
    return launch


def _bounded(stream: Any, where: str) -> str:
    data: bytes = stream.read(LARGEST_SCRIPT_BYTES + 1)
    if len(data) > LARGEST_SCRIPT_BYTES or b"\0" in data:
        raise InputError(f"{where} is no launch script", fix="give a text of at most 1 MiB")
    return data.decode("utf-8", errors="replace")


def arguments(launch: LaunchWords, extra: dict[str, Any], more: Sequence[str] = (), *, complete: bool = True) -> Asked:
    """MODEL and arguments of the words and ``more`` of them, with the options that no engine has. What is not
    ``complete``, because a sweep adds to it, is not checked as a whole.
    """
    from dataclasses import replace

    from hybridcalc.engines.sglang.command import from_words

    unknown: list[str] = []
    model, args = from_words([*launch.words, *more], launch.env, unknown=unknown)
    if unknown and launch.strict:
        raise InputError(f"{unknown[0][:40]} is no flag of SGLang nor of plan", fix="see `hybridcalc plan --help`")
    if model is None:
        raise InputError(
            "plan needs a MODEL", fix="name a preset (`hybridcalc models`), a config.json, or --model-path"
        )
    if len(model.split()) > 1 or model.endswith(".sh"):
        raise InputError(f"MODEL {model[:40]!r} looks like a launch line", fix="write it after --")
    args = replace(args, **extra)
    if complete:
        options.check_arguments(args)
    algorithm = args.speculative_algorithm
    if args.draft_kv_bytes_per_token is not None and algorithm is not None and algorithm not in OWN_DRAFT_CELL:
        raise InputError(f"SGLang prices the KV of an {algorithm} draft by its layers", fix="give --draft-layers N")
    return Asked(model, args, tuple(unknown))


def remarks(asked: Asked, given: MemoryOptions) -> list[str]:
    """What the caller should know about the words: passed over, without effect, or read by another version's rules."""
    args, unknown = asked.args, asked.unknown
    said = [rules_for(args.engine_version)[1]]
    if unknown:
        shown = ", ".join(name[:40] for name in unknown[:MOST_SHOWN]) + (", ..." if len(unknown) > MOST_SHOWN else "")
        said.append(f"passed over, since no SGLang known here has it: {shown}")
    if given.rest is not None and args.mem_fraction_static is not None:
        said.append("--rest is given: --mem-fraction-static changes nothing here")
    return [text for text in said if text]


def comparison_flags(text: str, own: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Flags of a comparison: as a suggestion states them, variables first, a MODEL may follow; or a launch line."""
    from hybridcalc.commandline import read_launch
    from hybridcalc.shell import split_command

    split = split_command(text)
    words, env = list(split), dict[str, str]()
    while words and not words[0].startswith("-") and "=" in words[0]:
        env |= options.environment([words.pop(0)])
    if len(words) > 1 and not words[0].startswith("-") and not words[1].startswith("-"):
        read = read_launch(split)
        words, env = list(read.words), dict(read.env)
    if words and not words[0].startswith("-"):
        words.insert(0, "--model-path")
    for word in words:
        if word.partition("=")[0] in own:
            raise InputError(f"--compare takes the engine's flags, not {word[:40]}", fix="write it outside --compare")
    _check_options(words, own)
    return words, env


def _check_options(words: Sequence[str], own: Sequence[str]) -> None:
    """Refuse a misspelt or shortened option of this command: it could pass for a flag of the engine."""
    from difflib import get_close_matches

    from hybridcalc.engines.sglang.flags import FLAGS, OTHER_FLAGS

    engine = {spelling for flag in FLAGS for spelling in flag.spellings} | OTHER_FLAGS
    names = {word.partition("=")[0] for word in words if word.startswith("-")} - engine
    for name in sorted(names)[:MOST_NAMES]:
        meant = [option for option in own if len(name) > 2 and option.startswith(name.lower())]
        if not meant and not any(spelling.startswith(name) for spelling in engine):
            near = get_close_matches(name[:80], [*own, *engine], n=1, cutoff=0.8)
            meant = near if near and near[0] in own else []
        if meant:
            raise InputError(f"{name[:40]} is not an option of plan", fix=f"write {meant[0]}")


def check_together(
    platform: str, given: MemoryOptions, *, sweep: Sequence[str], compare: Sequence[str], as_csv: bool, as_json: bool,
    fail_on: str | None, length: bool,
) -> None:  # fmt: skip
    """Refuse options of which one would be passed over."""
    if platform not in PLATFORMS:
        raise InputError(f"--platform {platform[:40]!r} is not known", fix=f"write {', '.join(PLATFORMS)}")
    if sweep and compare:
        raise InputError("--sweep and --compare exclude each other", fix="give one of them")
    if as_csv and not sweep:
        raise InputError("--csv prints a sweep, and there is none", fix="add --sweep NAME=values, or write --json")
    if as_csv and as_json:
        raise InputError("--csv and --json exclude each other", fix="give one of them")
    if fail_on is not None and (sweep or compare):
        raise InputError("--fail-on judges one plan", fix="leave out --sweep and --compare, or --fail-on")
    if length and any(_axis(axis) == "length" for axis in sweep):
        raise InputError("-L or --lengths beside --sweep length", fix="leave one of them out")
    if given.rest is not None and any(_axis(axis) == "mem-fraction-static" for axis in sweep):
        raise InputError(
            "--sweep mem-fraction-static changes nothing beside --rest", fix="give --gpu, or the avail figures"
        )


def _axis(text: str) -> str:
    return text.partition("=")[0].strip().removeprefix("--").replace("_", "-")


def workload_of(length: str | None, lengths: str | None, concurrency: int | None, kind: str | None) -> Workload:
    """The workload, from -L or --lengths."""
    if length is not None and lengths is not None:
        raise InputError("-L and --lengths exclude each other", fix="give one of them")
    if kind is not None and kind not in KINDS:
        raise InputError(f"--workload {kind[:40]!r} is not a kind of work", fix=f"write {', '.join(KINDS)}")
    if lengths is not None:
        return Workload(parse_lengths(lengths), concurrency, kind)
    tokens = options.tokens("-L", length)
    return Workload(((tokens, 1),) if tokens else (), concurrency, kind)


def memory_of(given: MemoryOptions, sweep: Sequence[str], model: Architecture, name: str) -> Memory:
    """How the memory left follows from the arguments, from whichever way it was given; one way only."""
    rest, gpu, weights, before, after = given
    if not any(given) and any(_axis(axis) == "rest" for axis in sweep):
        return lambda _: exact_rest(1.0)  # every point brings its own
    boot = before is not None or after is not None
    if sum((rest is not None, gpu is not None, boot)) > 1:
        raise InputError("the memory is given in more than one way", fix="keep --rest, --gpu or the avail figures")
    if weights is not None and gpu is None:
        raise InputError("--weights says nothing without --gpu", fix="add --gpu NAME, or leave it out")
    if rest is not None:
        known = exact_rest(_signed_gib("--rest", rest))
        return lambda _: known
    if before is not None and after is not None:
        left = _gib_figure("--avail-before", before), _gib_figure("--avail-after", after)
        return lambda args: memory.rest_from_boot(*left, model, args)
    if boot:
        raise InputError("--avail-before and --avail-after go together", fix="give both figures of the boot log")
    if gpu is not None:
        card = find_gpu(gpu)
        weighed = None if weights is None else options.gib("--weights", weights)
        return lambda args: memory.rest_from_gpu(card, _weights(weighed, name, args), model, args)
    raise InputError(
        "plan needs the memory left for the pools: add --rest SIZE",
        fix="or --gpu with --weights and --mem-fraction-static, or the two --avail figures",
    )


def _weights(given: float | None, name: str, args: ServerArgs) -> float:
    """Weights on one rank, GiB: as given, or from the checkpoint that MODEL names."""
    weighed = weights_from_index(Path(name), args.tp_size * args.pp_size) if given is None else given
    if weighed is None:
        raise InputError("--gpu needs the weights on one rank", fix="add --weights SIZE")
    return weighed


def _signed_gib(flag: str, text: str) -> float:
    """A size in GiB that may be below zero, as a boot that runs out of memory prints it."""
    sign, size = (-1, text.strip()[1:]) if text.strip().startswith("-") else (1, text)
    return sign * (options.gib(flag, size) or 0.0)


def _gib_figure(flag: str, text: str) -> float:
    """A figure of a log: GiB as printed, with or without its unit."""
    match = _FIGURE.fullmatch(text)
    if match is None:
        raise InputError(f"{flag} {text[:20]!r} is not a figure in GiB", fix="write 22.93, as the log prints it")
    value = float(match[1])
    if not 0 < value < 2**20:
        raise InputError(f"{flag} {text[:20]!r} is not a usable size")
    return value
