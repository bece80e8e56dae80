"""What does every engine's plan answer? The figures that any room reads of one, and how it is shown in Python.

An engine's own figures stand beside these in its server_plan, under its own names; document.py says the keys of JSON.
And what do the flags alone decide, with no figure of memory known (`decide`)?

    --max-mamba-cache-size 8 --max-running-requests 4, S = 5      8 // 5 = 1 request of 4; 4 x 5 + 1 = 21 slots

Start-up is run up to the point where memory is counted, for what it refuses; then the rules are judged that need no
figure which is missing. Each says itself what it needs (findings.Rule).
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines import ENGINES, loaded
from hybridcalc.engines.spelling import Spelt, in_names, names_of
from hybridcalc.errors import HybridcalcError, Refusal, Write
from hybridcalc.findings import LENGTH, PREFIX, WANTED, Finding, Rule, Suggestion, find

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.findings import BudgetLine, Step


CHANGING = frozenset({dict, list})


def own(value: Any) -> Any:
    """Plain data of one's own: what a document says of that which several share, and its reader may change."""
    if type(value) is dict:
        return {name: own(each) if type(each) in CHANGING else each for name, each in value.items()}
    return [own(each) if type(each) in CHANGING else each for each in value] if type(value) is list else value


class Preparation:
    """What is known of a server before memory is counted: the base of an engine's own, a NamedTuple with its model and
    ``args``.

    What follows from it alone is worked out when it is first asked for, once for all plans that rest on it.
    """

    @property
    def typed(self) -> Any:
        """The arguments as they were given."""
        return cast(Any, self).args

    @cached_property
    def asked(self) -> dict[str, Any]:
        """Those of them that a document says."""
        return cast("dict[str, Any]", self.typed.given())

    @cached_property
    def launch(self) -> dict[str, Any]:
        """The command that asks the engine for them (document.launch_of)."""
        engine = ENGINES[self.typed.engine]
        found = loaded("hybridcalc.engines.document").launch_of(engine, cast(Any, self).model, self.asked)
        return cast("dict[str, Any]", found)


