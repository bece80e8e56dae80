"""The launches of a shell script in a file, and of one command: `shell.evaluate` with the engines that are known; and
the GPUs that a batch script asks for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests import Deployment, Hardware
from hybridcalc.shell import VISIBLE, Setting, Text, Word, allowance
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.flags import values_after
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside


def run_script(text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[Word] = ()) -> Shell:
    """A script, run under ``env`` with positional ``arguments``. Raises InputError for what no shell could parse."""
    with allowance():
        shell = Shell(text, env, outside, ENGINES.launchers, arguments)
        shell.run()
    return shell


def launches_of_words(words: Sequence[Word], env: Mapping[str, Setting], outside: Outside) -> list[Launch]:
    """What a command launches whose words nothing expands any more."""
    if not words:  # of a text that is a comment
        return []
    shell = Shell(Text(words[0].source, ""), env, outside, ENGINES.launchers)
    shell.start(words)
    return shell.launches


_SLURM = re.compile(r"(?m)^#SBATCH[ \t]+(--?[a-zA-Z-]+)(?:[= \t][ \t]*|(?<=-[A-Z]))(\S+)")


def in_container(launch: Launch, around: Hardware) -> Hardware:
    """The GPUs that a launch sees, where it says which; else those ``around``."""
    if launch.gpus is None and VISIBLE.isdisjoint(launch.env):
        return around
    from hybridcalc.shell.containers import visible

    seen = visible(launch.gpus, launch.env)
    if seen is None or (launch.gpus is None and around.gpus is not None and around.gpus < seen.gpus):
        return around
    return around._replace(gpus=seen.gpus, gpus_place=seen.place)


def slurm(text: str) -> Hardware:
    """The GPUs that a batch script asks for: ``#SBATCH --gres=gpu:h100:8``, ``--gpus-per-node=8``, ``--nodes=2``."""
    asked = {match[1]: match[2] for match in _SLURM.finditer(text)} if "#SBATCH" in text else {}
    nodes = asked.get("--nodes") or asked.get("-N") or "1"
    count = int(nodes) if nodes.isdecimal() and len(nodes) < 5 else 1
    label, gpus = asked.get("--constraint") or asked.get("-C"), None
    for name in ("--gpus", "-G", "--gres", "--gpus-per-node"):
        match = re.fullmatch(r"(?:gpu:)?(?:([A-Za-z][\w.-]*):)?([0-9]{1,4})", asked.get(name, ""))
        if match is not None and (name != "--gres" or asked[name].startswith("gpu")):
            label = match[1] or label
            gpus = int(match[2]) // (count if name in ("--gpus", "-G") else 1)
    if label is not None:
        from hybridcalc.hardware import names_gpu

        label = label if names_gpu(label) else None
    return Hardware(label, gpus, None, max(1, count))


def batch_variables(text: Text) -> dict[str, Setting]:
    """What Slurm tells a batch script of its GPUs and nodes."""
    asked = slurm(text.text)
    told = {"SLURM_GPUS_ON_NODE": asked.gpus, "SLURM_GPUS_PER_NODE": asked.gpus}
    if asked != Hardware():
        told |= {"SLURM_NNODES": asked.nodes, "SLURM_JOB_NUM_NODES": asked.nodes}
    at = text.at(max(0, text.text.find("#SBATCH")))
    return {name: Setting((Word(str(n), text.source, at, at),)) for name, n in told.items() if n is not None}


def on_nodes(found: Sequence[Deployment]) -> Iterator[Deployment]:
    """Deployments of a file, on as many nodes as their flags say, without launches of further nodes that join one."""
    joining = [not ENGINES.rows[each.engine].starter.joining.isdisjoint(each.words) for each in found]
    heads = [_sized(each) for each, joins in zip(found, joining, strict=True) if not joins] if any(joining) else []
    for each, joins in zip(found, joining, strict=True):
        if not (joins and _sized(each) in heads):
            said = next(iter(values_after(each.words, ("--nnodes",))), "")
            nodes = max(each.hardware.nodes, int(said) if said.isdecimal() and len(said) < 5 else 1)
            yield each._replace(hardware=each.hardware._replace(nodes=nodes))


def _sized(deployment: Deployment) -> tuple[str, ...]:
    """The engine of a launch, and its words that say something to a plan."""
    passed = set[int]()
    with suppress(InputError):
        passed = set(map(id, ENGINES[deployment.engine].flags.passed_over(deployment.words)))
    return (deployment.engine, *(str(word) for word in deployment.words if id(word) not in passed))
