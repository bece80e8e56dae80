"""Which engines does a configuration of llama-swap start? ``models.*.cmd``, its macros filled in.

    macros: {"server": "llama-server --port ${PORT}", "ctx": 32768}
    models: {qwen: {cmd: "${server} -m /models/${MODEL_ID}.gguf -c ${ctx}"}}

A macro of a model stands before one of the file; macros may hold others. ``MODEL_ID`` is the model's name and
``PORT`` counts from ``startPort``. A command is words, wherever its lines end; lines that begin with # are comments.
Source: llama-swap's config-schema.
"""

import re
from collections.abc import Iterator

from hybridcalc.manifests import Deployment, guides
from hybridcalc.manifests.containers import launches, marked, replaced
from hybridcalc.manifests.environment import declared
from hybridcalc.manifests.fields import split_words
from hybridcalc.manifests.yamltree import Mapping
from hybridcalc.shell import Setting, Text
from hybridcalc.shell.variables import Outside, Variables

MACRO = re.compile(r"\$\{([A-Za-z0-9_][A-Za-z0-9_.-]*)\}")
FIRST_PORT = "5800"
MOST_DEEP = 8
"""How far macros may stand in one another."""
_OWN = ("macros", "startPort", "healthCheckTimeout", "groups", "hooks")
_COMMENT = re.compile(r"(?m)^[ \t]*#.*$")


def is_llama_swap(node: Mapping) -> bool:
    """Whether a document is a configuration of llama-swap: models with commands, and a field or a macro of its own."""
    models = node.get("models")
    held = [value for _, value in models.entries()] if isinstance(models, Mapping) else []
    commands = [model.scalar("cmd") for model in held if isinstance(model, Mapping)]
    own = any(node.get(name) is not None for name in _OWN)
    return any(cmd is not None and (own or MACRO.search(cmd.value)) for cmd in commands)


def read_llama_swap(node: Mapping, outside: Outside) -> Iterator[Deployment]:
    """Every model's deployment."""
    models, port = node.mapping("models"), node.scalar("startPort")
    for key, model in models.entries() if models is not None else ():
        command = model.scalar("cmd") if isinstance(model, Mapping) else None
        if not isinstance(model, Mapping) or command is None:
            continue
        first = port.word() if port is not None else key.word().instead(FIRST_PORT)
        macros = {"MODEL_ID": Setting((key.word(),)), "PORT": Setting((first,))}
        for held in (node.get("macros"), model.get("macros")):
            macros |= {name: setting for name, setting, _ in declared(held) if setting is not None}
        known = Variables(Text(node.source, node.source.text), macros, outside, ())
        text, missing = replaced(guides.script(command.text()), MACRO, known)
        for _ in range(MOST_DEEP):
            if not MACRO.search(text.text):
                break
            text, missing = replaced(text, MACRO, known)
        words = marked(split_words(text.replaced(_COMMENT, lambda line: " " * len(line[0]))), missing)
        env = {name: setting for name, setting, _ in declared(model.get("env")) if setting is not None}
        for launch in launches(words, [], env, outside):
            yield Deployment(node.source, "llama-swap", key.value, launch)