class SharedFigures:
    """What follows from an engine's own figures in the same way for all of them."""

    @property
    def version(self) -> str:
        """The release whose rules were used."""
        return cast(str, cast(Any, self).ready.rules.version)

    @property
    def requests(self) -> int:
        """Requests of the workload that run at once, over all workers or replicas."""
        plan = cast(Answer, self)
        return plan.concurrency * plan.workers

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token on a rank of the heaviest pipeline stage, draft included."""
        return max(cast(Documented, self).kv_bytes_by_stage)

    @property
    def suggestions(self) -> "tuple[Suggestion, ...]":
        """None without memory."""
        return ()

    wider: "Callable[..., str]" = staticmethod(lambda wanted, *, within: "")
    """What more ranks would serve, in words, ``within`` the GPUs that are given; nothing where no one knows."""


class Shown:
    """A plan that says its figures wherever Python shows it: in a line, as a table in notebooks, as rows.

    Findings and suggestions are computed when they are first asked for.
    """

    engine: str
    rest: "Rest"
    of_words: "tuple[Finding, ...]" = ()
    """Findings about the words of its launch, beside those of its arguments."""

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Traps this configuration walks into."""
        known = (self.of_words, self.rest.undecided, *(part.findings for part in self.rest.parts))
        found: Iterable[Finding] = find(ENGINES[self.engine].rules(), self, known)
        found = found if self.rest.exact else (_over_memory(self.engine, self, finding) for finding in found)
        return tuple(in_names(finding, *self._names) for finding in found)

    @cached_property
    def suggestions(self) -> "tuple[Suggestion, ...]":
        """Flags that serve the workload better, the most gain first."""
        found: Iterable[Suggestion] = ENGINES[self.engine].part("suggest").suggest(self)
        return tuple(in_names(suggestion, *self._names) for suggestion in found)

    @property
    def _names(self) -> tuple[Spelt, Spelt]:
        return names_of(ENGINES[self.engine], cast(Any, self).args)

    def __repr__(self) -> str:
        said = ", ".join(ENGINES[self.engine].part("view").verdict(self))
        return f"<{self._title}: {said}>"

    @property
    def _title(self) -> str:
        plan = cast(Answer, self)
        return f"{ENGINES[self.engine].title} {plan.version} plan of {plan.model.name}"

    def _repr_html_(self) -> str:
        """Its verdict, figures, findings and suggestions, for notebooks."""
        from hybridcalc.findings import View, suggested
        from hybridcalc.notebook import html_of

        plan, facts = cast(Answer, self), ENGINES[self.engine].part("view")
        figures, choices = tuple(facts.figures(plan)), suggested(plan.suggestions)
        headline, meaning = facts.verdict(plan)
        title = self._title
        return html_of(
            View(title, headline, meaning, figures=figures, findings=plan.findings, choices=choices, subject=title)
        )

    def to_records(self) -> list[dict[str, Any]]:
        """Every buffer of a rank as rows of a table, as pandas takes them."""
        return [line.to_dict() for line in cast(Answer, self).budget]

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``plan --json``."""
        return cast("dict[str, Any]", loaded("hybridcalc.engines.document").plan_document(self))


def _over_memory(name: str, plan: Any, finding: Finding) -> Finding:
    """A finding whose fix, one value, admits other numbers of requests over an estimated memory, with both ends."""
    flag, value = finding.mend or ("", "")
    if not flag or finding.fix != Write(flag, value) or plan.workload.mean_length is None:
        return finding
    engine, rest = ENGINES[name], plan.rest
    try:
        args = engine.changed(plan.args, f"{flag} {value}")
        mended: Any = engine.plan(plan.model, args, rest.again(args) if rest.again is not None else rest, plan.workload)
    except HybridcalcError:
        return finding
    least, most = mended.requests_at_ends
    if least == most or mended.requests == plan.requests:
        return finding
    return finding._replace(fix=f"{finding.fix}: {least:,} to {most:,} run, by what lies beside the weights")


class Answer(Protocol):
    """A plan, as far as every engine's is alike. The document of it is `to_dict`."""

    model: "Architecture"
    args: Any
    rest: "Rest"
    workload: "Workload"
    of_words: "tuple[Finding, ...]"
    wider: "Callable[..., str]"

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

    def to_records(self) -> list[dict[str, Any]]:
        """Every buffer of a rank as rows of a table, as pandas takes them."""

    def _repr_html_(self) -> str:
        """The short answer, for notebooks."""

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``plan --json``."""


class Slot(NamedTuple):
    """What one state slot takes on a rank, all layers of it: convolution windows and temporal state. Bytes."""

    conv_bytes: int
    ssm_bytes: int

    @property
    def state_bytes(self) -> int:
        """Both together."""
        return self.conv_bytes + self.ssm_bytes


class Documented(Answer, Protocol):
    """A plan that has a document of this form. ``engine`` is its name in ENGINES."""

    engine: str
    promised: tuple[str, ...]

    @property
    def ready(self) -> Preparation:
        """What was known before memory was counted."""

    @property
    def workers(self) -> int:
        """Data-parallel workers, or replicas, of the whole deployment."""

    @property
    def requests_at_ends(self) -> tuple[int, int]:
        """Requests at the low and at the high end of a memory that is an interval; 0 where that does not start."""

    @property
    def slot(self) -> Slot:
        """One state slot on a rank of the heaviest pipeline stage."""

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a token on a rank of the heaviest pipeline stage, draft included."""

    @property
    def kv_bytes_by_stage(self) -> list[int]:
        """Bytes of a token on a rank of each pipeline stage, draft included."""

    @property
    def slots_per_request(self) -> int | None:
        """S; None where it grows with the length."""

    @property
    def slots_reason(self) -> str:
        """Why S is what it is."""

    @property
    def ratio(self) -> float | None:
        """r*, at which both pools run out together; None without a length, and where nothing splits the memory."""

    @property
    def fixed_bytes_per_request(self) -> int:
        """Bytes a request takes before its length counts."""

    @property
    def marginal_bytes_per_token(self) -> Fraction:
        """Bytes each further token takes on a rank."""

    @property
    def intervals(self) -> dict[str, Any]:
        """[low, high] of the figures that an uncertain memory leaves open."""

    @property
    def engine_figures(self) -> dict[str, Any]:
        """The engine's own figures under its own names."""


class Decided(NamedTuple):
    """What is certain: findings, and for every rule that is not judged the figures it needs; or what is ``refused``."""

    findings: tuple[Finding, ...]
    waiting: tuple[tuple[str, tuple[str, ...]], ...]
    refused: bool = False


def decide(
    rules: Iterable[Rule], unsized: Callable[[], Any], workload: Workload, names: tuple[Spelt, Spelt] = (str, str)
) -> Decided:
    """The refusals and traps that hold whatever the memory. ``unsized`` runs the start-up and raises its Refusal;
    ``names`` says flags as the release and the launch do.

    Raises InputError for what makes no sense.
    """
    try:
        plan = unsized()
    except Refusal as refusal:  # it does not start: no rule is asked of it
        return Decided(
            tuple(in_names(Finding.of(each), *names) for each in (refusal, *refusal.beside)), (), refused=True
        )
    figures = ((LENGTH, workload.lengths), (WANTED, workload.wanted), (PREFIX, workload.shared_prefix))
    known = {figure for figure, has in figures if has}
    findings, waiting = list[Finding](), list[tuple[str, tuple[str, ...]]]()
    for rule in rules:
        needs = rule.needs_of(plan)
        missing = tuple(str(need) for need in needs or () if need not in known)
        if missing:
            waiting.append((rule.id, missing))
        elif needs is not None and rule.check is not None:
            findings += [Finding.made(rule.id, rule.severity, message, fix) for message, fix in rule.check(plan)]
    return Decided(tuple(in_names(finding, *names) for finding in findings), tuple(sorted(waiting)))
