"""What is an engine? All that any room asks of one (`Engine`), and where each is found (`ENGINES`).

    ENGINES["vllm"].plan(model, args, rest, workload)        for name, row in ENGINES.rows.items(): row.title

An engine is one object, in engines/<name>/engine.py, loaded when it is first asked for; the rows say what can be said
without it: its title, what starts it, and its modules in rooms that lie above (a grammar of its logs, its tensors).
What an engine cannot do is None, and `offered` says so in the user's words. A new engine is added here with a row.
"""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

from hybridcalc.errors import (
    ConfigError,
    HybridcalcError,
    InputError,
    NotModelled,
    Refusal,
    ShardingError,
    printable,
    quoted,
)
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.architecture.geometry import Architecture
    from hybridcalc.architecture.quantization import Quantization
    from hybridcalc.architecture.tensors import Widths
    from hybridcalc.architecture.weights import Parameters
    from hybridcalc.deployment import Memory, MemoryPart, Rest, Workload
    from hybridcalc.engines.crossover import Crossover, Stream
    from hybridcalc.engines.decide import Decided
    from hybridcalc.engines.placement import Placement
    from hybridcalc.engines.weights import Weights
    from hybridcalc.findings import Finding, Rule
    from hybridcalc.hardware import Gpu
    from hybridcalc.shell.flags import Flag, FlagTable
    from hybridcalc.shell.launch import Launch, Launchers
    from hybridcalc.steps import BudgetLine, Step, Suggestion

Offered = TypeVar("Offered")


