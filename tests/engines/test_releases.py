"""Releases as rows: what rows come to, and what every engine's own rows must be."""

from pathlib import Path
from typing import Any, NamedTuple

import pytest
import release_tables

from hybridcalc.engines.arguments import RECORDED, Change, Releases, rule_sets
from hybridcalc.engines.sglang.releases import CHANGES as SGLANG_CHANGES
from hybridcalc.engines.sglang.releases import RELEASES as SGLANG
from hybridcalc.engines.vllm.releases import CHANGES as VLLM_CHANGES
from hybridcalc.engines.vllm.releases import RELEASES as VLLM
from hybridcalc.errors import InputError
from hybridcalc.units import is_later, version_numbers

ENGINES: dict[str, Any] = {"sglang": (SGLANG, SGLANG_CHANGES), "vllm": (VLLM, VLLM_CHANGES)}


class Toy(NamedTuple):
    """Rules of four kinds."""

    version: str
    recorded: bool = False
    charged: bool = False
    limit: int = 1
    layout: str = "rows"
    classes: frozenset[str] = frozenset()


ROWS = (
    Change("1.0", RECORDED, True, "results"),
    Change("1.2", "limit", 48, "limits.py"),
    Change("1.2", "classes", frozenset({"A"}), "classes.py"),
    Change("1.10", RECORDED, False, "its source"),
    Change("2.0", "charged", True, "pool.py"),
    Change("2.0", "limit", 64, "limits.py"),
    Change("2.0", RECORDED, True, "results"),
)
TOY = Releases("Toy", Toy("1.0"), ROWS)


def test_rows_come_to_a_rule_set_a_release() -> None:
    """A change holds from its release on; what was recorded is said of each release alone."""
    a = frozenset({"A"})
    assert rule_sets(Toy("1.0"), ROWS) == (
        Toy("1.0", True),
        Toy("1.2", False, False, 48, "rows", a),
        Toy("1.10", False, False, 48, "rows", a),
        Toy("2.0", True, True, 64, "rows", a),
    )
    assert (TOY.versions, TOY.oldest, TOY.newest) == (("1.0", "1.2", "1.10", "2.0"), "1.0", "2.0")


def test_a_row_about_no_rule_is_an_error() -> None:
    with pytest.raises(ValueError, match="unexpected field names"):
        rule_sets(Toy("1.0"), [Change("1.0", "limits", 3, "limits.py")])


@pytest.mark.parametrize(
    ("version", "rules", "note"),
    [
        (None, "2.0", ""),
        ("2.0", "2.0", ""),
        ("v2.0", "2.0", ""),
        ("2.0.1", "2.0", "Toy 2.0.1: the rules of 2.0 are used"),
        ("2.1", "2.0", "Toy 2.1 is newer than the releases known here: the rules of 2.0 are used"),
        ("1.9.9", "1.2", "Toy 1.9.9: the rules of 1.2 are used"),
        ("1.11", "1.10", "Toy 1.11: the rules of 1.10 are used"),
        ("1.2", "1.2", "Toy 1.2: rules read in its source, not checked by its results"),
    ],
)
def test_a_version_takes_the_rules_of_the_release_at_or_below_it(version: str | None, rules: str, note: str) -> None:
    """1.10 comes after 1.9; none named is the newest, about which nothing is to be said."""
    found, said = TOY.rules_for(version)
    assert (found.version, said) == (rules, note)


def test_a_version_that_only_builds_have_takes_the_rules_of_what_they_came_to() -> None:
    """Between 1.10 and 2.0, but with what 2.0 does; in comparisons as well."""
    toy = Releases("Toy", Toy("1.0"), ROWS, {"1.11": "2.0"})
    said = "Toy 1.11rc1.dev608+g99 names builds of its main branch: the rules of 2.0 are used"
    assert (toy.rules_for("1.11")[0].version, toy.rules_for("1.11rc1.dev608+g99")[1]) == ("2.0", said)
    assert (toy.counted("1.11.0rc1"), toy.counted("1.12")) == ("1.11.0rc1", "1.12")
    assert toy.counted("v1.11") == "2.0"


def test_a_version_below_the_oldest_release_is_refused() -> None:
    with pytest.raises(InputError, match=r"^Toy 0.9 is older than every version known here\n") as caught:
        TOY.rules_for("0.9")
    assert caught.value.fix == "known: 1.0 to 2.0"


def test_the_newest_release_with_a_value() -> None:
    assert [TOY.newest_with("charged", False), TOY.newest_with("limit", 48), TOY.newest_with("limit", 1)] == [
        "1.10",
        "1.10",
        "1.0",
    ]


def test_releases_that_differ_in_nothing_that_counts_are_one() -> None:
    """The recorded one stands for them, else the newest; newest first."""
    assert TOY.recorded == ("2.0", "1.0")
    assert TOY.oldest_with("limit", 48) == "1.2"
    assert TOY.unlike("charged", False, apart=()) == ("1.10", "1.0")
    assert TOY.unlike("charged", False, apart=("limit", "classes")) == ("1.0",)
    assert TOY.unlike("limit", 64, apart=()) == ("2.0",)


def test_versions_compare_by_number() -> None:
    assert is_later("0.10.0", "0.9.9")
    assert not is_later("0.9.9", "0.9.9")
    assert not is_later("v0.9", "0.10")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_changes_something_and_says_where(engine: str) -> None:
    """Rows in the order of releases; values of the kind that the rule's default has; a source each."""
    releases, changes = ENGINES[engine]
    versions = [version_numbers(change.release) for change in changes]
    assert versions == sorted(versions)
    rules = type(releases.rule_sets[0])(changes[0].release)
    for change in changes:
        assert change.source
        assert type(change.value) is type(getattr(rules, change.rule)), change
        if change.rule != RECORDED:
            assert change.value != getattr(rules, change.rule), change
            rules = rules._replace(**{change.rule: change.value})


@pytest.mark.parametrize("engine", ENGINES)
def test_every_rule_is_explained_and_changed_by_some_release(engine: str) -> None:
    """A rule that no row changes is no rule of a release."""
    releases, changes = ENGINES[engine]
    kind = type(releases.rule_sets[0])
    assert {change.rule for change in changes} == set(kind._fields) - {"version"}
    assert all(f"``{name}``" in str(kind.__doc__) for name in set(kind._fields) - {"version", RECORDED})


VLLM_RECORDED = ["0.19.0", "0.20.2", "0.21.0", "0.22.1", "0.23.0", "0.24.0", "0.25.1",
                 *(f"0.{minor}.0" for minor in range(26, 34))]  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "recorded"), [("sglang", [f"0.5.{patch}" for patch in range(9, 24)]), ("vllm", VLLM_RECORDED)]
)
def test_what_results_were_recorded_of_is_what_carries_no_note(engine: str, recorded: list[str]) -> None:
    """The releases in tests/data/vectors, and no other."""
    releases, _ = ENGINES[engine]
    assert [rules.version for rules in releases.rule_sets if rules.recorded] == recorded
    assert [version for version in releases.versions if not releases.rules_for(version)[1]] == recorded


@pytest.mark.parametrize("engine", ENGINES)
def test_the_page_of_releases_says_what_each_release_changed(engine: str) -> None:
    """Every row of docs/engines.md but its counts, which take every recorded start-up."""
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "engines.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in release_tables.release_table(engine, counted={}) if "| 0." in line]
    assert len(rows) == len(ENGINES[engine][0].versions)
    assert [row for row in rows if " | ".join(row) + " | " not in page] == []
