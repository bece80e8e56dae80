"""A deployment file that is about to be written: what `check` will find in it is set aside in the file, with why.

It is read as `check` reads it, with nothing known beside it, then with its release, with the GPU, with the length of
requests and with how many are wanted as well: whoever checks it says one of these. Errors are never set aside.
"""

from collections.abc import Iterator

from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings
from hybridcalc.deployment import Memory, Workload
from hybridcalc.findings import SEVERITIES, Finding
from hybridcalc.manifests.emit import Emitted, emitted

ERROR = SEVERITIES.index("error")


def written(form: str, launch: Emitted, work: Workload, memory: Memory | None = None) -> tuple[str, list[Finding]]:
    """The text of a deployment with a comment that sets its findings aside, and those findings. Raises InputError as
    `emitted`.
    """
    text, worst = emitted(form, launch), dict[str, Finding]()
    name = "serve.sh" if form == "cmd" else f"{form}.yaml"
    for settings in _known(launch, memory or Memory(), work):
        read = check_file(name, settings, {}, instead=text.encode())
        for found in (item.finding for one in (read.checked if read else ()) for item in one.findings):
            known = worst.get(found.rule)
            if known is None or SEVERITIES.index(found.severity) > SEVERITIES.index(known.severity):
                worst[found.rule] = found
    aside = [worst[rule] for rule in sorted(worst) if SEVERITIES.index(worst[rule].severity) < ERROR]
    if not aside:
        return text, []
    rules, why = ",".join(found.rule for found in aside), "; ".join(found.message for found in aside)
    comment = f"# hybridcalc: ignore-file={rules} known when this was written: {' '.join(why.split())}\n"
    about = len(text) - len(text.removeprefix("#")) and text.index("\n") + 1  # the first line, where it is a comment
    return f"{text[:about]}{comment}{text[about:]}", aside


def _known(launch: Emitted, memory: Memory, work: Workload) -> Iterator[Settings]:
    """What may be said of a file when it is checked, each time more."""
    yield Settings()
    of_release = Settings(versions={launch.engine.name: launch.version})
    yield of_release
    sizes = (memory.weights, memory.rest, memory.available)
    weights, rest, available = (None if size is None else f"{size}GiB" for size in sizes)
    said = of_release._replace(gpu=launch.seen, weights=weights, rest=rest, available=available)
    yield said
    if work.lengths:
        said = said._replace(lengths=",".join(f"{length}:{count}" for length, count in work.lengths))
        yield said
    if work.concurrency is not None:
        yield said._replace(concurrency=work.concurrency)
