"""What ``hybridcalc plan`` needs of an engine: its words, its memory, its plan and the words to say it in.

One subclass an engine (plan_sglang.py, plan_vllm.py), imported when the command is about that engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli.plan_inputs import LaunchWords, MemoryOptions
from hybridcalc.deployment import Rest, Workload
from hybridcalc.errors import IllegalCombination, InputError
from hybridcalc.findings import Finding
from hybridcalc.shell.flags import FlagTable
from hybridcalc.sweep import Outcome

if TYPE_CHECKING:
    from hybridcalc.cli.pictures import Draw
    from hybridcalc.output.pictures.page import Page

MOST_SHOWN = 4
Args = TypeVar("Args")
Answer = TypeVar("Answer")


class PlanOptions(NamedTuple):
    """Options of the command that no engine has, as typed; those of the other engine must be left out."""

    engine_version: str | None = None
    draft_layers: int | None = None
    draft_kv_bytes_per_token: int | None = None
    max_draft_tokens: int | None = None
    platform: str | None = None
    gpu_capability: str | None = None
    shared_prefix: int | None = None
    private: int | None = None


class Asked(NamedTuple, Generic[Args]):
    """MODEL, the arguments, and the flags that were passed over although no list of the engine's has them."""

    model: str
    args: Args
    unknown: tuple[str, ...]


class PlanEngine(ABC, Generic[Args, Answer]):
    """An engine that can be planned. ``memory_name`` names the axis that its memory is swept along."""

    title: ClassVar[str]
    table: ClassVar[FlagTable]
    model_flag: ClassVar[str]
    memory_name: ClassVar[str]
    cheap_fields: ClassVar[tuple[str, ...]]
    sweep_names: ClassVar[tuple[str, str]]
    unit: ClassVar[str]

    @abstractmethod
    def check_options(self, options: PlanOptions, given: MemoryOptions) -> None:
        """Raise InputError for an option that only another engine has."""

    @abstractmethod
    def read(self, words: Sequence[str], env: dict[str, str], unknown: list[str]) -> tuple[str | None, Args]:
        """MODEL and arguments of the engine's words."""

    @abstractmethod
    def complete(self, args: Args, options: PlanOptions, given: MemoryOptions, *, whole: bool) -> Args:
        """The arguments with the command's own options; checked together unless they are a part (not ``whole``)."""

    @abstractmethod
    def memory(self, given: MemoryOptions, swept: bool, model: Architecture, name: str) -> Callable[[Args], Rest]:
        """How the memory left follows from the arguments; ``swept`` when every point brings its own."""

    @abstractmethod
    def plan(self, model: Architecture, args: Args, rest: Rest, work: Workload) -> Answer:
        """The plan. Raises the engine's Refusal."""

    @abstractmethod
    def refused(self, model: Architecture, args: Args, refusal: IllegalCombination) -> dict[str, Any]:
        """The document of a plan that does not start."""

    @abstractmethod
    def solver(self, model: Architecture) -> Callable[..., Outcome]:
        """Solves the combinations of a sweep."""

    @abstractmethod
    def remarks(self, asked: Asked[Args], given: MemoryOptions) -> list[str]:
        """What the caller should know about the words beside what was passed over."""

    @abstractmethod
    def print_plan(self, answer: Answer, *, explain: bool, remarks: Sequence[str]) -> None:
        """The whole answer as text."""

    @abstractmethod
    def pictures(self, answer: Answer) -> "Draw":
        """The pictures of a plan by name, the usual one first."""

    @abstractmethod
    def page(self, answer: Answer, remarks: Sequence[str]) -> "Page":
        """The page about a plan."""

    @abstractmethod
    def comparison_cells(self, answer: Answer) -> dict[str, str]:
        """The rows of one side of a comparison."""

    @abstractmethod
    def findings(self, answer: Answer) -> tuple[Finding, ...]:
        """The findings of a plan."""

    def arguments(
        self,
        launch: LaunchWords,
        options: PlanOptions,
        given: MemoryOptions,
        more: Sequence[str] = (),
        *,
        whole: bool = True,
    ) -> Asked[Args]:
        """MODEL and arguments of the words and ``more`` of them. What is not ``whole``, because a sweep adds to it, is
        not checked as a whole.
        """
        unknown: list[str] = []
        model, args = self.read([*launch.words, *more], launch.env, unknown)
        if unknown and launch.strict:
            raise InputError(
                f"{unknown[0][:40]} is no flag of {self.title} nor of plan", fix="see `hybridcalc plan --help`"
            )
        if model is None:
            raise InputError(
                "plan needs a MODEL", fix=f"name a preset (`hybridcalc models`), a config.json, or {self.model_flag}"
            )
        if len(model.split()) > 1 or model.endswith(".sh"):
            raise InputError(f"MODEL {model[:40]!r} looks like a launch line", fix="write it after --")
        return Asked(model, self.complete(args, options, given, whole=whole), tuple(unknown))

    def said(self, asked: Asked[Args], given: MemoryOptions) -> list[str]:
        """Remarks on the words: passed over, without effect, or read by another version's rules."""
        said = self.remarks(asked, given)
        if asked.unknown:
            shown = ", ".join(name[:40] for name in asked.unknown[:MOST_SHOWN])
            shown += ", ..." if len(asked.unknown) > MOST_SHOWN else ""
            said.append(f"passed over, since no {self.title} known here has it: {shown}")
        return [text for text in said if text]


def foreign(options: dict[str, object], title: str) -> None:
    """Raise InputError for the first option that is given although ``title`` has no use for it."""
    for flag, value in options.items():
        if value is not None:
            raise InputError(f"{flag} says nothing about {title}", fix="leave it out")
