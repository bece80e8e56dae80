"""What one worker of a running server holds: its pools, its requests, and counters that only grow."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from hybridcalc.live.scrape import Sample, Scrape

STATE, KV, BLOCKS, LIMIT, OTHER = "state", "kv", "blocks", "limit", "other"
"""What may bind: a pool, the limit of requests, or nothing that memory is about."""


class Pool(NamedTuple):
    """Slots, tokens or blocks: how many there are, are in use by requests, and hold cached prefixes. A share alone,
    where a release exports no counts: ``size`` is None then.
    """

    used: float
    size: float | None
    cached: float = 0

    @property
    def share(self) -> float:
        """The part in use."""
        return self.used if self.size is None else self.used / self.size if self.size else 0.0


class Worker(NamedTuple):
    """One data-parallel worker, or one replica. Figures that the release does not export are None.

    ``launch``: the command that started it, where it says it. ``retracted``: requests that lost their place and wait to
    be computed again. ``limit``: requests that it runs at most. ``counters``: what only grows: evicted, preempted,
    tokens of prefixes asked for and found, drafts and those accepted. ``settings``: what it says of its own arguments,
    under the names of the engine's class.
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
    launch: str = ""
    settings: Mapping[str, Any] = {}

    def each(self, pool: str) -> float | None:
        """What a running request holds of a pool on average; None where that is not known."""
        found = self.pools.get(pool)
        return found.used / self.running if found is not None and found.size is not None and self.running else None


class Family:
    """The samples of one worker of an engine: those that carry its labels."""

    def __init__(self, scrape: Scrape, prefix: str, label: str) -> None:
        """Part the samples of ``prefix`` by the value of ``label``, "" where they have none."""
        self.prefix, self.label = prefix, label
        self.scrape = scrape

    def workers(self) -> Iterator[tuple[str, "Figures"]]:
        """Each worker's name and figures, in the order of the text."""
        parted: dict[str, dict[str, list[Sample]]] = {}
        for metric, samples in self.scrape.metrics.items():
            if metric.startswith(self.prefix):
                for sample in samples:
                    own = parted.setdefault(sample.labels.get(self.label) or "", {})
                    own.setdefault(metric.removeprefix(self.prefix), []).append(sample)
        whole = parted.pop("", {}) if len(parted) > 1 else {}
        for name, found in parted.items():
            yield name, Figures({**whole, **found})


class Figures:
    """The figures of one worker by name, without their prefix."""

    def __init__(self, found: Mapping[str, list[Sample]]) -> None:
        """Samples by the name of their metric."""
        self.found = found

    def __call__(self, *names: str) -> float | None:
        """The first of ``names`` that is there; of several ranks the largest, which are alike or rank 0's."""
        for name in names:
            samples = self.found.get(name)
            if samples:
                return max(sample.value for sample in samples)
        return None

    def by(self, name: str, label: str) -> dict[str, float]:
        """A metric by the values of one of its labels."""
        return {sample.labels.get(label, ""): sample.value for sample in self.found.get(name, ())}

    def labels(self, name: str) -> Mapping[str, str]:
        """The labels of a metric's first sample."""
        samples = self.found.get(name)
        return samples[0].labels if samples else {}

    def model(self) -> str | None:
        """The name that samples carry as model_name."""
        named = (sample.labels.get("model_name") for samples in self.found.values() for sample in samples)
        return next((name for name in named if name), None)

    def counters(self, names: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
        """Those of ``names`` that are there."""
        read = {name: self(*metrics) for name, metrics in names.items()}
        return {name: value for name, value in read.items() if value is not None}
