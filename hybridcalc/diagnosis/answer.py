"""What is said about one boot: verdict, figures, constants, candidates, findings, and what to set; and every rule of
``hybridcalc log`` and ``ratio --log``: id, severity, title, the reason, and its source.
"""

from dataclasses import dataclass, field, fields
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

from hybridcalc.bootlog.boots import Boot, figure_list, figures
from hybridcalc.findings import Finding, Rule, Step, Suggestion, least_costly, suggested

MOST_NAMED = 4
"""Models of a list that are named; of the others the number is said."""
Range = tuple[Fraction, Fraction]


class Candidate(NamedTuple):
    """A model with the flags under which it would have printed the log, and its exact sizes (0 where unknown); ``tp`` 0
    where its caches do not depend on one.
    """

    model: str
    tp: int
    ssm_dtype: str
    kv_dtype: str
    state_bytes: int
    kv_bytes: int

    @property
    def sizes(self) -> tuple[int, int]:
        """What a plan rests on: candidates of equal sizes plan alike."""
        return self.state_bytes, self.kv_bytes

    def describe(self) -> str:
        """``kimi-k3 on TP8, fp32 state, fp8 KV``."""
        parts = [f"{self.model} on TP{self.tp}" if self.tp else self.model]
        parts += [f"{self.ssm_dtype} state"] if self.ssm_dtype else []
        parts += [f"{self.kv_dtype} KV"] if self.kv_dtype else []
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "model": self.model,
            "tp_size": self.tp or None,
            "ssm_dtype": self.ssm_dtype,
            "kv_cache_dtype": self.kv_dtype,
            "state_bytes_per_slot": self.state_bytes or None,
            "kv_bytes_per_token": self.kv_bytes or None,
        }


class Row(NamedTuple):
    """One line of the answer: where it was read, what it says, and the arithmetic that ties it to the constants."""

    place: str
    what: str
    arithmetic: str


class Seen(NamedTuple):
    """What a running server was seen to do, over the lines that were read of it."""

    lines_read: int
    most_running: int
    most_queued: int
    queued_while_full: int
    most_slots: int
    peak_state_usage: float
    peak_kv_usage: float


@dataclass(slots=True)
class Derived:
    """What follows from the printed figures, of any engine's boot; None where it does not. Engines add their own.

    ``requests`` is how many run at once, ``idle_percent`` the share of the pool that does not bind which they leave.
    """

    requests: int | None = None
    idle_percent: float | None = None
    serving: Seen | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data: what is known, by name."""
        known = {one.name: getattr(self, one.name) for one in fields(self)}
        shown = {name: list(v) if type(v) is tuple else v for name, v in known.items() if v is not None}
        return shown | ({"serving": self.serving._asdict()} if self.serving is not None else {})


@dataclass(slots=True)
class Constants:
    """Sizes that the log allows, [lowest, highest] in whole bytes of a rank, and those of the model that fits."""

    state_bytes_per_slot: list[int] | None = None
    conv_bytes_per_slot: list[int] | None = None
    ssm_bytes_per_slot: list[int] | None = None
    kv_bytes_per_token: list[int] | None = None
    exact: "Exact | PageSizes | None" = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        exact = self.exact._asdict() if self.exact is not None else None
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"exact": exact}


class Exact(NamedTuple):
    """A slot and a token of the model that fits; ``certain`` where no other sizes fit."""

    model: str
    state_bytes_per_slot: int
    kv_bytes_per_token: int | None
    certain: bool


class PageSizes(NamedTuple):
    """The blocks of the model that fits; ``certain`` where no other model does."""

    model: str
    bytes_per_block: int
    padded_page_bytes: int | None
    group_sizes: list[int]
    certain: bool


@dataclass(slots=True)
class Diagnosis:
    """The answer for one boot; ``planned`` is the engine's plan that reproduces it, where one does; ``wanted``: the
    requests that should run, where fewer do.
    """

    boot: Boot
    version: str | None = None
    headline: str = ""
    meaning: str = ""
    model_guess: str | None = None
    candidates: tuple[Candidate, ...] = ()
    constants: Constants | None = None
    binding: str | None = None
    rows: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    suggestions: list[Suggestion] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    derived: Derived = field(default_factory=Derived)
    planned: Any = None
    wanted: int = 0

    def row(self, place: str, what: str, arithmetic: str) -> None:
        """Add a line to the answer."""
        self.rows.append(Row(place, what, arithmetic))

    def find(self, rule: str, message: str, fix: str = "", *, severity: str | None = None) -> None:
        """Add a finding of ``rule``, with its own severity unless another is given."""
        self.findings.append(finding(rule, message, fix, severity=severity))

    def short(self, message: str, wanted: int, fix: str) -> None:
        """That fewer run than are ``wanted``, and what lets them run; ``fix`` where none of the suggestions does."""
        self.wanted = wanted
        enough = least_costly(suggested(self.suggestions), wanted)
        self.find("HC155", message, fix if enough is None else f"write {enough.flags}")
        self.findings[-1] = self.findings[-1]._replace(sets="" if enough is None else enough.flags)

    def step(self, symbol: str, formula: str, numbers: str, value: Any, unit: str, source: str) -> None:
        """Note one piece of arithmetic."""
        self.steps.append(Step(symbol, formula, numbers, value, unit, source))

    def conclude(self, head: str, parts: list[str], failed: bool) -> None:
        """The verdict: the first error of a boot that failed, else what the parts say."""
        if not failed:
            self.headline, self.meaning = head, "; ".join(parts)
            return
        self.headline = f"{head}: {'failed while serving' if self.boot.served else 'does not start'}"
        self.meaning = next(found for found in self.findings if found.severity == "error").message

    @property
    def names(self) -> str:
        """The candidates' models, the first few by name."""
        names = list(dict.fromkeys(candidate.model for candidate in self.candidates))
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        return ", ".join(names[:MOST_NAMED]) + more

    def to_dict(self) -> dict[str, Any]:
        """One entry of ``boots`` in ``log --json``."""
        boot = self.boot
        return {
            "engine": boot.engine or None,
            "version": self.version,
            "line": boot.line,
            "verdict": ": ".join(part for part in (self.headline, self.meaning) if part),
            "model_guess": self.model_guess,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "ranks": boot.ranks,
            "figures": figures(boot),
            "records": [figure.to_dict() for figure in figure_list(boot)],
            "constants": self.constants.to_dict() if self.constants is not None else None,
            "binding": self.binding,
            "derived": self.derived.to_dict(),
            "findings": [found.to_dict() for found in self.findings],
            "suggestions": [suggestion.to_dict() for suggestion in self.suggestions],
            "steps": [step.to_dict() for step in self.steps],
        }


