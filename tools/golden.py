"""Recorded command lines, tests/golden/*.txt: each `$ hybridcalc ...` with what it printed, as in a terminal.

    python tools/golden.py                  exit 1 when a command prints something else
    python tools/golden.py --write          renew what is shown; `git diff` then shows every difference
    python tools/golden.py --write plan log only the files whose names hold one of these

A case is added as a `$ hybridcalc ...` line at the end of a file, then `--write`. Under a line stand its standard
output, `[stderr]` with what it printed there, and `[exit N]` where N is not 0. Lines may take `< FILE`, a `|` between
two hybridcalc commands, and `NAME=VALUE` before the first; `$OUT` is a folder that is empty at the start of each line.

Commands run in this process, in the repository's root, 80 columns wide, without colour. The versions of hybridcalc and
torch, the repository's folder and $OUT are replaced by their names.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import tempfile
import warnings
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from hybridcalc import __version__

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from command_line import run  # noqa: E402

FOLDER = ROOT / "tests" / "golden"
PROMPT = re.compile(r"^\$ (?=(?:[A-Z_]+=\S* )*hybridcalc\b)", re.MULTILINE)
NEEDS = re.compile(r"^needs: (\w+)$", re.MULTILINE)
ROUNDING = re.compile(r'("found": )[0-9.e-]+(,\s*"bound": "<=")')
"""An error of floating-point arithmetic, whose digits are the processor's own."""
ASSIGNMENT = re.compile(r"[A-Z_]+=")


class Case(NamedTuple):
    """A command line, and what the file shows for it."""

    command: str
    shown: str


class Transcript(NamedTuple):
    """One file: its opening lines, and its cases in order."""

    path: Path
    opening: str
    cases: tuple[Case, ...]

    @property
    def missing(self) -> str:
        """The module that the file needs and that is not installed, or an empty string."""
        return next((name for name in NEEDS.findall(self.opening) if find_spec(name) is None), "")


def read(path: Path) -> Transcript:
    """A transcript; of a command line that stands there twice, the first."""
    opening, *blocks = PROMPT.split(path.read_text(encoding="utf-8"))
    cases: dict[str, str] = {}
    for block in blocks:
        command, _, shown = block.partition("\n")
        cases.setdefault(command, shown)
    return Transcript(path, opening, tuple(Case(*case) for case in cases.items()))


def transcripts() -> list[Transcript]:
    """Every file of tests/golden/."""
    return [read(path) for path in sorted(FOLDER.glob("*.txt"))]


def shown(command: str) -> str:
    """What a command line prints, as its file shows it."""
    with tempfile.TemporaryDirectory() as out, tempfile.TemporaryDirectory() as home:
        environment = {"COLUMNS": "80", "NO_COLOR": "1", "HF_HOME": home}
        given, err, code = "", "", 0
        with contextlib.chdir(ROOT), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for part in _commands(command.replace("$OUT", out)):
                given = Path(part.stdin).read_text(encoding="utf-8") if part.stdin else given
                code, given, err = run(*part.arguments, stdin=given.encode(), **environment | part.environment)
        text = _ended(given) + (f"[stderr]\n{_ended(err)}" if err else "")
        text += f"[exit {code}]\n" if code else ""
        for place, name in ((out, "$OUT"), (str(ROOT), "<repository>")):
            text = text.replace(place, name)
    text = text.replace(f"hybridcalc {__version__}", "hybridcalc <version>")
    text = text.replace(f'"version": "{__version__}"', '"version": "<version>"')
    text = re.sub(r'"torch": "[^"]*"', '"torch": "<version>"', text)
    text = ROUNDING.sub(r"\g<1>0.0\2", text)
    if PROMPT.search(text):
        raise ValueError(f"{command}: a printed line looks like a case")
    return text


class _Part(NamedTuple):
    """One command of a pipe."""

    environment: dict[str, str]
    arguments: list[str]
    stdin: str


def _commands(line: str) -> list[_Part]:
    """The commands of a line; its assignments hold for all of them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<")
    lexer.whitespace_split, lexer.commenters = True, ""
    parts: list[list[str]] = [[]]
    for word in lexer:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    environment: dict[str, str] = {}
    while ASSIGNMENT.match(parts[0][0]):
        name, _, value = parts[0].pop(0).partition("=")
        environment[name] = value
    found = []
    for words in parts:
        stdin = ""
        if "<" in words:
            place = words.index("<")
            stdin = words[place + 1]
            del words[place : place + 2]
        if words[0] != "hybridcalc":
            raise ValueError(f"{line}: only hybridcalc is run")
        found.append(_Part(environment, words[1:], stdin))
    return found


def _ended(text: str) -> str:
    """A text that ends in a line end, shown where it has none of its own."""
    return text if not text or text.endswith("\n") else f"{text}[no line end]\n"


def main(arguments: list[str]) -> int:
    """Compare or renew the files whose names hold one of the arguments, else all."""
    wanted = [argument for argument in arguments if not argument.startswith("-")]
    stale = 0
    for transcript in transcripts():
        if wanted and not any(word in transcript.path.name for word in wanted):
            continue
        if transcript.missing:
            print(f"{transcript.path.name}: needs {transcript.missing}, left as it is")
            continue
        printed = [Case(case.command, shown(case.command)) for case in transcript.cases]
        text = transcript.opening + "".join(f"$ {command}\n{output}" for command, output in printed)
        before = transcript.path.read_text(encoding="utf-8")
        if text == before:
            continue
        if "--write" in arguments:
            transcript.path.write_text(text, encoding="utf-8")
        else:
            stale = 1
            name = transcript.path.name
            print(*unified_diff(before.splitlines(), text.splitlines(), name, "prints now", lineterm=""), sep="\n")
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
