"""What a file says about one deployment: what it launches, on which hardware, and what is asked of it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from hybridcalc.shell.launch import Launch
from hybridcalc.shell.source import Place, Setting, Source, Word


class Hardware(NamedTuple):
    """GPUs of a deployment: the ``label`` that names their kind, how many a node has, and how many nodes."""

    label: str | None = None
    gpus: int | None = None
    gpus_place: Place | None = None
    nodes: int = 1


class Deployment(NamedTuple):
    """One engine that a file starts. ``native`` is what a hybridcalc.yaml adds (memory, workload, expectations),
    ``marks`` where it says so; ``heads`` the lines where the document and the mappings around the launch begin.
    """

    source: Source
    kind: str
    name: str
    launch: Launch
    hardware: Hardware = Hardware()
    replicas: int | None = None
    heads: tuple[int, ...] = ()
    native: Any = None
    marks: Mapping[str, Place] = {}

    @property
    def path(self) -> str:
        """The file it stands in."""
        return self.source.path

    @property
    def engine(self) -> str:
        """The engine's name."""
        return self.launch.engine

    @property
    def words(self) -> tuple[Word, ...]:
        """The engine's arguments."""
        return self.launch.words

    @property
    def env(self) -> Mapping[str, Setting]:
        """The environment it starts under."""
        return self.launch.env

    @property
    def place(self) -> Place:
        """Where the launch stands."""
        return self.launch.place

    @property
    def model(self) -> Word | None:
        """What the file says it serves where no flag does."""
        return self.launch.model

    @property
    def image(self) -> str:
        """The container's image."""
        return self.launch.image

    @property
    def orphan(self) -> Word | None:
        """A line of flags behind the launch that belongs to no command."""
        return self.launch.orphan


class Passed(NamedTuple):
    """A file of a walk of a kind that is read only where it is named, and that may start an engine."""

    path: str


class Trouble(NamedTuple):
    """Something about a file that is no deployment: why it could not be read, that a template is to be rendered, or
    that nothing was read in it. ``given``: somebody named the file.
    """

    path: str
    line: int
    message: str
    fix: str = ""
    unreadable: bool = True
    given: bool = True
