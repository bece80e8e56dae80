"""The launches of a shell script in a file, and of one command: `shell.evaluate` with the engines that are known; and
the GPUs that a batch script asks for.
"""

import re
from collections.abc import Mapping, Sequence

from hybridcalc.engines import ENGINES
from hybridcalc.hardware import names_gpu
from hybridcalc.manifests.records import Hardware
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.source import Setting, Text, Word, allowance
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


_CONTAINER_GPUS = re.compile(r"(?:count=)?([0-9]{1,3})|device=([\w.:-]+(?:,[\w.:-]+)*)(?:,capabilities=.*)?")


def in_container(launch: Launch, around: Hardware) -> Hardware:
    """The GPUs that ``docker run --gpus`` gives: ``2``, ``count=2``, ``"device=0,1"``; ``all`` are those ``around``."""
    gpus = launch.gpus
    if gpus is None or gpus.why or len(gpus) > 1000:
        return around
    match = _CONTAINER_GPUS.fullmatch(gpus.replace('"', "").replace("'", ""))
    if match is None:
        return around
    return around._replace(gpus=int(match[1]) if match[1] else match[2].count(",") + 1, gpus_place=gpus.place)


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
    return Hardware(label if label is not None and names_gpu(label) else None, gpus, None, max(1, count))
