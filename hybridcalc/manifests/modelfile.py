r"""Which model does a Modelfile of Ollama make, with which parameters? ``FROM`` and ``PARAMETER``.

    FROM qwen3.5:27b-q4_K_M
    PARAMETER num_ctx 16384     ->   ollama run qwen3.5:27b-q4_K_M --num-ctx 16384

Other instructions say nothing of memory; a text in three quotes may hold lines that look like one. Mirrors Ollama
parser/parser.go (v0.33.0-rc2).
"""

import os
import re
from collections.abc import Iterator

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.shell import Text, Word
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.variables import Outside

SIZING = frozenset({"num_ctx", "num_batch", "num_gpu", "draft_num_predict"})
"""Parameters that bear on memory."""
_LINE = re.compile(
    r"(?im)^[ \t]*(?:#[^\n]*|(?P<name>[a-z]+)[ \t]+(?:(?P<parameter>[a-z0-9_]+)[ \t]+)??"
    r"(?P<value>\"\"\"[\s\S]*?(?:\"\"\"|\Z)|[^\n]*))$"
)


def read_modelfile(file: Text, outside: Outside, beside: object = None) -> Iterator[Deployment]:
    """The server of the model that a Modelfile makes; none without a FROM."""
    model: Word | None = None
    words: list[Word] = []
    for line in _LINE.finditer(file.text):
        name = (line["name"] or "").upper()
        if name == "FROM":
            model = _value(file, line.start("value"), line["value"])
        elif name == "PARAMETER":
            parameter, _, rest = line[0].lstrip()[len("parameter") :].lstrip().partition(" ")
            if parameter.lower() in SIZING and rest.strip():
                begin = line.end() - len(line[0]) + line[0].index(rest.strip(), line[0].index(parameter))
                held = _value(file, begin, rest.strip())
                words += (held.instead(f"--{parameter.lower().replace('_', '-')}"), held)
    if model is None:
        return
    where = _beside(model, file.source.path)
    launch = ENGINES.launchers.find([model.instead("ollama"), model.instead("run"), where, *words], {})
    if isinstance(launch, Launch):
        yield Deployment(file.source, "Modelfile", file.source.path.rpartition("/")[2], launch)


def _value(file: Text, begin: int, raw: str) -> Word:
    """A value as a word, the quotes around it left out."""
    text = raw.strip()
    begin += len(raw) - len(raw.lstrip())
    if len(text) > 1 and text[0] == text[-1] == '"':
        text, begin = text[1:-1], begin + 1
    return Word(text, file.source, file.at(begin), file.at(begin) + len(text))


def _beside(model: Word, path: str) -> Word:
    """A model file that is named from where the Modelfile lies."""
    if not model.lower().endswith(".gguf") or os.path.isabs(model) or path == "-":
        return model
    return model.instead(os.path.normpath(os.path.join(os.path.dirname(path) or ".", model)))
