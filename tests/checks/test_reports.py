"""One check, every report: what machines read is complete, escaped and in shape."""

from __future__ import annotations

import json
import os
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridcalc.checks import Checked
from hybridcalc.checks.run import Report, check_paths
from hybridcalc.checks.settings import Settings
from hybridcalc.manifests import Deployment
from hybridcalc.output.annotations import markdown, workflow_commands
from hybridcalc.output.check_report import check_document
from hybridcalc.output.check_text import passed_lines
from hybridcalc.output.document import json_pieces, json_text
from hybridcalc.output.junit import junit
from hybridcalc.output.sarif import sarif, uri

SCRIPT = """\
# a trap, on purpose
sglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size 8 $EXTRA
# hybridcalc: ignore=HC072 the fleet still runs an older release
sglang serve kimi-k3 --tp 8 --mamba-scheduler-strategy extra_buffer --page-size $PAGE
"""


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Report:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b,100%.sh").write_text(SCRIPT)
    (tmp_path / "broken.yaml").write_text("# sglang\na: [\n")
    (tmp_path / "chart.yaml").write_text("sglang: {{ .Values.x }}\nb: {{- end }}\nargs: []\n")
    return check_paths(["."], Settings(), {})


def test_sarif_holds_rules_results_places_fixes_and_suppressions(report: Report) -> None:
    """The properties that the SARIF 2.1.0 schema requires, and nothing it does not know."""
    log = json.loads(json.dumps(sarif(report)))
    assert set(log) == {"$schema", "version", "runs"}
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    rules = [rule["id"] for rule in driver["rules"]]
    assert rules == sorted(set(rules))
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("none", "note", "warning", "error")
        assert set(result) <= {
            "ruleId",
            "ruleIndex",
            "level",
            "message",
            "locations",
            "partialFingerprints",
            "fixes",
            "suppressions",
        }
        (location,) = result["locations"]
        region = location["physicalLocation"]["region"]
        assert region["endColumn"] > region["startColumn"] >= 1
        assert location["physicalLocation"]["artifactLocation"]["uri"] == "a%20b,100%25.sh"
    trap = next(result for result in run["results"] if result["ruleId"] == "HC002")
    (fix,) = trap["fixes"]
    (change,) = fix["artifactChanges"]
    assert change["replacements"] == [
        {
            "deletedRegion": {"startLine": 2, "startColumn": 77, "endLine": 2, "endColumn": 78},
            "insertedContent": {"text": "21"},
        }
    ]
    old = next(result for result in run["results"] if result["ruleId"] == "HC072")
    assert old["suppressions"] == [{"kind": "inSource", "justification": "the fleet still runs an older release"}]
    assert [r["ruleId"] for r in run["results"]].count("HC079") == 2
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert [note["level"] for note in invocation["toolExecutionNotifications"]] == ["error", "warning"]


def test_junit_counts_what_it_holds(report: Report) -> None:
    root = ET.fromstring(junit(report, "error"))
    cases = [case.attrib["name"] for case in root.iter("testcase")]
    assert any("HC002" in name for name in cases)
    for suite in root.iter("testsuite"):
        assert int(suite.attrib["tests"]) == len(list(suite.iter("testcase")))
        assert int(suite.attrib["failures"]) == len(list(suite.iter("failure")))
        assert int(suite.attrib["errors"]) == len(list(suite.iter("error")))
        assert int(suite.attrib["skipped"]) == len(list(suite.iter("skipped")))
    assert len(list(root.iter("failure"))) == 1
    assert len(list(root.iter("error"))) == 1


def test_workflow_commands_are_escaped(report: Report) -> None:
    lines = workflow_commands(report).splitlines()
    assert all(line.startswith(("::error ", "::warning ", "::notice ")) for line in lines)
    trap = next(line for line in lines if "HC002" in line)
    assert trap.startswith("::error file=a b%2C100%25.sh,line=2,col=77,endColumn=78,title=hybridcalc HC002::8 slots")
    assert "%0Awrite 21" in trap
    assert not any("HC072" in line for line in lines)


def test_markdown_is_a_table_that_no_text_breaks_out_of(report: Report) -> None:
    text = markdown(report)
    assert text.startswith("### hybridcalc check: 2 deployments, 1 error, 3 unresolved, 1 unreadable, 1 suppressed")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(row.replace("\\|", "").count("|") == 5 for row in rows)
    assert "`a b,100%.sh:2`" in text


def test_the_document_has_the_promised_keys(report: Report) -> None:
    pieces = check_document(report, 2).items()
    made = {key: list(value) if isinstance(value, Iterator) else value for key, value in pieces}
    text = "".join(json_pieces("check", check_document(report, 2)))
    assert text == json_text("check", made)
    document = json.loads(text)
    assert set(document) >= {"deployments", "findings", "summary"}
    assert set(document["deployments"][0]) >= {"file", "line", "engine", "model", "resolved", "unresolved"}
    assert set(document["findings"][0]) >= {"rule", "severity", "file", "line", "message", "fix"}
    assert document["summary"]["engine_versions"] == {"sglang": "0.5.23"}


def test_paths_are_relative_references() -> None:
    assert uri("a/b c#d?.yaml") == "a/b%20c%23d%3F.yaml"
    assert uri("./deploy/../deploy/k3.yaml") == "deploy/k3.yaml"
    assert uri("/etc/k3.yaml") == "file:///etc/k3.yaml"
    assert uri(str(Path.cwd() / "deploy" / "k3.yaml")) == "deploy/k3.yaml"


def test_a_defect_of_one_file_keeps_no_other_from_being_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hybridcalc.checks import run
    from hybridcalc.checks.judge import judge

    def failing(deployment: Deployment, settings: Settings) -> Checked:
        if deployment.path.endswith("b.sh"):
            raise ZeroDivisionError("of ours")
        return judge(deployment, settings)

    monkeypatch.setattr(run, "judge", failing)
    for name in ("a.sh", "b.sh", "c.sh"):
        (tmp_path / name).write_text("sglang serve kimi-k3 --tp 8\n")
    found = check_paths([str(tmp_path)], Settings(), {})
    assert (len(found.checked), found.exit_code("error", allow_unresolved=True)) == (2, 2)
    assert found.troubles[0].message == "ZeroDivisionError: of ours"


def test_files_of_a_folder_that_have_to_be_named_are_told_of(tmp_path: Path) -> None:
    """Python that calls an engine's class or runs its launcher, guides that show one; no others."""
    for name, text in (
        ("serve.py", "from vllm import LLM\nllm = LLM('qwen3-next-80b-a3b')\n"),
        ("start.py", "import subprocess\nsubprocess.run(['vllm', 'serve', 'qwen3-next-80b-a3b'])\n"),
        ("client.py", "from vllm import SamplingParams\n"),
        ("README.md", "```\n$ vllm serve qwen3-next-80b-a3b\n```\n"),
        ("notes.md", "Everything here runs on vLLM: `vllm serve` starts it.\n"),
    ):
        (tmp_path / name).write_text(text)
    walked = check_paths([str(tmp_path)], Settings(), {})
    assert [os.path.basename(path) for path in walked.passed] == ["README.md", "serve.py", "start.py"]
    assert (walked.exit_code("error", allow_unresolved=False), walked.exit_code("error", allow_unresolved=True)) == (
        3,
        0,
    )
    assert "2 .py files that start an engine not read; name them" in " ".join(passed_lines(walked))
    assert not check_paths([str(tmp_path / "serve.py")], Settings(), {}).passed
