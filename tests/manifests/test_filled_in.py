"""What is filled in elsewhere: templates, runtimes, records. It is told once, and never as a broken launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcalc.checks.run import check_paths
from hybridcalc.checks.settings import Settings
from hybridcalc.manifests.find import read_file


def test_a_runtime_that_a_service_uses_is_told_there(tmp_path: Path) -> None:
    runtime = (
        "kind: ServingRuntime\nmetadata: {name: rt}\nspec:\n  containers:\n  - name: kserve-container\n"
        "    image: lmsysorg/sglang:v0.5.20\n    command: [python3, -m, sglang.launch_server]\n"
        "    args: [--model-path=/mnt/models, --max-mamba-cache-size=8]\n"
    )
    service = (
        "kind: InferenceService\nmetadata: {name: s}\nspec:\n  predictor:\n    model:\n      runtime: rt\n"
        "      storageUri: hf://Qwen/Qwen3.5-35B-A3B\n      args: [--max-running-requests=4]\n"
    )
    for name, text in (("rt.yaml", runtime), ("s.yaml", service)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    report = check_paths([str(tmp_path)], Settings(), {})
    assert report.troubles == ()
    (one,) = report.checked
    assert (one.path, one.line) == (str(tmp_path / "s.yaml"), 6)
    (finding,) = [item for item in one.findings if item.finding.rule == "HC002"]
    assert (finding.path, finding.line, finding.edit) == (str(tmp_path / "rt.yaml"), 8, None)


def test_patterns_of_one_file_are_named_once(tmp_path: Path) -> None:
    rows = "".join(f"- {{engine: vllm, max_model_len: {8192 * at}, max_num_seqs: 4}}\n" for at in (1, 2, 3))
    (tmp_path / "a.yaml").write_text(f"rows:\n{rows}", encoding="utf-8")
    report = check_paths([str(tmp_path)], Settings(), {})
    assert [(one.line, one.message) for one in report.troubles] == [
        (2, "flags of a model that is named elsewhere (2 more in the file)")
    ]


def test_a_record_of_one_figure_is_no_deployment(tmp_path: Path) -> None:
    text = "rows:\n- {framework: vllm, kv_cache_dtype: fp8, op: attention}\n"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    assert read_file(str(tmp_path / "a.yaml"), {}).deployments == ()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (" \\\n  {% if a %}\n  --x '{\"a\": {}}' \\\n  {% endif %}\n  --max-num-seqs 4", "--max-num-seqs 4"),
        (
            " \\\n  {% if a %}\n  --tp 2 \\\n  {% else %}\n  --tp 4 \\\n  {% endif %}\n  --max-num-seqs 4",
            "--max-num-seqs 4",
        ),
        (" {% if a %}{% if b %}--tp 2{% endif %} --pp 2{% endif %} --max-num-seqs 4", "--max-num-seqs 4"),
    ],
)
def test_what_a_template_may_leave_out_ends_no_command(tmp_path: Path, body: str, words: str) -> None:
    """Statements on lines of their own, with another branch, with braces and statements inside."""
    (tmp_path / "a.sh.j2").write_text(f"vllm serve org/m{body}\n", encoding="utf-8")
    (one,) = read_file(str(tmp_path / "a.sh.j2"), {}).deployments
    known = [str(word) for word in one.words if not word.why]
    assert (" ".join(known), one.orphan) == (f"org/m {words}", None)
    assert [word for word in one.words if word.why] != []


def test_a_launch_in_a_condition_of_a_template_is_read(tmp_path: Path) -> None:
    text = "{% if a %}\nvllm serve org/m \\\n{% if b %}\n  --tp 2 \\\n{% endif %}\n  --max-num-seqs 4\n{% endif %}\n"
    (tmp_path / "a.sh.j2").write_text(text, encoding="utf-8")
    (one,) = read_file(str(tmp_path / "a.sh.j2"), {}).deployments
    assert [str(word) for word in one.words if not word.why] == ["org/m", "--max-num-seqs", "4"]


@pytest.mark.parametrize("value", ["""'{"method": {{ m }}}'""", """'{"method":$(METHOD)}'"""])
def test_what_is_filled_in_later_is_no_broken_value(tmp_path: Path, value: str) -> None:
    text = f"steps:\n- run: |\n    vllm serve Qwen/Qwen3.6-27B --speculative-config {value}\n"
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    report = check_paths([str(tmp_path / "a.yaml")], Settings(), {})
    assert [item.finding.rule for item in report.findings] == []
    assert [item.flag for item in report.checked[0].opened] == ["--speculative-config"]
