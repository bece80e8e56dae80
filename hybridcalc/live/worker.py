"""What one worker of a running server holds: its pools, its requests, and counters that only grow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hybridcalc.errors import InputError
from hybridcalc.live.scrape import APART, Sample, Scrape

STATE, KV, BLOCKS, LIMIT, OTHER = "state", "kv", "blocks", "limit", "other"
"""What may bind: a pool, the limit of requests, or nothing that memory is about."""
CAPACITY = "capacity"
"""The reason of requests that wait for memory or for a place, as vLLM names it."""
PLACE = "slot"
"""The reason of requests that wait for a place alone, however much memory is free or full."""
LONGEST_TEXT = 200
LARGEST_FIGURE = 2.0**62
SHARES = ("token_usage", "mamba_usage", "usage_perc", "hit_rate", "accept_rate")
"""What names of metrics that are a part of a whole end in."""
LARGEST_SHARE = 1.001
"""A whole, and what rounding makes of it."""
OF_ONE_SERVER = ("model_name", "instance")
"""Labels that have one value in all samples of a server."""


class Pool(NamedTuple):
    """Slots, tokens or blocks: how many requests use, how many there are, and how many hold cached prefixes.

    None for what a server does not say. ``part``: the share in use, where a release exports no counts.
    """

    used: float | None
    size: float | None
    cached: float = 0
    part: float | None = None

    @property
    def share(self) -> float | None:
        """The part in use."""
        if self.part is not None or self.used is None or self.size is None:
            return self.part
        return self.used / self.size if self.size else 0.0


class Worker(NamedTuple):
    """One data-parallel worker, or one replica. Figures that the release does not export are None.

    ``launch``: the command that started it, where it says it. ``queued``: all requests that wait, ``reasons`` how many
    of them for what. ``retracted``: requests that lost their place and wait to be computed again. ``limit``: requests
    that it runs at most. ``counters``: what only grows: tokens evicted, requests preempted, tokens of prefixes asked
    for and found, drafts and those accepted; ``rates``: shares of the last moments where there is no counter.
    ``settings``: what it says of its own arguments, under the names of the engine's class. ``hints``: what else may
    hold requests back. ``block_tokens``: tokens of attention that a block holds.
    """

    engine: str
    name: str
    model: str | None
    running: float
    queued: float
    pools: Mapping[str, Pool]
    version: str | None = None
    retracted: float = 0.0
    limit: float | None = None
    reasons: Mapping[str, float] = {}
    counters: Mapping[str, float] = {}
    rates: Mapping[str, float] = {}
    launch: str = ""
    settings: Mapping[str, Any] = {}
    hints: tuple[str, ...] = ()
    source: str = ""
    block_tokens: float | None = None

    def each(self, pool: str) -> float | None:
        """What a running request holds of a pool on average; None where that is not known."""
        found = self.pools.get(pool)
        return found.used / self.running if found is not None and found.used is not None and self.running else None

    @property
    def waiting(self) -> float:
        """Requests that wait for memory or a place: all but those with another reason."""
        return self.queued - sum(count for reason, count in self.reasons.items() if reason not in (CAPACITY, PLACE))


class Family:
    """The samples of one worker of an engine: those that carry its labels."""

    def __init__(self, scrape: Scrape, prefix: str, label: str) -> None:
        """Part the samples of ``prefix`` by the value of ``label``, "" where they have none."""
        self.prefix, self.label = prefix, label
        self.scrape = scrape

    def workers(self) -> Iterator[tuple[str, "Figures"]]:
        """Each worker's name and figures, in the order of the text. Raises InputError for a share that is none, also
        where nothing is told of it.
        """
        parted: dict[str, dict[str, list[Sample]]] = {}
        for metric, samples in self.scrape.metrics.items():
            if metric.startswith(self.prefix):
                for sample in samples:
                    own = parted.setdefault(sample.labels.get(self.label) or "", {})
                    own.setdefault(metric.removeprefix(self.prefix), []).append(sample)
        whole = parted.pop("", {}) if len(parted) > 1 else {}
        for name, found in parted.items():
            figures = Figures({**whole, **found}, self.scrape.source, self.prefix)
            for metric in (metric for metric in figures.found if metric.endswith(SHARES)):
                figures.possible(metric)
            yield name[:LONGEST_TEXT], figures


class Figures:
    """The figures of one worker by name, without their prefix."""

    def __init__(self, found: Mapping[str, list[Sample]], source: str, prefix: str) -> None:
        """Samples by the name of their metric; messages have the source and the engine's prefix."""
        self.found, self.source, self.prefix = found, source, prefix

    def possible(self, name: str) -> Sequence[Sample]:
        """The samples of a metric. Raises InputError where no server can have such a figure, or several have them."""
        samples = self.found.get(name, ())
        metric = f"{self.source}: {self.prefix}{name}"
        for label in OF_ONE_SERVER:
            if len({sample.labels[label] for sample in samples if label in sample.labels}) > 1:
                raise InputError(f"{metric} is of several servers, told apart by {label}", fix=APART)
        most, what = (LARGEST_SHARE, "share") if name.endswith(SHARES) else (LARGEST_FIGURE, "count")
        for value in (sample.value for sample in samples):
            if not 0 <= value <= most:
                raise InputError(
                    f"{metric} is {value:,.6g}, which no {what} can be", fix="is this the server's own text?"
                )
        return samples

    def __call__(self, *names: str) -> float | None:
        """The first of ``names`` that is there; of several ranks the largest, which are alike or rank 0's; of several
        priorities the whole, which is the largest too.
        """
        for name in names:
            if samples := self.possible(name):
                return max(sample.value for sample in samples)
        return None

    def by(self, name: str, label: str) -> dict[str, float]:
        """A metric by the values of one of its labels, none of them without."""
        return {
            value[:LONGEST_TEXT]: sample.value for sample in self.possible(name) if (value := sample.labels.get(label))
        }

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of a metric's first sample."""
        samples = self.found.get(name)
        return samples[0].labels if samples else {}

    def model(self) -> str | None:
        """The name that samples carry as model_name."""
        named = (sample.labels.get("model_name") for samples in self.found.values() for sample in samples)
        return next((name[:LONGEST_TEXT] for name in named if name), None)

    def named(self, names: Mapping[str, str]) -> dict[str, float]:
        """Those metrics of ``names`` (ours -> the engine's) that are there."""
        read = {name: self(metric) for name, metric in names.items()}
        return {name: value for name, value in read.items() if value is not None}


def text_of(value: Any) -> str | None:
    """A text of a document, cut where it is long; None for anything else."""
    return value[:LONGEST_TEXT] if isinstance(value, str) and value else None


def count_of(document: Mapping[str, Any], *names: str) -> int:
    """The first of ``names`` that a document has, a whole number of tokens or slots; 0 for anything else."""
    value = next((document[name] for name in names if name in document), 0)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**40 else 0
