r"""Which launches does a guide hold? The code between the fences of a Markdown text; its prose is none.

    Serve it with `vllm serve`:            ->   vllm  kimi-k3  --max-model-len  8192, and flags that are left out
    ```bash
    vllm serve kimi-k3 --max-model-len 8192 ...
    ```

A fence that stands right behind a command closes it too. Each block is a script of its own that sees the variables of
those before it; prompts (``$ ``) are no part of it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from hybridcalc.shell import Text

MOST_BLOCKS = 2_000
_FENCE = re.compile(r"(?m)^[ \t>]*(?P<mark>```+|~~~+)[ \t]*\{?\.?(?P<language>[\w+-]*)[^\n`]*$")
_INLINE = re.compile(r"(?<!`)`[^`\n]+`(?!`)")
_PROMPT = re.compile(r"(?m)^[ \t]*\$[ \t]+")
_PLACEHOLDER = re.compile(r"(?<![<\w$])<([A-Za-z][\w .:/-]{0,60}?)>(?![\w(&])")
_KINDS = {
    "": "", "text": "", "plaintext": "", "bash": "script", "sh": "script", "shell": "script", "zsh": "script",
    "console": "script", "shellsession": "script", "shell-session": "script", "yaml": "documents", "yml": "documents",
    "dockerfile": "dockerfile", "docker": "dockerfile", "ini": "unit", "systemd": "unit", "python": "python",
    "py": "python", "json": "documents",
}  # fmt: skip
"""What a block of a language is read as; "" for what its content tells."""


class Block(NamedTuple):
    """A block of code: which kind of file it is, and its text."""

    kind: str
    text: Text


def is_guide(text: str) -> bool:
    """Whether a text has fences."""
    return ("```" in text or "~~~" in text) and _FENCE.search(text) is not None


def blocks(text: Text) -> Iterator[Block]:
    """The blocks of code of a guide, in order."""
    at = 0
    for _ in range(MOST_BLOCKS):
        opening = _FENCE.search(text.text, at)
        if opening is None:
            return
        begin = min(opening.end() + 1, len(text.text))
        end = text.text.find(opening["mark"], begin)
        end = len(text.text) if end < 0 else end
        kind = _KINDS.get(opening["language"].lower())
        if kind is not None:
            yield Block(kind, text.part(begin, end))
        following = text.text.find("\n", end)
        if following < 0:
            return
        at = following


def script(text: Text) -> Text:
    """A block as a script: without prompts, and with what the reader is to fill in as an expansion nobody knows."""
    bare = text.replaced(_PROMPT, lambda match: "")
    return bare.replaced(_PLACEHOLDER, lambda match: f"${{{match[0]}}}") if "<" in bare.text else bare


def without_code_in_prose(text: Text, starting: re.Pattern[str]) -> Text:
    """A text without what stands in backticks and only speaks of a launch."""
    if "`" not in text.text:
        return text
    return text.replaced(_INLINE, lambda match: "" if starting.search(match[0]) else None)
