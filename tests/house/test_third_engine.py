"""A third engine is its package and one row: every command plans with it, or says that it is not for it."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

import hybridcalc
from hybridcalc.checks import all_rules
from hybridcalc.cli.app import execute
from hybridcalc.engines import ENGINES, Row, Starter

HERE = Path(__file__).parent
ROW = Row("Toy", "toy", Starter((("toy", "serve"),)), {"bootlog": "toy.grammar"})
MODEL = "llama-3.1-8b"


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.setitem(ENGINES.rows, "toy", ROW)
    all_rules.cache_clear()
    yield
    all_rules.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy"]:
        del sys.modules[name]


def run(*arguments: Any) -> Any:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = execute(list(arguments))
    return code, out.getvalue(), err.getvalue()


def answer(*arguments: Any) -> Any:
    code, out, err = run(arguments[0], "--json", *arguments[1:])
    assert (code, err) == (0, "")
    return json.loads(out)


def test_it_is_planned_as_text_and_as_a_document() -> None:
    document = answer("plan", MODEL, "--engine", "toy", "--rest", "8GiB", "-L", "8k", "--max-requests", "16")
    assert document["engine"] == "toy" and document["blocks"] == 8 * 2**30 // (256 * 131072)
    assert document["requests"] == 256 // 33 and document["arguments"] == {"max_requests": 16}
    code, out, err = run("plan", MODEL, "--engine", "toy", "--rest", "8GiB", "-L", "8k", "--explain", "-v")
    assert (code, err) == (0, "") and "7 requests" in out and "toy: 256 blocks" in out and "memory // block" in out


def test_what_does_not_start_is_refused_with_its_rule() -> None:
    code, out, _ = run("plan", MODEL, "--engine", "toy", "--rest", "2MiB")
    assert code == 1 and "TOY1" in out and "no room for two blocks" in out
    code, out, _ = run("plan", MODEL, "--engine", "toy", "--rest", "2MiB", "--json")
    assert code == 1 and json.loads(out)["refusal"]["rule"] == "TOY1"


def test_settings_are_compared() -> None:
    document = answer("plan", MODEL, "--engine", "toy", "--rest", "8GiB", "-L", "8k", "--compare", "--block 16")
    assert [side["requests"] for side in document["compare"]] == [7, 7]
    code, out, _ = run("plan", MODEL, "--engine", "toy", "--rest", "8GiB", "-L", "8k", "--compare", "--block 16", "-v")
    assert code == 0 and "requests at once" in out


def test_a_page_is_written(tmp_path: Path) -> None:
    page = tmp_path / "toy.html"
    code, _, err = run("report", MODEL, "-o", str(page), "--engine", "toy", "--rest", "8GiB")
    assert (code, err) == (0, "") and "on Toy 2.0" in page.read_text()


def test_the_library_plans_it() -> None:
    plan = hybridcalc.plan(MODEL, engine="toy", rest="8GiB", length="8k", block=16)
    assert plan.requests == 7 and plan.to_dict()["engine"] == "toy"


def test_its_launch_lines_are_planned() -> None:
    """Pasted, in a report and by the library."""
    line = ("toy", "serve", MODEL, "--block", "16")
    assert answer("plan", "--rest", "8GiB", "-L", "8k", "--", *line)["arguments"] == {"block": 16}
    assert hybridcalc.plan(" ".join(line), rest="8GiB", length=8192).args.block == 16


def test_its_deployments_are_checked(tmp_path: Path) -> None:
    """A script that starts it, its flags placed, its rules judged: without memory, with it, and where it is refused."""
    script = tmp_path / "start.sh"
    script.write_text(f"export TOY_BLOCK=1\ntoy serve --model {MODEL} \\\n    --max-requests 2 --blok 9\n")
    code, out, err = run("check", str(script), "--json")
    document = json.loads(out)
    (deployment,) = document["deployments"]
    assert (code, err, deployment["engine"]) == (1, "", "toy")
    assert [finding["message"] for finding in document["findings"]] == ["--blok is not a flag of Toy"]
    script.write_text("toy serve --model nemotron-h-8b --max-requests 2\n")
    found = answer("check", str(script), "--rest", "8GiB", "-L", "8k")["findings"]
    assert [(finding["rule"], finding["line"]) for finding in found] == [("TOY2", 1)]
    script.write_text("toy serve --model falcon-mamba-7b\n")
    code, out, _ = run("check", str(script))
    assert code == 1 and "TOY1" in out and "attention only" in out


def test_its_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "toy.log"
    log.write_text("toy: blocks = 256\ntoy: listening on 80\n")
    (boot,) = answer("log", str(log))["boots"]
    assert boot["engine"] == "toy" and boot["verdict"]
    code, out, err = run("log", str(log))
    assert (code, err) == (0, "") and "Toy" in out


def test_its_rules_are_explained() -> None:
    code, out, _ = run("rules", "TOY2")
    assert code == 0 and "Blocks are left" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("crossover", "kimi-k3", "--engine", "toy"), "crossover is not for Toy"),
        (("reuse", "--engine", "toy", "--slots", "9", "--workload", "cyclic"), "reuse is not for Toy"),
        (("verify", MODEL, "--engine", "toy", "--rest", "8GiB"), "verify is not for Toy"),
        (("plan", MODEL, "--engine", "toy", "--sweep", "rest=4,8"), "--sweep is not for Toy"),
        (("plan", MODEL, "--engine", "toy", "--available", "8GiB"), "--available says nothing about Toy"),
        (("plan", MODEL, "--engine", "toy"), "Toy needs the memory for its blocks"),
        (("plan", MODEL, "--engine", "toy", "--rest", "8GiB", "--tp", "8"), "--tp is no flag of Toy nor of plan"),
    ],
)
def test_what_it_does_not_offer_is_said(arguments: Any, said: Any) -> None:
    code, _, err = run(*arguments)
    assert code == 2 and said in err and "defect" not in err
