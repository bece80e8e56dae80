"""Which files and scripts does a shell script hold in here-documents?

    cat > compose.yaml <<EOF ... EOF      bash <<EOF ... EOF      cat > /etc/systemd/system/k3.service <<EOF ... EOF

Told apart by the command that takes them, or the name of the file they go to. One that is only printed is passed over.
"""

import re
from bisect import bisect_left
from typing import NamedTuple

from hybridcalc.manifests.fields import RETURN
from hybridcalc.manifests.source import Text

_KINDS = (
    ("yaml", re.compile(r"\bkubectl\b|\boc\b|\.ya?ml\b")),
    ("unit", re.compile(r"\.(service|container)\b")),
    ("dockerfile", re.compile(r"\b(Docker|Container)file\b|\bdocker\s+build\b")),
    ("script", re.compile(r"\b(ba|z|k|da|s)?sh\b|\b(sbatch|srun)\b")),
)
"""What a command or a file's name makes of a here-document, the first that fits."""
_HEREDOC = re.compile(r"(?<!<)<<-?[ \t]*(?:'([^'\n]{1,200})'|\"([^\"\n]{1,200})\"|(\\?)([A-Za-z_]\w*))")
_END_OF_COMMAND = re.compile(r";|&&|\|\|")

ESCAPE = re.compile(r"\\(?:([\\$`])|\r?\n)")
"""What a backslash hides from the shell in a here-document that it expands."""


class HereDocument(NamedTuple):
    """A here-document: ``kind`` is "yaml", "unit", "dockerfile" or "script"; ``expanded`` whether the shell replaces
    the variables in it.
    """

    kind: str
    text: Text
    expanded: bool


def without_documents(text: Text) -> tuple[Text, list[HereDocument]]:
    """A script with its here-documents blanked out, and those that may launch something; of several that one command
    takes it reads the last.
    """
    found: list[HereDocument] = []
    lines = RETURN.sub(" ", text.text).split("\n")
    ends: dict[str, list[int]] = {}
    offset, number = 0, 0
    while number < len(lines):
        opening = lines[number]
        matches = list(_HEREDOC.finditer(opening)) if not opening.lstrip().startswith("#") else []
        offset += len(opening) + 1
        number += 1
        for match, following in zip(matches, [*matches[1:], None][: len(matches)], strict=True):
            if not ends:
                for index, line in enumerate(lines):
                    ends.setdefault(line.strip(), []).append(index)
            later = ends.get((match[1] or match[2] or match[4]).strip(), [])
            place = bisect_left(later, number)
            if place == len(later):  # it was no here-document
                continue
            end = later[place]
            body = "\n".join(lines[number:end])
            begin = max((m.end() for m in _END_OF_COMMAND.finditer(opening, 0, match.start())), default=0)
            until = _END_OF_COMMAND.search(opening, match.end())
            command = opening[begin : until.start() if until is not None else len(opening)]
            read = following is None or (until is not None and until.start() < following.start())
            kind = _kind(command, body) if read else ""
            if kind:
                held = text.part(offset, offset + len(body))
                found.append(HereDocument(kind, held, match[4] is not None and not match[3]))
            for index in range(number, end + 1):
                offset += len(lines[index]) + 1
                lines[index] = " " * len(lines[index])
            number = end + 1
    return Text(text.source, "\n".join(lines), text.base, text.spots), found


def _kind(command: str, body: str) -> str:
    if "sglang" not in body and "vllm" not in body:
        return ""
    named = next((kind for kind, pattern in _KINDS if pattern.search(command)), "")
    return named or ("script" if re.match(r"#!.*sh\b", body) else "")
