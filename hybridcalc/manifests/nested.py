"""Which words of a command are scripts of their own?

    bash -lc 'vllm serve ...'      tmux new -d -s k3 "vllm serve ..."      sbatch --wrap="vllm serve ..."

A text counts where the command is one that hands texts on to a shell, or where it begins as a command line does.
"""

import re
from collections.abc import Iterator, Sequence

from hybridcalc.manifests.launches import HANDING_ON, LAUNCHER, SILENT
from hybridcalc.manifests.source import AnyWord, Text, Unknown, Word

SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})

_COMMAND = re.compile(r"\s*((cd|export|source|\.|exec|env|nohup|sudo|\w+=)\b|[\w./${}-]*(python[0-9.]*|vllm|sglang)\s)")
"""How a text begins that is rather a command line than a message."""
SCRIPT_OPTION = re.compile(r"-[a-zA-Z]*c[a-zA-Z]*")


def nested_script(words: Sequence[AnyWord]) -> tuple[Text, list[AnyWord]] | None:
    """The script of ``bash -c SCRIPT NAME ARGUMENTS...``, wherever it stands in a command; None without one."""
    for at, word in enumerate(words):
        if isinstance(word, Unknown) or word.rpartition("/")[2] not in SHELLS:
            continue
        option = at + 1
        while option < len(words) and words[option].startswith(("-", "+")):
            letters = words[option]
            if SCRIPT_OPTION.fullmatch(letters) and option + 1 < len(words):
                script = words[option + 1]
                chars = script.chars if isinstance(script, Word) else None
                text = chars or Text(script.source, str(script), script.begin, [script.begin] * len(script))
                return text, list(words[option + 3 :])
            option += 2 if letters in ("-o", "+o", "-O") else 1
    return None


def handed_on(words: Sequence[AnyWord]) -> Iterator[Text]:
    """Texts in a command that are command lines of their own: ``tmux new -d "vllm serve ..."``, ``--wrap="..."``."""
    head = words[0].rpartition("/")[2]
    if head in SILENT:
        return
    for word in words[1:]:
        if not isinstance(word, Word) or not is_command_line(word):
            continue
        text = word.chars or Text(word.source, str(word), word.begin, [word.begin] * len(word))
        option = re.match(r"--[a-z-]+=", word)
        if option is not None:
            text = text.part(option.end(), len(word))
        if head in HANDING_ON or option is not None or _COMMAND.match(text.text):
            yield text


def is_command_line(word: str) -> bool:
    """Whether a word is a text that starts an engine, rather than a part of a command."""
    return " " in word and LAUNCHER.search(word) is not None


def takes_script(words: Sequence[AnyWord]) -> bool:
    """Whether the next word is a script: the shell that reads it expands it, with the same variables."""
    return SCRIPT_OPTION.fullmatch(words[-1]) is not None and any(w.rpartition("/")[2] in SHELLS for w in words[:-1])