class Answer(Protocol):
    """A plan, as far as every engine's is alike. The document of it is `to_dict`."""

    model: "Architecture"
    args: Any
    rest: "Rest"
    workload: "Workload"

    @property
    def version(self) -> str:
        """The release whose rules were used."""

    @property
    def requests(self) -> int:
        """Requests of the workload that run at once, over all attention workers of a server."""

    @property
    def tokens(self) -> int:
        """Tokens of sequences that the KV holds."""

    @property
    def idle_percent(self) -> float | None:
        """The share of the pool that does not bind which no request can use; None without a length."""

    @property
    def concurrency(self) -> int:
        """Requests of the workload that run at once in one attention worker or replica."""

    @property
    def workers(self) -> int:
        """Attention workers, or replicas, of the whole deployment."""

    @property
    def binding(self) -> str:
        """What caps them."""

    @property
    def budget(self) -> "tuple[BudgetLine, ...]":
        """Every buffer of a rank."""

    @property
    def findings(self) -> "tuple[Finding, ...]":
        """Traps that the configuration walks into."""

    @property
    def suggestions(self) -> "tuple[Suggestion, ...]":
        """Flags that serve the workload better, the most gain first."""

    @property
    def log_lines(self) -> list[str]:
        """The lines about caches that a boot will print."""

    @property
    def notes(self) -> list[str]:
        """Limits of what is known, and flags that do nothing."""

    @property
    def steps(self) -> "list[Step]":
        """Every figure with its formula, numbers, unit and source."""

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``plan --json``."""


class Compare(Protocol):
    """The crossovers of a model with itself and with a baseline, up to ``longest`` tokens in the curve."""

    def __call__(
        self, model: "Architecture", baseline: "Architecture | None", args: Any, *, longest: int | None = None
    ) -> "Crossover":
        """Compare them. Raises InputError for a model without a state."""
        ...


class Outcome(NamedTuple):
    """What one combination comes to: units of the pool (slots, blocks), tokens, requests, and what binds."""

    units: int
    tokens: int
    requests: int
    binding: str


class Sweeping(NamedTuple):
    """How an engine is swept. ``solve`` says what arguments come to with so much memory and that workload (without a
    length: as long as the engine lets them), given what ``prepare`` made for those that share it; either raises
    HybridcalcError for what does not start.

    ``cheap_fields`` are arguments that change only the arithmetic, not what is prepared for it; ``names`` are what the
    engine calls its units and tokens, ``unit`` is the unit in words.
    """

    prepare: "Callable[[Architecture, Any], Any]"
    solve: "Callable[[Any, Any, float, Workload], Outcome]"
    cheap_fields: tuple[str, ...]
    names: tuple[str, str]
    unit: str


_WEIGHED: "dict[tuple[Any, ...], Weights]" = {}
MOST_WEIGHED = 512
"""Answers kept: a sweep asks for the same weights at every point."""


WEIGHTS_BUDGET = "weights_budget_gib"
"""Under this name a refusal of weights that do not fit carries what they would have to fit into."""
RANKS_SHARED = (1, 2, 3, 4, 6, 8, 12, 16)
RANKS_TRIED = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128)


class Engine:
    """What every room asks of an engine; arguments are the engine's own class, under its own names.

    The answers lie in modules of the engine's folder that are named alike in all of them: command (`TABLE`,
    `from_words`), config (`KNOWN_ENVIRONMENT`), releases (`RELEASES`, `rules_for`), memory, figures (`unsized`),
    planner, server_plan, rules; and where the engine is swept or weighed, sweep and crossover. Each is loaded when it
    is first asked for.

    ``options`` are options of commands that the engine takes beside its flags; any other is refused by name. One sets
    the argument of its name, where there is one, or the argument that it is ``renamed`` to. ``memory_option`` names the
    one that says the memory left. ``stages`` are those of a start-up, in order.
    ``own_length``: a plan that no length is given for is one of requests as long as the engine serves.
    ``indivisible``: stage and rule of a start-up whose ranks do not divide the model. ``variants``: flags with which
    something else serves, with flags of its own, and its name. ``model_after_flags``: MODEL may stand behind flags, and
    not only before them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    model_flag: ClassVar[str]
    options: ClassVar[frozenset[str]]
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    memory_option: ClassVar[str]
    stages: ClassVar[tuple[str, ...]] = ()
    own_length: ClassVar[bool] = False
    indivisible: ClassVar[tuple[str, str]] = ("", "")
    variants: ClassVar[Mapping[str, str]] = MappingProxyType({})
    model_after_flags: ClassVar[bool] = False

    def part(self, name: str) -> Any:
        """A module of the engine's folder."""
        return _module(f"{type(self).__module__.rpartition('.')[0]}.{name}")

    def offers(self, name: str) -> bool:
        """Whether the engine's folder has a module of that name."""
        return find_spec(f"{type(self).__module__.rpartition('.')[0]}.{name}") is not None

    @property
    def flags(self) -> "FlagTable":
        """The flags of its command line."""
        return cast("FlagTable", self.part("command").TABLE)

    @property
    def retired(self) -> Mapping[str, str]:
        """Old names of flags -> their new ones."""
        return {}

    @property
    def environment(self) -> frozenset[str]:
        """Environment switches that change a figure or a refusal."""
        return cast("frozenset[str]", self.part("config").KNOWN_ENVIRONMENT)

    @property
    def newest(self) -> str:
        """The newest release that is known."""
        return cast(str, self.part("releases").RELEASES.newest)

    @property
    def releases(self) -> tuple[str, ...]:
        """The releases that are known, oldest first."""
        return cast("tuple[str, ...]", self.part("releases").RELEASES.versions)

    def note(self, version: str | None) -> str:
        """What is to be said where other rules stand in for those of ``version``. Raises InputError for none."""
        return cast(str, self.part("releases").rules_for(version)[1])

    def release(self, version: str | None) -> str:
        """The release whose rules are used for ``version``. Raises InputError for none."""
        return cast(str, self.part("releases").rules_for(version)[0].version)

    def knows(self, version: str) -> bool:
        """Whether there are rules for a version of the engine."""
        try:
            self.note(version)
        except InputError:
            return False
        return True

    def read(
        self, words: Sequence[str], env: Mapping[str, str], unknown: list[str] | None = None
    ) -> tuple[str | None, Any]:
        """MODEL (None where no word names it) and arguments of the words after a launcher. Raises InputError.

        ``unknown`` collects the flags that are ignored although no list of the engine's has them.
        """
        found: tuple[str | None, Any] = self.part("command").from_words(words, env, unknown=unknown)
        return found

    def arguments(self) -> Any:
        """Its arguments, all at their defaults."""
        return self.part("config").ARGUMENTS()

    def offered(self, name: str, what: str) -> Any:
        """A module of the engine's folder that not every engine has. Raises InputError where it has none."""
        return self.part(offered(name if self.offers(name) else None, what, self.title))

    def check_options(self, given: Mapping[str, Any]) -> None:
        """Raise InputError for an option that is given (not None) although only other engines have it."""
        for name, value in given.items():
            if value is not None and name not in self.options:
                raise InputError(f"--{name.replace('_', '-')} says nothing about {self.title}", fix="leave it out")

    def with_options(self, args: Any, given: Mapping[str, Any]) -> Any:
        """The arguments with options of a command, None for those that are not given. Raises InputError.

        Several GPUs (``gpu``) are shared out as ``shared_gpus`` says.
        """
        shared, card = self.shared_gpus(args, given), given.get("gpu")
        if shared:
            given = {**given, "tp_size": shared}
        fields = {self.renamed.get(name, name): value for name, value in given.items() if value is not None}
        args = replace(args, **{field: value for field, value in fields.items() if hasattr(args, field)})
        if card is not None and card.cards is not None and (ranks := self.ranks(args)) > card.cards:
            from hybridcalc.hardware import gpus_in_words

            raise InputError(f"{ranks} ranks on {gpus_in_words(card.cards)}", fix=f"write --gpu {ranks}x...")
        return args

    def shared_gpus(self, args: Any, given: Mapping[str, Any]) -> int:
        """GPUs (of ``gpu``) that tensor-parallel ranks of a replica and stage share, in even parts; 0 where something
        names those ranks, and for a launch, which has the engine's defaults: only a model alone is shared out
        (``share``).
        """
        card: Gpu | None = given.get("gpu")
        if card is None or card.cards is None or not given.get("share") or given.get("tp_size"):
            return 0
        each, over = divmod(card.cards, self.ranks(args))
        return each if each > 1 and not over else 0

    def uneven_gpus(self, args: Any, given: Mapping[str, Any]) -> str:
        """What to know where GPUs that nothing names ranks for do not divide among replicas and stages; else empty."""
        card: Gpu | None = given.get("gpu")
        if card is None or card.cards is None or not given.get("share") or given.get("tp_size"):
            return ""
        parts = self.ranks(args)
        each, over = divmod(card.cards, parts)
        if not over or each < 2:
            return ""
        return f"{card.cards} GPUs do not divide by {parts}: each rank stands alone; --tp {each} takes {each * parts}"

    def not_shared(self, model: "Architecture", args: Any, gpus: int, stopped: Exception) -> Refusal | None:
        """What to say where ranks that nobody typed do not divide the model, and which numbers of GPUs do; None where
        none are shared, or something else stopped the start.
        """
        stage, rule = self.indivisible
        if not gpus or not (isinstance(stopped, ShardingError) or getattr(stopped, "rule", "") == rule):
            return None
        fitting = self._fitting_ranks(model, args, RANKS_SHARED)
        reason = f"{gpus} GPUs do not share {model.name}"
        return Refusal(reason, stage=stage, rule=rule, fix=f"{', '.join(fitting)} do" if fitting else "")

    def changed(self, args: Any, flags: str) -> Any:
        """The arguments with what the flags of a suggestion set; variables stand in front of them."""
        from hybridcalc.shell.parse import split_command

        words = split_command(flags)
        env = dict(word.split("=", 1) for word in words if not word.startswith("-") and "=" in word)
        typed = self.read([word for word in words if word.startswith("-") or "=" not in word], env, unknown=[])[1]
        return replace(args, **typed.given() | {"env": {**args.env, **env}})

    def check_memory(self, known: "Memory") -> None:
        """Raise InputError for figures of which one would be ignored."""
        self.part("memory").check_memory(known)

    def check_arguments(self, args: Any) -> None:
        """Raise InputError for an argument whose type, bound or choice the command line would refuse."""
        self.part("config").check_arguments(args)

    def check_together(self, args: Any) -> None:
        """Raise InputError for arguments that contradict each other, or of which one says nothing without another."""
        self.part("config").check_together(args)

    def memory(self, model: "Architecture", args: Any, known: "Memory") -> "Rest":
        """The memory left for the caches. Raises MemoryUnknown with the figures that are missing, and Refusal."""
        asked = known
        if known.weights is None and known.weighed is None and self.offers("weights"):
            known = known._replace(weighed=partial(self._weights_part, model, args))
        try:
            rest = cast("Rest", self.part("memory").rest_of(model, args, known))
            return rest._replace(again=partial(self.memory, model, known=asked)) if rest.parts else rest
        except Refusal as refusal:
            budget = refusal.outputs.pop(WEIGHTS_BUDGET, None)
            if budget is None:
                raise
            fix = self._enough_ranks(model, args, budget) if known.weights is None else ""
            fix = "; or ".join((fix or refusal.fix, *self._leaner(model, args)))
            better = Refusal(refusal.reason, stage=refusal.stage, rule=refusal.rule, fix=fix)
            better.outputs = refusal.outputs
            raise better from None

    def weights_moved(
        self, known: "Memory", model: "Architecture", args: Any, first: "tuple[Architecture, Any]"
    ) -> "Memory":
        """A memory whose weights were given for another model or other arguments (``first``): multiplied by what the
        computed weights of both differ by. Raises InputError where nothing tells that, Refusal for ranks that do not
        divide the model.
        """
        if known.weights is None or not self.offers("weights"):
            return known
        decided = self.part("weights").DECIDED_BY
        if model == first[0] and (decided(args), args.env) == (decided(first[1]), first[1].env):
            return known
        from hybridcalc.deployment import COMPUTED, WEIGHTS_NAME, MemoryPart

        here, there = self._weights_part(model, args), self._weights_part(*first)
        if here is None or there is None:
            raise InputError(
                "--weights is of the plan as given, and nothing tells what they are here", fix="plan this by itself"
            )
        if here.likely == there.likely:
            return known
        why = f"--weights x {here.likely:.2f} / {there.likely:.2f}, as computed here and for the plan as given"
        moved = MemoryPart.of(WEIGHTS_NAME, known.weights * here.likely / there.likely, COMPUTED, why)
        return known._replace(weights=None, weighed=lambda: moved)

    def _leaner(self, model: "Architecture", args: Any) -> tuple[str, ...]:
        """What is there to load instead of a checkpoint that is too large: nothing for one that is quantised."""
        from hybridcalc.engines.checkpoints import checkpoint_of

        stored = checkpoint_of(model, args.quantization)
        return () if stored.quantization or stored.marked else ("a quantised checkpoint",)

    def _weights_part(self, model: "Architecture", args: Any) -> "MemoryPart | None":
        """Weights on a rank, computed; None where nothing is known of them. Raises Refusal for ranks that do not
        divide the model.
        """
        from hybridcalc.deployment import COMPUTED, ESTIMATED, WEIGHTS_NAME, MemoryPart

        try:
            found = self.weights(model, args)
        except (NotModelled, ConfigError):
            return None
        except ShardingError as error:
            stage, rule = self.indivisible
            raise Refusal(error.message, stage=stage, rule=rule, fix=error.fix) from None
        how = COMPUTED if found.exact else ESTIMATED
        low, likely, high = (size / GIB for size in (found.low, found.likely, found.high))
        return MemoryPart(WEIGHTS_NAME, low, likely, high, how, found.uncertain or found.weights_from, found.findings)

    def _enough_ranks(self, model: "Architecture", args: Any, budget_gib: float) -> str:
        """The fewest ranks whose weights are below a budget, as a flag; empty where none of those tried has."""
        for ranks in RANKS_TRIED:
            if ranks <= self.server_ranks(args):
                continue
            try:
                found = self._weigh(model, self.with_options(args, {"tp_size": ranks}))
            except (ShardingError, Refusal, InputError):
                continue
            if found.likely < budget_gib * GIB:
                return f"at least --tp {ranks}: {found.likely / GIB:.1f} GiB of weights a rank"
        return ""

    def weights(self, model: "Architecture", args: Any) -> "Weights":
        """What the weights take on the heaviest rank. Raises ShardingError naming the ranks that do, NotModelled, and
        InputError.
        """
        try:
            return self._weigh(model, args)
        except ShardingError as error:
            error.fix = "; or ".join(filter(None, (self._ranks_that_do(model, args), error.fix)))
            raise

    def _ranks_that_do(self, model: "Architecture", args: Any) -> str:
        """The tensor-parallel sizes that divide the model, with all other arguments as they are; empty for none."""
        fitting = self._fitting_ranks(model, args, (1, *RANKS_TRIED))
        return f"{', '.join(fitting)} do" if len(fitting) > 1 else f"only --tp {fitting[0]} does" if fitting else ""

    def _fitting_ranks(self, model: "Architecture", args: Any, tried: Sequence[int]) -> list[str]:
        """Those of the tensor-parallel sizes that divide states, heads and weights."""
        fitting = []
        for ranks in tried:
            asked = self.with_options(args, {"tp_size": ranks})
            with suppress(HybridcalcError):
                with suppress(InputError):  # a model that is not planned has weights all the same
                    self.prepare(model, asked)
                self.check_ranks(model, asked)
                with suppress(NotModelled, ConfigError):  # nothing is known of its weights
                    self._weigh(model, asked)
                fitting.append(str(ranks))
        return fitting

    def _weigh(self, model: "Architecture", args: Any) -> "Weights":
        from hybridcalc.engines.weights import weigh

        own = self.offered("weights", "weights")
        key = (self.name, model, own.DECIDED_BY(args), tuple(sorted(args.env.items())))
        found = _WEIGHED.get(key)
        if found is None:
            found = weigh(
                model,
                own.placement(model, args),
                dtype=own.dtype_of(model, args),
                quantization=args.quantization,
                ranks=self.server_ranks(args),
            )
            if model.config is None:  # a preset: nothing on disk can change
                if len(_WEIGHED) >= MOST_WEIGHED:
                    _WEIGHED.clear()
                _WEIGHED[key] = found
        return found

    def widths(
        self, model: "Architecture", args: Any, found: "Parameters", quantization: "Quantization | None"
    ) -> "Widths":
        """How many ranks share each kind of tensor. Raises ShardingError and InputError."""
        placed: Placement = self.offered("weights", "weights").placement(model, args)(found, quantization)
        return placed.widths

    def workers(self, args: Any) -> int:
        """Data-parallel workers, or replicas, of a server."""
        return cast("int", getattr(args, self.renamed.get("dp_size", "dp_size"), 1))

    def stream(self, model: "Architecture", args: Any) -> "Stream":
        """What one request moves in a step on one rank. Raises what the engine refuses."""
        return cast("Stream", self.offered("crossover", "floors of time").stream(model, args))

    def server_ranks(self, args: Any) -> int:
        """GPUs that share one copy of the weights."""
        raise NotImplementedError

    def remarks(self, args: Any, known: "Memory") -> list[str]:
        """What to know of the arguments beside a given memory: whose rules are used, and what changes nothing."""
        said, card = [self.note(args.engine_version)], known.gpu
        if card is not None and card.cards is not None and (ranks := self.ranks(args)) < card.cards:
            from hybridcalc.hardware import gpus_in_words, idle_in_words

            said.append(idle_in_words(ranks, gpus_in_words(card.cards)))
        return [text for text in said if text]

    def decide(self, model: "Architecture", args: Any, workload: "Workload") -> "Decided":
        """The refusals and traps that hold whatever the memory. Raises InputError for what makes no sense."""
        from hybridcalc.engines.decide import decide

        def unsized() -> Any:
            found = self.part("figures").unsized(model, args, workload)
            self.check_ranks(model, args)  # in the order of `plan`
            return found

        return decide(self.rules(), unsized, workload)

    def prepare(self, model: "Architecture", args: Any) -> Any:
        """What start-up settles before memory counts. Raises Refusal."""
        return self.part("planner").prepare(model, args)

    def _refused_with(self, model: "Architecture", args: Any, gib: float, workload: "Workload") -> Refusal | None:
        """Why it would not start with exactly that memory; None where it would."""
        from hybridcalc.deployment import exact_rest

        try:
            self.part("server_plan").plan(model, args, rest=exact_rest(gib), workload=workload)
        except Refusal as refusal:
            return refusal
        return None

    def attention_ranks(self, args: Any) -> int:
        """Ranks that share the heads of one attention layer."""
        return 1

    def check_ranks(self, model: "Architecture", args: Any) -> None:
        """Raise Refusal for ranks that cannot share a model's heads, whatever the memory."""
        from hybridcalc.architecture.kv import uneven_heads

        ranks, heads = self.attention_ranks(args), model.num_attention_heads
        uneven = uneven_heads(model.attention, heads, ranks)
        if uneven:
            fitting = [str(n) for n in range(1, 65) if not uneven_heads(model.attention, heads, n)]
            stage, rule = self.indivisible
            fix = f"{', '.join(fitting[:14])} do"
            raise Refusal(f"--tp {ranks} does not divide {uneven}", stage=stage, rule=rule, fix=fix)

    def plan(self, model: "Architecture", args: Any, rest: "Rest", workload: "Workload") -> Answer:
        """The whole plan. Raises Refusal for what does not start with the likely memory.

        A start that an estimated memory leaves open is undecided and says so: in the refusal, or where the likely
        memory is enough in a finding of the rule that would refuse it, an error as that is.
        """
        from hybridcalc.findings import Finding

        planned = self.part("server_plan").plan
        if not rest.exact:
            refused = self._refused_with(model, args, rest.low_gib, workload)
            if refused is not None:
                rest = rest._replace(undecided=(Finding.of(_undecided(refused, rest.start_of("likely", "high"))),))
        try:
            found = cast(Answer, planned(model, args, rest=rest, workload=workload))
        except Refusal as refusal:
            if rest.exact or self._refused_with(model, args, rest.high_gib, workload) is not None:
                raise
            raise _undecided(refusal, rest.start_of("low", "likely")) from None
        self.check_ranks(model, args)  # what a start-up refuses before is said as it says it
        return found

    def command(self, model: str) -> tuple[str, ...]:
        """The first words of the command that starts a server of ``model``."""
        return (*ENGINES.rows[self.name].starter.programs[0], self.model_flag, model)

    def typed(self, name: str, given: Mapping[str, Any]) -> "tuple[Flag, ...]":
        """The flags that set an argument that was given; none for what is no flag's, or another flag's, business."""
        flag = self.flags.by_field.get(name)
        return () if flag is None else (flag,)

    def fraction(self, args: Any) -> dict[str, Any]:
        """``fraction`` of the GPU that weights and caches share, and ``fraction_from``: given, or whose default."""
        raise NotImplementedError

    def ranks(self, args: Any) -> int:
        """GPUs that a server takes, all its replicas together."""
        raise NotImplementedError

    def rules(self) -> "tuple[Rule, ...]":
        """Every rule, refusals included."""
        return cast("tuple[Rule, ...]", self.part("rules").RULES)

    def refusals(self) -> frozenset[str]:
        """Rules that stop a start-up."""
        return frozenset(rule.id for rule in self.rules() if rule.check is None)

    @property
    def sweeping(self) -> Sweeping | None:
        """How it is swept; None where it is not."""
        if not self.offers("sweep"):
            return None
        return cast(Sweeping, self.part("sweep").SWEEPING)

    @property
    def crossover(self) -> "Compare | None":
        """Crossovers of a model, with itself and with a baseline; None where they are not known."""
        return cast("Compare", self.part("crossover").compare) if self.offers("crossover") else None


