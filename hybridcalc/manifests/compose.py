"""Which engines does a compose file start? ``services.*.command`` and ``entrypoint``, with ``.env`` beside the file.

    command: --model-path moonshotai/Kimi-K3 --tp ${TP:-8}     ->   sglang  --model-path moonshotai/Kimi-K3 --tp 8

Compose replaces ``${VAR}`` from ``.env`` and the caller's environment; of that, only what the caller hands over counts.
"""

from collections.abc import Callable, Iterator

from hybridcalc.engines.engine import ENGINES
from hybridcalc.manifests.containers import COMPOSE, launches, resolved_words
from hybridcalc.manifests.records import Deployment, Hardware
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Node, Scalar, Sequence
from hybridcalc.shell.bounds import spend
from hybridcalc.shell.launch import mounted
from hybridcalc.shell.source import Setting, Source, Word
from hybridcalc.shell.variables import Outside

ReadBeside = Callable[[str], Source | None]
"""A file beside the one that names it, by its relative path; None where there is none."""


def is_compose(node: Node) -> bool:
    """Whether a document is a compose file."""
    services = node.get("services") if isinstance(node, Fields) else None
    return isinstance(services, Fields) and isinstance(node, Fields) and node.get("apiVersion") is None


def read_compose(node: Fields, outside: Outside, beside: ReadBeside) -> Iterator[Deployment]:
    """Every deployment of a compose file."""
    dotenv = beside(".env")
    values = env_file(dotenv) if dotenv is not None else {}

    def lookup(name: str) -> Setting | None:
        given = outside.get(name)
        if given is not None:
            return Setting((Word(given, node.source, 0, 0),))
        return values.get(name)

    services = node.mapping("services")
    for key, service in services.entries() if services is not None else ():
        if isinstance(service, Fields):
            yield from _service(key.value, service, lookup, outside, beside)


def _service(
    name: str, service: Fields, lookup: Callable[[str], Setting | None], outside: Outside, beside: ReadBeside
) -> Iterator[Deployment]:
    env = _environment(service, lookup, beside)
    entrypoint = resolved_words(service.get("entrypoint"), COMPOSE, lookup)
    command = resolved_words(service.get("command"), COMPOSE, lookup, entrypoint)
    image = service.scalar("image")
    image_words = resolved_words(image, COMPOSE, lookup)
    hardware = _hardware(service)
    mounts = [mount for item in service.items("volumes") for mount in _mount(item, lookup)]
    for launch in launches(entrypoint, command, env, outside, image=str(image_words[0]) if image_words else ""):
        model = launch.model or ENGINES.launchers.model_of(launch.words, mounts)
        line = service.source.place(service.begin).line
        yield Deployment(
            service.source, "compose", name, launch._replace(model=model), hardware, heads=(line - 1, line)
        )


def _environment(service: Fields, lookup: Callable[[str], Setting | None], beside: ReadBeside) -> dict[str, Setting]:
    env: dict[str, Setting] = {}
    files = service.get("env_file")
    for item in files.items if isinstance(files, Sequence) else [files]:
        named = item.string("path") if isinstance(item, Fields) else item.value if isinstance(item, Scalar) else ""
        source = beside(named) if named else None
        held = env_file(source) if source is not None else {}
        spend(words=len(held))
        env |= held
    declared = service.get("environment")
    if isinstance(declared, Fields):
        for key, value in declared.entries():
            spend(words=1)
            if isinstance(value, Scalar) and not value.empty:
                holder = Sequence(value.source, value.begin, value.end, None)
                holder.items.append(value)
                words = resolved_words(holder, COMPOSE, lookup)
                env[key.value] = Setting(tuple(words), "", words[0].place)
            else:
                env[key.value] = lookup(key.value) or Setting((), f"{key.value} comes from outside")
    for word in resolved_words(declared, COMPOSE, lookup) if isinstance(declared, Sequence) else []:
        name, equals, text = word.partition("=")
        if equals:
            env[name] = Setting((word if word.why else word.ending(len(text)),))
        else:
            env[name] = lookup(name) or Setting((), f"{name} comes from outside")
    return env


def _mount(item: Node, lookup: Callable[[str], Setting | None]) -> Iterator[tuple[str, Word]]:
    """What is mounted, in the short form and the long one."""
    spend(words=1)
    if isinstance(item, Fields):
        source = item.scalar("source")
        if source is not None:
            yield from mounted(f"source={source.value},target={item.string('target')}", source.word())
        return
    for word in resolved_words(item, COMPOSE, lookup):
        yield from mounted(word, word)


def _hardware(service: Fields) -> Hardware:
    for device in service.items("deploy", "resources", "reservations", "devices"):
        if isinstance(device, Fields) and any(
            isinstance(c, Scalar) and c.value == "gpu" for c in device.items("capabilities")
        ):
            ids, count = device.items("device_ids"), device.string("count")
            number = len(ids) if ids else int(count) if count.isdecimal() and len(count) < 5 else None
            return Hardware(None, number, device.source.place(device.begin))
    return Hardware()


def env_file(source: Source) -> dict[str, Setting]:
    """The variables of a ``.env`` file: NAME=VALUE lines, comments, one pair of quotes."""
    values: dict[str, Setting] = {}
    offset = 0
    for line in source.text.splitlines(keepends=True):
        stripped = line.strip()
        name, equals, value = stripped.removeprefix("export ").partition("=")
        if equals and not stripped.startswith("#") and name.strip().isidentifier():
            value = value.strip()
            if value[:1] in ("'", '"') and value.find(value[0], 1) > 0:
                value = value[1 : value.find(value[0], 1)]
            else:
                value = value.partition(" #")[0].strip()
            begin = offset + line.find("=") + 1
            word = Word(value, source, begin, offset + len(line.rstrip()))
            values[name.strip()] = Setting((word,))
        offset += len(line)
    return values
