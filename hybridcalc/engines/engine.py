"""What is an engine? All that any room asks of one: its arguments, its flags, its start-up, its rules.

Each is found in `hybridcalc.engines.ENGINES`. What an engine cannot do is None or has no module, and `offered` says so
in the user's words. What ranks share and hold of weights is searched in ranks.py.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from hybridcalc.engines import ENGINES, loaded, offered
from hybridcalc.engines.spelling import in_release_names, names_of, respelled, rows_of
from hybridcalc.errors import InputError, Refusal

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.architecture.quantization import Quantization
    from hybridcalc.architecture.tensors import Widths
    from hybridcalc.architecture.weights import Parameters
    from hybridcalc.deployment import Memory, MemoryPart, Rest, Workload
    from hybridcalc.engines.answer import Answer, Decided
    from hybridcalc.engines.crossover import Compare, StateGrid, Stream
    from hybridcalc.engines.placement import Placement
    from hybridcalc.engines.weights import Weights
    from hybridcalc.findings import Rule
    from hybridcalc.hardware import Gpu
    from hybridcalc.shell.flags import Flag, FlagTable


_exists = cache(find_spec)  # every point of a sweep asks
WEIGHTS_BUDGET = "weights_budget_gib"
"""Under this name a refusal of weights that do not fit carries what they would have to fit into."""


class Engine:
    """What every room asks of an engine; arguments are the engine's own class, under its own names.

    The answers lie in modules of the engine's folder that are named alike in all of them: the package itself
    (`ARGUMENTS`, `KNOWN_ENVIRONMENT`, what is checked), flags (`TABLE`, `from_words`), releases (`RELEASES`,
    `rules_for`), memory, figures (`unsized`), planner, server_plan, rules; and where the engine is swept or weighed,
    fit and crossover. Each is loaded when it is first asked for.

    ``options`` are options of commands that the engine takes beside its flags; any other is refused by name. One sets
    the argument of its name, where there is one, or the argument that it is ``renamed`` to; ``tp_flag`` is
    how its flags say tensor parallelism. ``memory_option`` says the memory left. ``stages``: of a start-up, in order.
    ``in_container``: flags without which a server in a container is reached by nobody outside it.
    ``own_length``: a plan that no length is given for is one of requests as long as the engine serves.
    ``indivisible``: stage and rule of a start-up whose ranks do not divide the model. ``variants``: flags with which
    something else serves, with flags of its own, and its name. ``model_after_flags``: MODEL may stand behind flags, and
    not only before them. ``fitted_unasked``: a search for deployments tries it where no engine is named.
    """

    folder: ClassVar[str]
    name: ClassVar[str]
    title: ClassVar[str]
    model_flag: ClassVar[str]
    options: ClassVar[frozenset[str]]
    renamed: ClassVar[Mapping[str, str]] = MappingProxyType({})
    tp_flag: ClassVar[str] = "--tp"
    memory_option: ClassVar[str]
    stages: ClassVar[tuple[str, ...]] = ()
    in_container: ClassVar[tuple[str, ...]] = ()
    own_length: ClassVar[bool] = False
    indivisible: ClassVar[tuple[str, str]] = ("", "")
    variants: ClassVar[Mapping[str, str]] = MappingProxyType({})
    model_after_flags: ClassVar[bool] = False
    fitted_unasked: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        cls.folder = sys.modules[cls.__module__].__package__ or ""

    def part(self, name: str) -> Any:
        """A module of the engine's folder."""
        return loaded(f"{self.folder}.{name}")

    def offers(self, name: str) -> bool:
        """Whether the engine's folder has a module of that name."""
        return _exists(f"{self.folder}.{name}") is not None

    @property
    def flags(self) -> "FlagTable":
        """The flags of its command line."""
        return cast("FlagTable", self.part("flags").TABLE)

    def spelt(self, text: str, version: str | None) -> str:
        """A text with flags under the names of a release (the newest, where none is named)."""
        return respelled(text, rows_of(self), version or self.newest)

    @property
    def environment(self) -> frozenset[str]:
        """Environment switches that change a figure or a refusal."""
        return cast("frozenset[str]", loaded(self.folder).KNOWN_ENVIRONMENT)

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

    def release_in_words(self, version: str | None) -> str:
        """That release, behind the version itself where it is another. Raises InputError for none."""
        used = self.release(version)
        same = version is None or version.strip().removeprefix("v") == used
        return used if same else f"{version} by the rules of {used}"

    def newer(self, version: str | None) -> str:
        """That a version is newer than what is known here; nothing for one that is not. Raises InputError for none."""
        found: str = self.part("releases").RELEASES.newer(version)
        return found

    def older(self, version: str) -> str:
        """That a version is older than what is known here."""
        return f"{self.title} {version} is older than the releases known here, {self.releases[0]} to {self.newest}"

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
        found: tuple[str | None, Any] = self.part("flags").from_words(words, env, unknown=unknown)
        return found

    def arguments(self) -> Any:
        """Its arguments, all at their defaults."""
        return loaded(self.folder).ARGUMENTS()

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
        given = {**given, "tp_size": shared} if shared else given
        fields = {self.renamed.get(name, name): value for name, value in given.items() if value is not None}
        changed = {field: value for field, value in fields.items() if hasattr(args, field)}
        args = replace(args, **changed) if changed else args
        if card is not None and card.cards is not None and (ranks := self.ranks(args)) > card.cards:
            from hybridcalc.hardware import gpu_id, gpus_in_words

            fix = f"write --gpu {ranks}x{gpu_id(card.source) or card.source.strip().rpartition('x')[2]}"
            raise InputError(f"{ranks} ranks on {gpus_in_words(card.cards)}", fix=fix)
        return args

    def seeing(self, args: Any, gpus: int) -> Any:
        """The arguments of a server that sees so many GPUs: others where all of them hold layers."""
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
        takes = f"{self.tp_flag} {each} takes {each * parts}"
        return f"{card.cards} GPUs do not divide by {parts}: each rank stands alone; {takes}"

    def not_shared(
        self, model: "Architecture", args: Any, gpus: int, stopped: Exception, card: "Gpu | None" = None
    ) -> Refusal | None:
        """What to say where ranks that nobody typed do not divide the model (ranks.py); None for nothing of them."""
        from hybridcalc.engines.ranks import not_shared

        return not_shared(self, model, args, gpus, stopped, card)

    def changed(self, args: Any, flags: str) -> Any:
        """The arguments with what the flags of a suggestion set; variables stand in front of them."""
        from hybridcalc.shell.parse import split_command

        words = split_command(flags)
        env = dict(word.split("=", 1) for word in words if not word.startswith("-") and "=" in word)
        typed = self.read([word for word in words if word.startswith("-") or "=" not in word], env, unknown=[])[1]
        found = (self.flags.known(word.partition("=")[0]) for word in words if word.startswith("-"))
        named = {flag.field: getattr(typed, flag.field) for flag in found if flag and hasattr(typed, flag.field)}
        return replace(args, **named | typed.given() | {"env": {**args.env, **env}})

    def check_memory(self, known: "Memory") -> None:
        """Raise InputError for figures of which one would be ignored."""
        self.part("memory").check_memory(known)

    def check_arguments(self, args: Any) -> None:
        """Raise InputError for an argument whose type, bound or choice the command line would refuse."""
        loaded(self.folder).check_arguments(args)

    def check_together(self, args: Any) -> None:
        """Raise InputError for arguments that contradict each other, or of which one says nothing without another."""
        loaded(self.folder).check_together(args)

    @in_release_names
    def memory(self, model: "Architecture", args: Any, known: "Memory") -> "Rest":
        """The memory left for the caches. Raises MemoryUnknown with the figures that are missing, and Refusal."""
        asked = known
        if known.weights is None and known.weighed is None and self.offers("weights"):

            def weighed() -> "MemoryPart | None":
                from hybridcalc.engines.ranks import weights_part

                return weights_part(self, model, args)

            known = known._replace(weighed=weighed)
        try:
            rest = cast("Rest", self.part("memory").rest_of(model, args, known))
            return rest._replace(again=partial(self.memory, model, known=asked)) if rest.parts else rest
        except Refusal as refusal:
            budget = refusal.outputs.pop(WEIGHTS_BUDGET, None)
            if budget is None:
                raise
            from hybridcalc.engines.ranks import too_heavy

            raise too_heavy(self, model, args, refusal, budget, computed=known.weights is None) from None

    def weights_moved(
        self, known: "Memory", model: "Architecture", args: Any, first: "tuple[Architecture, Any]"
    ) -> "Memory":
        """A memory whose weights were given for another model or other arguments (``first``), as they are here."""
        from hybridcalc.engines.ranks import given_elsewhere

        return given_elsewhere(self, model, args, known, first)

    def weights(self, model: "Architecture", args: Any, *, mended: bool = True) -> "Weights":
        """What the weights take on the heaviest rank. Raises ShardingError, ``mended`` by the ranks that do,
        NotModelled, and InputError.
        """
        from hybridcalc.engines.ranks import weights

        return weights(self, model, args, mended=mended)

    def widths(
        self, model: "Architecture", args: Any, found: "Parameters", quantization: "Quantization | None"
    ) -> "Widths":
        """How many ranks share each kind of tensor. Raises ShardingError and InputError."""
        placed: Placement = self.offered("weights", "weights").placement(model, args)(found, quantization)
        return placed.widths

    def workers(self, args: Any) -> int:
        """Data-parallel workers, or replicas, of a server."""
        return cast("int", getattr(args, self.renamed.get("dp_size", "dp_size"), 1))

    def pipeline(self, args: Any) -> int:
        """Pipeline stages of a server, each of which runs batches of its own."""
        return cast("int", getattr(args, self.renamed.get("pp_size", "pp_size"), 1))

    def stream(self, model: "Architecture", args: Any) -> "Stream":
        """What one request moves in a step on one rank. Raises what the engine refuses."""
        return cast("Stream", self.offered("crossover", "floors of time").stream(model, args))

    def saved(self, plan: Any) -> "StateGrid | None":
        """Where the prefix cache of a plan keeps states; None where it keeps none, or nobody says where."""
        found = getattr(self.part("crossover"), "saved", None) if self.offers("crossover") else None
        return None if found is None else cast("StateGrid | None", found(plan.ready))

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
        from hybridcalc.engines.answer import decide

        def unsized() -> Any:
            found = self.part("figures").unsized(model, args, workload)
            self.check_ranks(model, args)  # in the order of `plan`
            return found

        return decide(self.rules(), unsized, workload, names_of(self, args))

    def release_with(self, model: "Architecture") -> str:
        """The newest release that is known to have the model's class; empty where none is."""
        return ""

    @in_release_names
    def prepare(self, model: "Architecture", args: Any) -> Any:
        """What start-up settles before memory counts. Raises Refusal."""
        return self.part("planner").prepare(model, args)

    def refused(self, end: str, model: "Architecture", args: Any, rest: "Rest", work: "Workload") -> Refusal | None:
        """Why it would not start with the least memory that there may be, or the most (``end``); None if it would."""
        exact = rest.at(rest.low_gib if end == "least" else rest.high_gib)
        try:
            self.part("server_plan").plan(model, args, rest=exact, workload=work)
        except Refusal as refusal:
            return refusal
        return None

    def attention_ranks(self, args: Any) -> int:
        """Ranks that share the heads of one attention layer."""
        return 1

    def check_heads(self, model: "Architecture", args: Any) -> None:
        """Raise Refusal for ranks that cannot share a model's attention heads, whatever the memory."""
        from hybridcalc.architecture import uneven_heads

        ranks, heads = self.attention_ranks(args), model.num_attention_heads
        uneven = uneven_heads(model.attention, heads, ranks)
        if uneven:
            stage, rule = self.indivisible
            raise Refusal(f"{self.tp_flag} {ranks} does not divide {uneven}", stage=stage, rule=rule)

    def check_ranks(self, model: "Architecture", args: Any) -> None:
        """Raise Refusal, with the ranks that do, for ranks that cannot share a model's heads or any of its weights,
        whatever the memory.
        """
        try:
            self.check_heads(model, args)
        except Refusal as refusal:
            from hybridcalc.engines.ranks import ranks_that_do

            refusal.fix = ranks_that_do(self, model, args)
            raise
        if not self.offers("weights") or self.server_ranks(args) == 1:
            return
        from hybridcalc.architecture import heads_divide
        from hybridcalc.engines.checkpoints import cut_in_blocks

        even = heads_divide(model, self.server_ranks(args)) and not cut_in_blocks(model, args.quantization)
        if not even:
            from hybridcalc.engines.ranks import weights_part

            weights_part(self, model, args)

    @in_release_names
    def plan(self, model: "Architecture", args: Any, rest: "Rest", workload: "Workload") -> "Answer":
        """The whole plan. Raises Refusal for what does not start with the likely memory.

        A start that an estimated memory leaves open is undecided and says so: in the refusal, or where the likely
        memory is enough in a finding of the rule that would refuse it, an error as that is.
        """
        from hybridcalc.findings import Finding

        planned = self.part("server_plan").plan
        if not rest.exact:
            refused = self.refused("least", model, args, rest, workload)
            if refused is not None:
                rest = rest._replace(undecided=(Finding.of(rest.undecided_as(refused, "likely", "high")),))
        try:
            found = cast("Answer", planned(model, args, rest=rest, workload=workload))
        except Refusal as refusal:
            if rest.exact or self.refused("most", model, args, rest, workload) is not None:
                raise
            raise rest.undecided_as(refusal, "low", "likely") from None
        self.check_ranks(model, args)  # what a start-up refuses before is said as it says it
        return found

    def command(self, model: str) -> tuple[str, ...]:
        """The first words of the command that starts a server of ``model``."""
        return (*ENGINES.rows[self.name].starter.programs[0], self.model_flag, model)

    def serves_any(self, words: Sequence[str]) -> bool:
        """Whether a launch with these words names no model since requests do."""
        return False

    def typed(self, name: str, given: Mapping[str, Any]) -> "tuple[Flag, ...]":
        """The flags that set an argument that was given; none for what is no flag's, or another flag's, business."""
        flag = self.flags.by_field.get(name)
        return () if flag is None else (flag,)

    def fraction(self, args: Any) -> dict[str, Any]:
        """``fraction`` of the GPU that weights and caches share, and ``fraction_from``: given, or whose default."""
        raise NotImplementedError

    def file_of(self, model: "Architecture") -> str:
        """What a launch line of its calls the model."""
        from hybridcalc.engines.checkpoints import name_to_load

        return name_to_load(model)

    def stored_as(self, model: "Architecture") -> str:
        """How its weights are stored, where a name says so to this engine alone; else empty."""
        return ""

    def ranks(self, args: Any) -> int:
        """GPUs that a server takes, all its replicas together."""
        raise NotImplementedError

    @property
    def ranked(self) -> bool:
        """Whether a server has ranks, a GPU each; any other takes every GPU that it sees."""
        return bool(self.indivisible[1])

    def rules(self) -> "tuple[Rule, ...]":
        """Every rule, refusals included."""
        return cast("tuple[Rule, ...]", self.part("rules").RULES)

    @property
    def sweeping(self) -> Any:
        """How it is swept (sweep.Sweeping); None where it is not."""
        return getattr(self.part("fit"), "SWEEPING", None) if self.offers("fit") else None

    @property
    def crossover(self) -> "Compare | None":
        """Crossovers of a model, with itself and with a baseline; None where they are not known."""
        return cast("Compare", self.part("crossover").compare) if self.offers("crossover") else None