def whole_range(bounds: Range | None) -> list[int] | None:
    """[lowest, highest] whole bytes of a range, both its ends included: "%.2f" rounds a half to the even digit."""
    if bounds is None:
        return None
    low, high = ceil(bounds[0]), floor(bounds[1])
    return [low, high] if low <= high else [floor(bounds[0]), ceil(bounds[1])]


_POOL = "SGLang mem_cache/memory_pool.py"
_KCC = "SGLang mem_cache/kv_cache_configurator.py"
_VLLM = "vLLM v1/core/kv_cache_planning.py"

RULES = (
    Rule("HC100", "note", "the log matches the model",
         "K + 1 slots and T + page tokens of the model's exact sizes round to what is printed.", _POOL),
    Rule("HC101", "error", "the log does not match the model",
         "An exact size lies outside what the printed figure allows.", _POOL),
    Rule("HC102", "note", "several boots in the log", "Each start is answered by itself; ratio takes the last.", ""),
    Rule("HC103", "warning", "ranks differ in their pools",
         "Uneven heads or memory: the smallest rank decides, and no rank stands for another.", _POOL),
    Rule("HC104", "warning", "the log was not read to its end",
         "A damaged or cut gzip file, or a boot of more lines than are held.", ""),
    Rule("HC105", "error", "figures of one boot contradict each other",
         "Edited by hand, or lines of two boots mixed.", _KCC),
    Rule("HC106", "warning", "a figure that no machine can have", "A display bug or a slip: it is not used.", _POOL),
    Rule("HC107", "note", "no preset fits, or several do", "Printed figures are intervals.", ""),
    Rule("HC108", "error", "the flags cannot have produced this log",
         "A pinned K, a limit, a dtype or a fraction that the log's figures rule out.", _KCC),
    Rule("HC109", "note", "the tokens look pinned",
         "A small round T beside much larger states: --max-total-tokens, or a share of memory nobody asks for.",
         _KCC),
    Rule("HC110", "warning", "KV idles while the state pool binds", "Requests stop at K // S.", _KCC),
    Rule("HC111", "warning", "state slots idle while KV or the limit binds",
         "Slots beyond requests x S hold nothing but cached prefixes.", _KCC),
    Rule("HC112", "warning", "requests were clamped", "min(limit, T // 2, K // S) run, whatever was asked for.", _KCC),
    Rule("HC113", "warning", "draft states take more than the slots",
         "(R + 1) x D states are held whether drafts run or not.", _POOL),
    Rule("HC114", "note", "a draft model's pools", "The second weights, pool and KV lines are the draft's.", _POOL),
    Rule("HC115", "note", "figures are per data-parallel worker", "Totals are times the workers.", _KCC),
    Rule("HC116", "note", "memory between weights and pools does not add up to the cent",
         "Loaders free temporaries, or other tensors are allocated between the lines.", ""),
    Rule("HC117", "note", "figures that somebody tells",
         "A figure with its label beside it is read in a table or a sentence too; it may be rounded.", ""),
    Rule("HC120", "error", "no memory for the state pool", "rest x r / (1 + r) holds less than one slot.", _KCC),
    Rule("HC121", "error", "slots serve no request", "K // S is zero.", _KCC),
    Rule("HC122", "error", "no memory for KV", "Weights, states and slack leave nothing for tokens.", _KCC),
    Rule("HC123", "error", "slots ran out while serving",
         "Ping-pong tracking needs two free slots for each request that starts.", _POOL),
    Rule("HC124", "error", "the GPU ran out of memory", "What was not charged came out of the headroom.", ""),
    Rule("HC125", "error", "no blocks fit", "Budget minus weights and profiled peak is not above one block.", _VLLM),
    Rule("HC126", "error", "max_num_seqs above the state blocks",
         "Full CUDA graphs need a block for each sequence of the largest batch.", "vLLM config/compilation.py"),
    Rule("HC127", "error", "one request does not fit", "A request of max_model_len needs more blocks than there are.",
         _VLLM),
    Rule("HC128", "error", "an exception ended the boot", "The traceback's last line names it.", ""),
    Rule("HC129", "error", "the GPU is not free enough at the start",
         "The fraction is one of all its memory, and must be free before anything is loaded.",
         "vLLM v1/worker/gpu_worker.py"),
    Rule("HC130", "warning", "requests queue at a full state pool", "Slots, not tokens, are the wall.", _POOL),
    Rule("HC131", "note", "what a running request holds", "mamba num over running requests, cached states included.",
         _POOL),
    Rule("HC140", "note", "what the printed tokens mean",
         "Releases differ: concurrency x max_model_len, or the tokens of one group's blocks.", _VLLM),
    Rule("HC141", "warning", "padding of pages or layers wastes memory", "State pages are padded to attention pages.",
         _VLLM),
    Rule("HC142", "warning", "the graph estimate takes memory from KV", "What is estimated is charged.",
         "vLLM v1/worker/gpu_worker.py"),
    Rule("HC143", "warning", "graph sizes were capped to the blocks", "Batches beyond run without a graph.",
         "vLLM config/compilation.py"),
    Rule("HC151", "warning", "a request does not fit the cells", "A sequence holds at most as many tokens as there are "
         "cells, and a slot as many as the model was trained for.", "llama.cpp src/llama-kv-cache.cpp"),
    Rule("HC150", "note", "llama.cpp keeps its states in fp32", "R (convolution) and S of every cell.",
         "llama.cpp src/llama-memory-recurrent.cpp"),
    Rule("HC152", "note", "why so few layers are on the device",
         "What a load would take is held against what is free, less what is to be left free.",
         "llama.cpp common/fit.cpp"),
    Rule("HC153", "note", "host memory of prompts",
         "Context checkpoints hold a sequence's state, the prompt cache whole sequences.",
         "llama.cpp tools/server/server-context.cpp"),
    Rule("HC154", "note", "a failure that the start got over", "A retry with less went through.", ""),
    Rule("HC155", "warning", "fewer requests run than are wanted",
         "Slots, tokens or sequences admit fewer than -C asks for.", ""),
)  # fmt: skip
"""Every rule about logs."""
_BY_ID = {rule.id: rule for rule in RULES}


def both_ends(low: float | Fraction, high: float | Fraction, digits: int = 2) -> str:
    """Both ends of what a flag's value may be by printed figures, in words; nothing where so many digits are alike."""
    ends = [f"{float(end):.{digits}f}" for end in (low, high)]
    return "" if ends[0] == ends[1] else f" ({' to '.join(ends)} by the printed digits)"


def sure_bound(low: Fraction, high: Fraction, *, least: bool) -> tuple[str, str]:
    """The value of a flag that is sure to do, to three digits, and both ends in words where they are more than a step
    apart: the higher end of what is needed at ``least``, else the lower one of what is allowed.
    """
    ends = [(ceil if least else floor)(1000 * end) for end in (low, high)]
    return f"{ends[least] / 1000:g}", both_ends(ends[0] / 1000, ends[1] / 1000, 3) if ends[1] - ends[0] > 1 else ""


def finding(
    rule: str, message: str, fix: str = "", *, severity: str | None = None, mend: tuple[str, str] | None = None
) -> Finding:
    """A finding of ``rule``, with its own severity unless another is given; ``mend``: the flag and value of the fix."""
    return Finding(rule, severity or _BY_ID[rule].severity, message, fix, mend=mend)
