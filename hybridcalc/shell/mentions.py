"""Which commands only speak of a launch? Those that print, look for or build something, and flags that only ask."""

import re

SILENT = frozenset({
    "alias", "apt", "apt-get", "awk", "brew", "cat", "chmod", "chown", "cmake", "cp", "curl", "dnf", "echo", "egrep",
    "fgrep", "file", "git", "grep", "install", "kill", "killall", "launchctl", "less", "ln", "ls", "make", "man", "mv",
    "ninja", "pgrep", "pip", "pip3", "pkill", "printf", "ps", "rm", "sed", "strip", "systemctl", "tail", "tar", "tee",
    "test", "throw", "touch", "trap", "type", "wget", "which", "[", "[[",
})  # fmt: skip
"""Commands whose words are no launch."""
PRINTS = re.compile(
    r"(die|fail|step|warn|err|fatal|info|log|msg|note|say|show|print|banner|header|title|usage|abort|debug|stat)"
    r"(?!.*(run|exec|start|launch))\w*",
    re.IGNORECASE,
)
"""Functions that print what they are given, by their names."""


def prose(verbs: str) -> str:
    """A pattern of what follows a program in a message rather than in a command: words before no flag. Its ``verbs``
    are the second words of programs.
    """
    verb, word = rf"(?:{verbs})\s", "[a-z]+"
    return rf"(?:\(|(?!{verb}){word}\s*$|(?:{verb}+)?(?!{verb}){word}(?:[.,!:]|\s+[^-\s]))"


ASKS = frozenset({"--help", "--help=all", "-h", "--usage", "--version", "--list-devices"})
"""Flags with which a program says something of itself and ends."""
SAID = re.compile(r"\s*([-*]\s+)?(#|//|>|(echo|printf|say|log\w*|info|warn|die|description|message|name|title)\b)")
"""How a line begins that only speaks of something."""
