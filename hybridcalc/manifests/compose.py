"""Which engines does a compose file start? ``services.*.command`` and ``entrypoint``, with ``.env`` beside the file.

    command: --model-path moonshotai/Kimi-K3 --tp ${TP:-8}     ->   sglang  --model-path moonshotai/Kimi-K3 --tp 8

Compose replaces ``${VAR}`` from ``.env`` and the caller's environment; of that, only what the caller hands over counts.
"""

from collections.abc import Callable, Iterator

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment, Hardware
from hybridcalc.manifests.containers import COMPOSE, launches, resolved_word, resolved_words
from hybridcalc.manifests.dockerfile import Image, exec_form, image_launches, image_of
from hybridcalc.manifests.environment import declared, env_file
from hybridcalc.manifests.placement import replicas
from hybridcalc.manifests.yamltree import Mapping as Fields
from hybridcalc.manifests.yamltree import Node, Scalar, Sequence
from hybridcalc.shell import Setting, Source, Text, Word, spend
from hybridcalc.shell.containers import mounted
from hybridcalc.shell.variables import Outside, Variables

ReadBeside = Callable[[str], Source | None]
"""A file beside the one that names it, by its relative path; None where there is none."""


def is_compose(node: Node) -> bool:
    """Whether a document is a compose file."""
    services = node.get("services") if isinstance(node, Fields) else None
    return isinstance(services, Fields) and isinstance(node, Fields) and node.get("apiVersion") is None


def read_compose(node: Fields, outside: Outside, beside: ReadBeside) -> Iterator[Deployment]:
    """Every deployment of a compose file."""
    whole = Text(node.source, node.source.text)
    given = {name: Setting((Word(value, node.source, 0, 0),)) for name, value in outside.items()}
    known = Variables(whole, env_file(beside(".env")) | given, {}, ())
    services = node.mapping("services")
    for key, service in services.entries() if services is not None else ():
        if isinstance(service, Fields):
            yield from _service(key.value, service, known, outside, beside)


def _service(
    name: str, service: Fields, known: Variables, outside: Outside, beside: ReadBeside
) -> Iterator[Deployment]:
    env = _environment(service, known, beside)
    entrypoint = resolved_words(service.get("entrypoint"), COMPOSE, known)
    command = resolved_words(service.get("command"), COMPOSE, known, entrypoint)
    image = resolved_words(service.scalar("image"), COMPOSE, known)
    built = _built(service, known, outside, beside)
    env = {**built.env, **env} if built is not None else env
    if built is not None and built.entrypoint is not None and not entrypoint:
        entrypoint = exec_form(built.entrypoint) or []
    hardware = _hardware(service, known)
    mounts = [mount for item in service.items("volumes") for mount in _mount(item, known)]
    if built is not None and not command and service.get("entrypoint") is None:
        found = image_launches(built, env, outside)
    else:
        found = launches(entrypoint, command, env, outside, image=image[0] if image else "")
    for launch in found:
        if not launch.words and service.get("image") is None and not service.string("build", "context"):
            continue  # an overlay on another file's service, which has the arguments
        model = launch.model or ENGINES.launchers.model_of(launch.words, mounts)
        place = service.source.place(service.begin)
        line = place.line
        if built is not None:
            place = launch.place if launch.place.path == place.path else place
            release = built.releases.get(launch.engine, "")
            launch = launch._replace(image=built.base, release=release, place=place)
        heads = (line - 1, line)
        copies = replicas((service,))
        yield Deployment(service.source, "compose", name, launch._replace(model=model), hardware, copies, heads)


def _built(service: Fields, known: Variables, outside: Outside, beside: ReadBeside) -> Image | None:
    """The image that a service is built as, from the Dockerfile of its context; None where that is not there, or the
    service adds nothing to it.
    """
    if not any(service.get(name) is not None for name in ("entrypoint", "command", "environment", "env_file")):
        return None
    build = service.get("build")
    fields = build if isinstance(build, Fields) else None
    context = fields.scalar("context") if fields is not None else build if isinstance(build, Scalar) else None
    words = resolved_words(context, COMPOSE, known)
    if not words or words[0].why:
        return None
    file = beside(f"{words[0]}/{(fields.string('dockerfile') if fields is not None else '') or 'Dockerfile'}")
    return None if file is None else image_of(Text(file, file.text), outside)


def _environment(service: Fields, known: Variables, beside: ReadBeside) -> dict[str, Setting]:
    env: dict[str, Setting] = {}
    files = service.get("env_file")
    for item in files.items if isinstance(files, Sequence) else [files]:
        named = item.string("path") if isinstance(item, Fields) else item.value if isinstance(item, Scalar) else ""
        env |= env_file(beside(named)) if named else {}
    for name, setting, _ in declared(service.get("environment"), lambda item: resolved_word(item, COMPOSE, known)):
        given = setting or known.known(name)
        if given is not None:  # a name alone hands on what the caller sets
            env[name] = given
    return env


def _mount(item: Node, known: Variables) -> Iterator[tuple[str, Word]]:
    """What is mounted, in the short form and the long one."""
    spend(words=1)
    if isinstance(item, Fields):
        source = item.scalar("source")
        if source is not None:
            yield from mounted(f"source={source.value},target={item.string('target')}", source.word())
        return
    for word in resolved_words(item, COMPOSE, known):
        yield from mounted(word, word)


def _hardware(service: Fields, known: Variables) -> Hardware:
    """The GPUs that a service reserves; one text may name several: ``"${GPUS:-0,1}"``."""
    devices = service.items("deploy", "resources", "reservations", "devices")
    for device in (*devices, *service.items("gpus")):
        if isinstance(device, Fields) and (
            device not in devices
            or any(isinstance(c, Scalar) and c.value == "gpu" for c in device.items("capabilities"))
        ):
            ids = [word for item in device.items("device_ids") for word in resolved_words(item, COMPOSE, known)]
            count = next(iter(resolved_words(device.get("count"), COMPOSE, known)), "")
            number = int(count) if count.isdecimal() and len(count) < 5 else None
            if ids:
                number = None if any(word.why for word in ids) else sum(len(word.split(",")) for word in ids)
            return Hardware(None, number, device.source.place(device.begin))
    return Hardware()
