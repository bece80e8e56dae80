"""What a project configures for check: each kind of setting is read or refused by name, and rules are chosen by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridcalc.checks.run import check_paths
from hybridcalc.checks.settings import LARGEST_SETTINGS_BYTES, Settings, load_settings, settings_from
from hybridcalc.deployment import Workload
from hybridcalc.errors import InputError

GOOD: list[tuple[dict[str, Any], str, Any]] = [
    ({"select": "HC07, HC1"}, "select", ("HC07", "HC1")),
    ({"ignore": ["HC013", " HC018 ,HC019,"]}, "ignore", ("HC013", "HC018", "HC019")),
    ({"severity": {"HC002": "note"}}, "severity", {"HC002": "note"}),
    ({"fail-on": "never"}, "fail_on", "never"),
    ({"fail_on": "warning"}, "fail_on", "warning"),
    ({"allow-unresolved": True}, "allow_unresolved", True),
    ({"models": {"/m": "kimi-k3", "/n": "hf://moonshotai/Kimi-K3"}}, "models",
     {"/m": "kimi-k3", "/n": "hf://moonshotai/Kimi-K3"}),
    ({"set": {"TP": 8}}, "variables", {"TP": "8"}),
    ({"gpu": "8xh200"}, "gpu", "8xh200"),
    ({"weights": "70GiB"}, "weights", "70GiB"),
    ({"length": "8k"}, "length", 8192),
    ({"lengths": "1k:3,8k:1"}, "lengths", "1k:3,8k:1"),
    ({"concurrency": 1}, "concurrency", 1),
    ({"baseline": "b.json"}, "baseline", "b.json"),
    ({"sglang-version": "0.5.16"}, "versions", {"sglang": "0.5.16"}),
    ({"vllm_version": 0.29}, "versions", {"vllm": "0.29"}),
]  # fmt: skip


@pytest.mark.parametrize(("section", "name", "value"), GOOD, ids=[next(iter(section)) for section, _, _ in GOOD])
def test_a_setting_is_read_under_its_name(section: dict[str, Any], name: str, value: Any) -> None:
    """With dashes or underscores; every other setting stays as it is."""
    assert settings_from(section, "x") == Settings()._replace(**{name: value})


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"ignroe": []}, "x: ignroe is no setting", "one of select, ignore, severity, fail-on"),
    ({"sglang": "0.5.16"}, "x: sglang is no setting", ""),
    ({"tgi_version": "1"}, "x: tgi_version is no setting", ""),
    ({"versions": {}}, "x: versions is no setting", ""),
    ({"sglang-version": "0.4"}, "SGLang 0.4 is older than every version known here", ""),
    ({"select": [1]}, "x: select: not a list of texts", ""),
    ({"select": {"a": 1}}, "x: select: not a list of texts", ""),
    ({"severity": []}, "x: severity: not a table", ""),
    ({"severity": {"HC002": "fatal"}}, "x: severity: not a severity", "write note, warning, error"),
    ({"models": {"a": "no-such-model"}}, "x: models: no model 'no-such-model'", ""),
    ({"allow-unresolved": 1}, "x: allow-unresolved: not true or false", ""),
    ({"fail-on": "all"}, "x: fail-on: not a severity", "write note, warning, error or never"),
    ({"gpu": "h1000"}, "x: gpu: ", ""),
    ({"concurrency": 0}, "x: concurrency: not a number of requests", ""),
    ({"concurrency": True}, "x: concurrency: not a number of requests", ""),
    ({"concurrency": "4"}, "x: concurrency: not a number of requests", ""),
    ({"weights": "lots"}, "'lots' is not a size", ""),
    ({"rest": "lots"}, "'lots' is not a size", ""),
    ({"available": "lots"}, "'lots' is not a size", ""),
]


@pytest.mark.parametrize(("section", "message", "fix"), BAD, ids=[str(section) for section, _, _ in BAD])
def test_what_is_no_setting_is_named(section: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        settings_from(section, "x")
    assert caught.value.message.startswith(message)
    assert (caught.value.fix or "").startswith(fix)
    with pytest.raises(InputError, match=r"(?m)^x: not a table of settings$"):
        settings_from([section], "x")


def test_the_settings_that_can_be_written_are_listed_as_they_are_written() -> None:
    with pytest.raises(InputError) as caught:
        settings_from({"no": 1}, "x")
    assert caught.value.fix == (
        "one of select, ignore, severity, fail-on, allow-unresolved, exclude, baseline, models, set, gpu, weights, "
        "rest, available, length, lengths, concurrency, sglang-version, vllm-version, llama.cpp-version"
    )


@pytest.mark.parametrize(
    ("select", "ignore", "rule", "counts"),
    [
        ((), (), "HC002", True),
        (("HC0",), (), "HC002", True),
        (("HC1",), (), "HC002", False),
        (("HC1", "HC002"), (), "HC002", True),
        ((), ("HC00",), "HC002", False),
        ((), ("HC1",), "HC002", True),
        (("HC0",), ("HC002",), "HC002", False),
        (("HC0",), ("HC002",), "HC003", True),
    ],
)
def test_rules_are_chosen_by_ids_and_their_beginnings(
    select: tuple[str, ...], ignore: tuple[str, ...], rule: str, counts: bool
) -> None:
    assert Settings(select=select, ignore=ignore).counts(rule) is counts


def test_the_workload_of_deployments_that_have_none() -> None:
    assert Settings().workload == Workload()
    assert Settings(length=4096, concurrency=3).workload == Workload(((4096, 1),), 3)
    assert Settings(lengths="1k:3,8k:1", length=7, concurrency=2).workload == Workload(((1024, 3), (8192, 1)), 2)


def test_settings_are_those_of_the_nearest_project_up_to_the_repository(tmp_path: Path) -> None:
    """A file of our own before pyproject.toml; one without a section of ours does not end the search, .git does."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / ".hybridcalc.yaml").write_text("length: 8k\n")
    assert load_settings(inner).length == 8192
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert load_settings(inner).length == 8192
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.hybridcalc]\nlength = '4k'\n")
    assert load_settings(inner).length == 4096
    (tmp_path / "a" / ".hybridcalc.yaml").write_text("length: 2k\n")
    assert load_settings(inner).length == 2048
    (inner / ".git").mkdir()
    assert load_settings(inner) == Settings()
    (inner / ".hybridcalc.yaml").write_text("")
    assert load_settings(inner) == Settings()
    (inner / ".hybridcalc.yaml").write_bytes(b"#" * (LARGEST_SETTINGS_BYTES + 1))
    with pytest.raises(InputError, match=r"hybridcalc\.yaml"):
        load_settings(inner)
    (inner / ".hybridcalc.yaml").write_bytes(b"#" * LARGEST_SETTINGS_BYTES)
    assert load_settings(inner) == Settings()


@pytest.mark.parametrize(
    ("patterns", "files"),
    [
        ((), ["a/x.sh", "a/y.sh", "b.sh"]),
        (("a",), ["b.sh"]),
        (("a/",), ["b.sh"]),
        (("*.sh",), []),
        (("a/x*",), ["a/y.sh", "b.sh"]),
        (("x.sh",), ["a/x.sh", "a/y.sh", "b.sh"]),
        (("b", "a/y.sh"), ["a/x.sh", "b.sh"]),
    ],
)
def test_files_are_excluded_by_their_path_or_a_folder_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patterns: tuple[str, ...], files: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    for name in ("a/x.sh", "a/y.sh", "b.sh"):
        (tmp_path / name).write_text("sglang serve kimi-k3 --tp 8\n")
    for start in (".", str(tmp_path)):
        found = check_paths([start], Settings(exclude=patterns), {})
        assert sorted(str(Path(one.path).resolve().relative_to(tmp_path)) for one in found.checked) == files
