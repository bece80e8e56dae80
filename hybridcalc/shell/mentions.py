"""Which commands only speak of a launch? Those that print, look for or build something, and flags that only ask."""

import re

SILENT = frozenset({
    "alias", "awk", "cat", "cmake", "cp", "curl", "echo", "egrep", "fgrep", "git", "grep", "kill", "killall", "less",
    "ls", "make", "man", "mv", "ninja", "pgrep", "pip", "pip3", "pkill", "printf", "ps", "rm", "sed", "tail", "tee",
    "test", "throw", "trap", "type", "which", "[", "[[",
})  # fmt: skip
"""Commands whose words are no launch."""
PRINTS = re.compile(
    r"(die|fail|step|warn|err|fatal|info|log|msg|note|say|show|print|banner|header|title|usage|abort|debug|stat)"
    r"(?!.*(run|exec|start|launch))\w*",
    re.IGNORECASE,
)
"""Functions that print what they are given, by their names."""
ASKS = frozenset({"--help", "--help=all", "-h", "--usage", "--version", "--list-devices"})
"""Flags with which a program says something of itself and ends."""
SAID = re.compile(r"\s*([-*]\s+)?(#|//|>|(echo|printf|say|log\w*|info|warn|die|description|message|name|title)\b)")
"""How a line begins that only speaks of something."""