def _undecided(refusal: Refusal, start: str) -> Refusal:
    """A refusal that another memory within the estimate would not give."""
    said = f"{refusal.reason}; undecided by the estimate of memory: it starts with {start}"
    about = {name: getattr(refusal, name) for name in ("stage", "rule", "fix", "flag", "release")}
    open_one = Refusal(said, **about)
    open_one.outputs = refusal.outputs
    return open_one


class Starter(NamedTuple):
    """What starts an engine, in commands and in manifests.

    ``programs``: first words of a command; an interpreter of any version and path counts as ``python``.
    ``model_flags`` name the model, the engine's own name for it first. ``images``: a pattern of names of images whose
    entrypoint it is, or into which its arguments go; ``own_images`` are its own, whose tags are its versions.
    ``appended``: variables whose words images append to its arguments; ``configured``: patterns of images that make its
    flags of variables, each with what those begin with; ``classes``: what a program constructs that serves with it.
    ``controllers``: kinds and formats for which a controller starts it unnamed; ``parallelism``: the flags that KServe
    makes of the fields of that name.
    """

    programs: tuple[tuple[str, ...], ...] = ()
    model_flags: tuple[str, ...] = ("--model",)
    images: str = r"(?!)"
    own_images: tuple[str, ...] = ()
    appended: tuple[str, ...] = ()
    configured: tuple[tuple[str, str], ...] = ()
    classes: frozenset[str] = frozenset()
    controllers: frozenset[str] = frozenset()
    parallelism: Mapping[str, str] = {}


