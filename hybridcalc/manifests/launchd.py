"""What does a property list of launchd start?

    <key>ProgramArguments</key> <array> <string>llama-server</string> <string>-c</string> ...   ->   llama.cpp, -c ...

Read by its text, as templates of such files are no XML; binary lists are refused before.
"""

import re
from collections.abc import Iterator
from html import unescape

from hybridcalc.manifests import Deployment
from hybridcalc.manifests.scripts import launches_of_words
from hybridcalc.shell import Setting, Text, Word
from hybridcalc.shell.variables import Outside

_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ARGUMENTS = re.compile(r"<key>\s*ProgramArguments\s*</key>\s*<array>(.*?)</array>", re.DOTALL)
_ENVIRONMENT = re.compile(r"<key>\s*EnvironmentVariables\s*</key>\s*<dict>(.*?)</dict>", re.DOTALL)
_STRING = re.compile(r"<string>([^<]*)</string>")
_PAIR = re.compile(r"<key>([^<]*)</key>\s*<string>([^<]*)</string>")


def read_plist(file: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """Every engine that a launch agent or daemon starts."""
    text = _COMMENT.sub(lambda comment: " " * len(comment[0]), file.text)

    def word(match: re.Match[str], group: int) -> Word:
        held = unescape(match[group])
        part = file.part(*match.span(group))
        return Word(held, file.source, part.at(0), part.end(len(part.text)), part if held == part.text else None)

    env = {
        pair[1]: Setting((word(pair, 2),))
        for block in _ENVIRONMENT.finditer(text)
        for pair in _PAIR.finditer(text, *block.span(1))
    }
    for block in _ARGUMENTS.finditer(text):
        words = [word(match, 1) for match in _STRING.finditer(text, *block.span(1))]
        for launch in launches_of_words(words, env, outside):
            yield Deployment(file.source, "launchd", file.source.path.rpartition("/")[2], launch)
