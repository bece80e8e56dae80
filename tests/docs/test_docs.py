"""README and docs say what the code does: examples run, generated pages are current, nothing is undocumented."""

from __future__ import annotations

import doctest
import importlib.util
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import make_docs
import published_figures
import pytest
import run_console
from typer.core import TyperGroup
from typer.main import get_command

from hybridcalc.cli.app import COMMANDS, app
from hybridcalc.engines import ENGINES

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


printed = cache(run_console.output)
"""Some commands stand in several pages."""

EXTRAS = {"hybridcalc verify": "torch", " --figure": "plotext", " --save": "vl_convert"}
"""What a command holds -> the module of an extra that it then needs."""


@pytest.mark.parametrize(
    "example",
    [
        pytest.param(
            example,
            id=f"{example.page.name}: {example.command[:60]}",
            marks=[pytest.mark.needs(module) for part, module in EXTRAS.items() if part in example.command],
        )
        for example in run_console.examples()
    ],
)
def test_console_blocks_print_what_they_show(example: Any) -> None:
    assert printed(example.command) == example.shown


@pytest.mark.parametrize(("page", "least"), [("formulas.md", 30), ("speed.md", 3)])
def test_pages_are_worked_with_the_code_itself(page: str, least: int) -> None:
    tested = doctest.testfile(str(ROOT / "docs" / page), module_relative=False)
    assert tested.attempted > least
    assert tested.failed == 0


def test_readme_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert code is not None
    exec(compile(code[1], "README.md", "exec"), {})
    assert capsys.readouterr().out.split("\n")[1].startswith("257 51")


@pytest.mark.parametrize("page", make_docs.PAGES)
def test_generated_pages_are_current(page: str) -> None:
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == make_docs.PAGES[page]()


@pytest.mark.parametrize("entry", published_figures.figures(), ids=lambda entry: entry["id"])
def test_published_figures_come_out_as_recorded(entry: dict[str, Any]) -> None:
    """The library reproduces each recorded figure from the claim's own inputs."""
    assert published_figures.recomputed(entry) == entry["computed"]


@pytest.mark.parametrize("entry", published_figures.figures(), ids=lambda entry: entry["id"])
def test_a_figure_that_does_not_agree_says_why(entry: dict[str, Any]) -> None:
    assert entry["verdict"] in ("agrees", "rounding", "disagrees")
    assert entry["verdict"] != "disagrees" or entry["why"]


def _commands() -> Iterator[tuple[str, Any]]:
    root = cast(TyperGroup, get_command(app))
    context = root.make_context("hybridcalc", [], resilient_parsing=True)
    for name in COMMANDS:
        command = root.get_command(context, name)
        yield name, command
        for inner, subcommand in getattr(command, "commands", {}).items():
            if subcommand.hidden:
                continue
            yield f"{name} {inner}", subcommand


@pytest.mark.parametrize(("name", "command"), list(_commands()), ids=[name for name, _ in _commands()])
def test_every_command_and_flag_has_help_and_a_page(name: str, command: Any) -> None:
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert command.help
    assert f"## hybridcalc {name}\n" in page
    for parameter in command.params:
        assert parameter.help, parameter.name
        assert all(f"`{flag}`" in page for flag in parameter.opts if flag.startswith("-"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_readme_opens_with_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    install = "pip install . && hybridcalc plan Qwen/Qwen3.5-397B-A17B-FP8 --gpu 8xh200 -L 64k"
    assert install in text
    assert "pip install -c constraints.txt '.[test]' && pytest" in text


def test_the_tools_are_importable_without_side_effects() -> None:
    assert importlib.util.find_spec("compile_presets") is not None


@pytest.mark.parametrize("page", ["README.md", "docs/engines.md"])
def test_pages_name_the_releases_that_are_known(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    for engine in (ENGINES["sglang"], ENGINES["vllm"]):
        known = engine.part("releases").RELEASES
        oldest, newest = (version.removesuffix(".0") for version in (known.oldest, known.newest))
        assert f"{engine.title} {oldest} to {newest}" in text, engine.title


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
