"""The search for better flags that engines share, on an engine of a few numbers: what helps alone and what together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.better import MOST, Change, Served, better, larger_share, most_gain, suggestion
from hybridcalc.findings import Suggestion, safest_first


class Args(dict[str, int]):
    """Arguments that are a few numbers."""

    def changed(self, **fields: int) -> Args:
        return Args({**self, **fields})


def planned(requests: int = 10, workers: int = 1, before: float | None = 100.0) -> Any:
    rest = Rest(20.0, 20.0, 20.0, "given", before_gib=before)
    work = Workload(((1000, 1),))
    return SimpleNamespace(args=Args(), rest=rest, workload=work, workers=workers, requests=requests * workers)


def gains(**each: int) -> Any:
    """An engine that runs 10 requests, and so many more for each argument that is set; it refuses ``bad``."""

    def serve(args: Args, *, more_gib: float = 0.0) -> Served | None:
        return None if "bad" in args else Served(10 + sum(each[name] for name in args))

    return serve


A, B, C = (Change(f"--{name}", {name: 1}, f"why {name}") for name in "abc")


def test_changes_that_help_are_said_each_and_together() -> None:
    """The strongest first; one that does not help is in neither."""
    found = better(planned(), [A, B, C], gains(a=3, b=5, c=0), 10)
    assert [(one.flags, one.before, one.after) for one in found] == [
        ("--a", 10, 13),
        ("--b", 10, 15),
        ("--b --a", 10, 18),
    ]
    assert found[-1].why == "2 changes together, each of which helps alone"


def test_one_change_alone_is_not_said_twice() -> None:
    assert [one.flags for one in better(planned(), [A, C], gains(a=3, c=0), 10)] == ["--a"]
    assert better(planned(), [A], gains(a=3), 13) == []
    assert better(planned(), [Change("--bad", {"bad": 1}, "")], gains(), 10) == []


def test_a_change_that_helps_alone_and_not_on_top_is_left_out_of_both() -> None:
    def serve(args: Args, *, more_gib: float = 0.0) -> Served | None:
        return Served(15 if "a" in args else 14 if "b" in args else 12 if "c" in args else 10)

    assert [one.flags for one in better(planned(), [C, B, A], serve, 10)] == ["--c", "--b", "--a"]


def test_together_they_cost_what_the_worst_of_them_does_and_variables_stand_in_front() -> None:
    changes = [A._replace(risk="latency"), Change("X=1", {"b": 1}, "", "none"), C._replace(risk="accuracy")]
    found = better(planned(workers=2), changes, gains(a=3, b=2, c=1), 10)
    assert (found[-1].flags, found[-1].risk) == ("X=1 --a --c", "accuracy")
    assert found[-1].why == "3 changes together, each of which helps alone; check accuracy first"
    assert (found[-1].before, found[-1].after) == (20, 32)
    assert better(planned(), changes[:2], gains(a=3, b=2), 10)[-1].risk == "latency"


@pytest.mark.parametrize(
    ("share", "before", "suggested"),
    [
        (0.90, 100.0, "--share-of 0.92"),
        (0.94, 100.0, "--share-of 0.96"),
        (0.941, 100.0, None),
        (None, 100.0, None),
        (0.90, None, None),
    ],
)
def test_a_little_more_of_the_memory_up_to_a_bound(
    share: float | None, before: float | None, suggested: str | None
) -> None:
    """Two hundredths, with the memory that they are; where it is known of what."""
    asked: list[tuple[float, float]] = []

    def serve(args: Any, *, more_gib: float = 0.0) -> Served | None:
        asked.append((args["share_of"], round(more_gib, 9)))
        return Served(11, "--more")

    plan = planned(before=before)
    found = larger_share(plan, "share_of", share, 0.96, serve, 10, lambda larger, whole: f"{larger:g} of {whole:g}")
    assert [one.flags for one in found] == ([f"{suggested} --more"] if suggested else [])
    for one in found:
        assert (one.risk, one.after, one.why) == ("memory", 11, f"{asked[0][0]:g} of 100")
        assert asked == [(float(suggested.split()[1]) if suggested else 0, 2.0)]
    assert larger_share(planned(), "share_of", 0.9, 0.96, serve, 11, lambda larger, whole: "") == []
    assert larger_share(planned(), "share_of", 0.5, 0.52, serve, 10, lambda larger, whole: "")


def test_the_eight_of_most_gain_are_kept() -> None:
    found = [suggestion(planned(), f"--x {n}", Served(10 + n), "") for n in range(12)]
    assert [one.after for one in most_gain(found)] == [21, 20, 19, 18, 17, 16, 15, 14]
    assert MOST == 8


def test_the_safest_come_first_and_of_these_the_most_gain() -> None:
    risks = [("accuracy", 90), ("none", 12), ("latency", 50), ("memory", 60), ("none", 20)]
    found = [Suggestion(f"--{risk}", 10, after, "", "", risk) for risk, after in risks]
    assert [(one.risk, one.after) for one in safest_first(found)] == [
        ("none", 20),
        ("none", 12),
        ("memory", 60),
        ("latency", 50),
        ("accuracy", 90),
    ]