class Row(NamedTuple):
    """What is known of an engine without loading it.

    ``home``: the module whose ENGINE it is. ``starter``: what starts it. ``rooms``: its modules in rooms above the
    engines, by the room's name.
    """

    title: str
    home: str
    starter: Starter = Starter()
    rooms: Mapping[str, str] = {}


def _module(name: str) -> ModuleType:
    """A module, without the ways of an import where it is loaded already: every plan passes here."""
    return sys.modules.get(name) or import_module(name)


class Engines(Mapping[str, Engine]):
    """The engines by name; one is loaded when it is first asked for. The first is what is meant where none is named."""

    def __init__(self, rows: dict[str, Row]) -> None:
        self.rows = rows
        self._launchers: Launchers | None = None

    def __getitem__(self, name: str) -> Engine:
        engine: Engine = _module(self.rows[name].home).ENGINE
        return engine

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __contains__(self, name: object) -> bool:
        return name in self.rows

    @property
    def usual(self) -> str:
        """The engine that is meant where none is named."""
        return next(iter(self.rows))

    @property
    def launchers(self) -> "Launchers":
        """What starts each of them."""
        if self._launchers is None or len(self._launchers.starters) != len(self.rows):
            from hybridcalc.shell.launch import Launchers

            starters = {name: row.starter for name, row in self.rows.items()}
            self._launchers = Launchers(starters, lambda name: self[name].flags.names)
        return self._launchers

    def launch(self, line: str | Sequence[str]) -> "Launch":
        """The one launch of a text that somebody pasted, or of an argument list. Raises InputError for none or more."""
        from hybridcalc.shell.launch import Launch, words_of

        started = self.launchers.find(words_of(line), {}) if not isinstance(line, str) else None
        if isinstance(started, Launch):  # most: no shell has anything left to do
            return started
        from hybridcalc.shell.evaluate import read_launch

        return read_launch(line, self.launchers)

    def release(self, launch: "Launch") -> str | None:
        """The release in the tag of the image that a launch runs in, where its rules are known."""
        version = self.launchers.image_version(launch.image)
        return version if version is not None and self[launch.engine].knows(version) else None

    def assumed(self, launch: "Launch") -> str:
        """That the newest release is assumed, where a launch runs in its engine's own image and the tag says none."""
        tag = self.launchers.own_tag(launch.image)
        if tag is None or self.release(launch) is not None:
            return ""
        newest = self[launch.engine].newest
        return f"the image's tag {printable(tag[:40])} names no release known here: {newest} is assumed"

    def named(self, text: str, *, flag: str = "--engine") -> str:
        """The name of an engine as typed in any case. Raises InputError naming the flag."""
        if text.lower() not in self.rows:
            raise InputError(f"{flag} {quoted(text)} is not planned", fix=f"write {' or '.join(self.rows)}")
        return text.lower()

    def room(self, name: str, room: str, part: str = "") -> ModuleType | None:
        """The module that an engine has in a room above the engines, or a part of it; None where it has none there."""
        home = self.rows[name].rooms.get(room)
        return None if home is None else import_module(f"{home}.{part}" if part else home)


