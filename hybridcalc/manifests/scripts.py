"""The launches of a shell script in a file, and of one command: `shell.evaluate` with the engines that are known."""

from collections.abc import Mapping, Sequence

from hybridcalc.engines.engine import ENGINES
from hybridcalc.shell.bounds import allowance
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.source import Setting, Text, Word
from hybridcalc.shell.variables import Outside


def run_script(text: Text, env: Mapping[str, Setting], outside: Outside, arguments: Sequence[Word] = ()) -> Shell:
    """A script, run under ``env`` with positional ``arguments``. Raises InputError for what no shell could parse."""
    with allowance():
        shell = Shell(text, env, outside, ENGINES.launchers, arguments)
        shell.run()
    return shell


def launches_of_words(words: Sequence[Word], env: Mapping[str, Setting], outside: Outside) -> list[Launch]:
    """What a command launches whose words nothing expands any more."""
    shell = Shell(Text(words[0].source, ""), env, outside, ENGINES.launchers)
    shell.start(words)
    return shell.launches