def offered(capability: Offered | None, what: str, title: str) -> Offered:
    """A capability of an engine. Raises InputError where the engine lacks it."""
    if capability is None:
        raise InputError(f"{what} is not for {title}", fix="name another engine")
    return capability


ROOMS = ("bootlog", "diagnosis", "crosscheck", "reuse")


def _in_all_rooms(name: str) -> Mapping[str, str]:
    """The modules of an engine that every room here knows."""
    return {room: f"hybridcalc.{room}.{name}" for room in ROOMS}


ENGINES = Engines({
    "sglang": Row(
        "SGLang",
        "hybridcalc.engines.sglang.engine",
        Starter(
            (("python", "-m", "sglang.launch_server"), ("sglang", "serve"), ("python", "-m", "dynamo.sglang")),
            ("--model-path", "--model"),
            images=r"(^|[/.-])sglang($|[:@/-])|sglang-runtime",
            own_images=("lmsysorg/sglang",),
            classes=frozenset({"Engine", "ServerArgs"}),
            appended=("SGLANG_EXTRA_ARGS",),
        ),
        _in_all_rooms("sglang"),
    ),
    "vllm": Row(
        "vLLM",
        "hybridcalc.engines.vllm.engine",
        Starter(
            (
                ("vllm", "serve"), ("python", "-m", "vllm.entrypoints.openai.api_server"),
                ("python", "-m", "dynamo.vllm"),
            ),
            ("--model",),
            images=r"vllm-openai|vllm-runtime|(^|/)vllm(-[a-z-]+)?($|[:@/])|lmcache/vllm|llm-d(-cuda)?($|[:@])",
            own_images=("vllm/vllm-openai",),
            classes=frozenset({"LLM", "EngineArgs", "AsyncEngineArgs"}),
            appended=("VLLM_ADDITIONAL_ARGS", "VLLM_EXTRA_ARGS", "NIM_PASSTHROUGH_ARGS"),
            configured=((r"(^|/)nim/", "NIM_"), (r"worker-(v[0-9]+-)?vllm|vllm-worker", "")),
            controllers=frozenset({"LLMInferenceService", "Workspace", "vllmServe", "huggingface"}),
            parallelism={
                "tensor": "--tensor-parallel-size", "data": "--data-parallel-size",
                "pipeline": "--pipeline-parallel-size",
            },
        ),
        _in_all_rooms("vllm"),
    ),
})  # fmt: skip
"""Every engine. The first is meant where none is named."""
