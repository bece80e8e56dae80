"""``hybridcalc check`` on input that is hostile or odd: the other files are checked, and reports stay reports."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from command_line import process, run

from hybridcalc.checks import Checked

TRAP = "sglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size 8\n"
GOOD = TRAP.replace("size 8", "size 21")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("option", ["--env-file", "--baseline"])
def test_a_pipe_in_the_place_of_a_file_is_refused(here: Path, option: str) -> None:
    os.mkfifo(here / "pipe")
    (here / "a.sh").write_text(TRAP)
    ran = run("check", "a.sh", option, "pipe")
    assert (ran.code, ran.err.splitlines()[0].endswith("pipe: not a regular file")) == (2, True)


def test_an_empty_path_stops_no_other(here: Path) -> None:
    (here / "a.sh").write_text(TRAP)
    ran = run("check", "", "a.sh", "--json")
    assert (ran.code, [finding["rule"] for finding in ran.document["findings"]]) == (2, ["HC002"])
    assert "defect" not in ran.out + ran.err


@pytest.mark.parametrize("text", ["tool = 5\n", "[tool]\nhybridcalc = 5\n", "tool = []\n"])
def test_settings_of_another_shape_are_none_or_refused(here: Path, text: str) -> None:
    (here / "pyproject.toml").write_text(text)
    (here / "a.sh").write_text(TRAP)
    ran = run("check", "a.sh")
    assert ran.code == (2 if "hybridcalc" in text else 1)
    assert "defect" not in ran.err


def test_a_fix_that_cannot_be_made_leaves_the_others(here: Path) -> None:
    for name in ("a", "b", "c"):
        (here / f"{name}.sh").write_text(TRAP)
    (here / "b.sh").chmod(0o444)
    ran = run("check", ".", "--fix")
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "2 fixes made")
    assert "error: b.sh: cannot be rewritten\n       it is write-protected\n" in ran.err
    assert [(here / f"{name}.sh").read_text() == GOOD for name in ("a", "b", "c")] == [True, False, True]


def test_a_folder_that_takes_no_file_leaves_the_others(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = tempfile.mkstemp

    def refusing(dir: Path, prefix: str) -> tuple[int, str]:
        if dir.name == "locked":
            raise PermissionError(13, "Permission denied", str(dir))
        handle, made = make(dir=dir, prefix=prefix)
        return handle, made

    monkeypatch.setattr(tempfile, "mkstemp", refusing)
    (here / "locked").mkdir()
    (here / "locked" / "a.sh").write_text(TRAP)
    (here / "z.sh").write_text(TRAP)
    ran = run("check", ".", "--fix")
    assert (ran.code, ran.err.splitlines()[-1]) == (1, "1 fix made")
    assert "error: locked/a.sh: cannot be rewritten\n       permission denied\n" in ran.err
    assert (here / "z.sh").read_text() == GOOD


def test_a_fix_keeps_names_and_owner_of_a_file(here: Path) -> None:
    (here / "a.sh").write_bytes(b"\xef\xbb\xbf" + TRAP.encode())
    os.link(here / "a.sh", here / "b.sh")
    (here / "c.sh").write_text(TRAP)
    if os.geteuid() == 0:
        os.chown(here / "c.sh", 1234, 1234)
    owner = (here / "c.sh").stat().st_uid
    ran = run("check", ".", "--fix")
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "2 fixes made")
    assert (here / "a.sh").stat().st_ino == (here / "b.sh").stat().st_ino
    assert (here / "b.sh").read_bytes() == b"\xef\xbb\xbf" + GOOD.encode()
    assert (here / "c.sh").stat().st_uid == owner


def test_a_diff_is_one_that_patch_takes_and_a_terminal_survives(here: Path) -> None:
    """A form feed or a line separator ends no line; an escape character does not reach the terminal."""
    text = "# a\x0cb\u2028c\x85d\n" + TRAP
    (here / "a.sh").write_text(text)
    shown = run("check", "a.sh", "--diff").out
    assert "@@ -1,2 +1,2 @@\n # a?b?c?d\n-sglang" in shown
    (here / "b.sh").write_text("echo '\x1b]0;x\x07'\n" + TRAP)
    shown = run("check", "b.sh", "--diff").out
    assert "\x1b" not in shown
    assert "\x07" not in shown
    (here / "c.sh").write_text("#\tours\r\n" + TRAP.rstrip())
    patch = run("check", "c.sh", "--diff").out
    assert subprocess.run(["git", "apply", "--check", "-"], input=patch.encode(), check=False, cwd=here).returncode == 0
    (here / "b.sh").write_text("echo '\x1b::x\x07'\n" + TRAP)
    with (here / "b.patch").open("wb") as stream:  # a file takes what a terminal must not
        command = [sys.executable, "-m", "hybridcalc", "check", "b.sh", "--diff", "--format", "text"]
        subprocess.run(command, stdout=stream, check=False, env=os.environ | {"GITHUB_ACTIONS": "true"})
    assert subprocess.run(["git", "apply", "--check", "b.patch"], check=False, cwd=here).returncode == 0


OPTIONS = {
    "gpu": (("--gpu", "nonsense"), "gpu: no GPU 'nonsense'"),
    "model": (("--model", "nonsense"), "check: models: no model 'nonsense'"),
    "model of a path": (("--model", "/model=nonsense"), "check: models: no model 'nonsense'"),
    "output of text": (("--fix", "--output", "x"), "--output takes a form for machines"),
    "fix and baseline": (("--fix", "--write-baseline", "b"), "--write-baseline and --fix exclude each other"),
    "set": (("--set", "=x"), "--set '=x' is not NAME=VALUE"),
}


@pytest.mark.parametrize(("options", "message"), OPTIONS.values(), ids=OPTIONS)
def test_options_that_mean_nothing_are_refused_before_anything_changes(
    here: Path, options: tuple[str, ...], message: str
) -> None:
    (here / "a.sh").write_text(TRAP)
    ran = run("check", "a.sh", *options)
    assert (ran.code, message in ran.err) == (2, True), ran.err
    assert (here / "a.sh").read_text() == TRAP
    assert os.listdir(here) == ["a.sh"]


SILENT = {
    "string of a script": ("a.sh", 'echo "# hybridcalc: ignore-file=HC002 x"\n' + TRAP),
    "here-document": ("a.sh", "cat <<X\n# hybridcalc: ignore-file=HC002 x\nX\n" + TRAP),
    "quoted yaml": ("a.yaml", 'a: "# hybridcalc: ignore-file=HC002 x"\ncommand: [sh, -c, "' + TRAP.strip() + '"]\n'),
    "block of yaml": ("a.yaml", f"a: |\n  # hybridcalc: ignore-file=HC002 x\ncommand: [sh, -c, '{TRAP.strip()}']\n"),
    "string of a Dockerfile": ("Dockerfile", f'FROM x\nLABEL a="# hybridcalc: ignore-file=HC002 x"\nCMD {TRAP}'),
}
HEARD = {
    "comment": ("a.sh", f"# hybridcalc: ignore-file=HC002 x\n{TRAP}"),
    "end of a line": ("a.sh", TRAP.rstrip() + " # hybridcalc: ignore=HC002 x\n"),
    "array": ("a.sh", "A=(--tp 8 --max-running-requests 4\n --max-mamba-cache-size 8 # hybridcalc: ignore=HC002 x\n)\n"
              'sglang serve kimi-k3 "${A[@]}"\n'),
    "yaml": ("a.yaml", f"# hybridcalc: ignore-file=HC002 x\ncommand: [sh, -c, '{TRAP.strip()}']\n"),
    "script in yaml": ("a.yaml", f"command: [sh, -c]\nargs:\n- |\n  # hybridcalc: ignore=HC002 x\n  {TRAP}"),
    "quoted script": ("a.sh", f"bash -c '\n# hybridcalc: ignore=HC002 x\n{TRAP}'\n"),
    "Dockerfile": ("Dockerfile", f"FROM x\n# hybridcalc: ignore=HC002 x\nCMD {TRAP}"),
    "unit": ("a.service", f"[Service]\n# hybridcalc: ignore=HC002 x\nExecStart={TRAP}"),
    "unclosed quote elsewhere": ("a.sh", f"echo it's\n# hybridcalc: ignore=HC002 x\n{TRAP}"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "text"), SILENT.values(), ids=SILENT)
def test_a_suppression_in_a_text_for_others_counts_for_nothing(here: Path, name: str, text: str) -> None:
    (here / name).write_text(text)
    ran = run("check", name, "--json")
    assert (ran.code, ran.document["summary"]["suppressed"]) == (1, 0)


@pytest.mark.parametrize(("name", "text"), HEARD.values(), ids=HEARD)
def test_a_suppression_in_a_comment_counts(here: Path, name: str, text: str) -> None:
    (here / name).write_text(text)
    ran = run("check", name, "--json")
    assert (ran.code, ran.document["summary"]["suppressed"]) == (0, 1), ran.out


def test_a_log_of_a_workflow_takes_no_commands_from_files(here: Path) -> None:
    """Text between stop-commands and its token is not read for commands; the annotations before it are escaped."""
    name = "${" + "A" * 42 + "}"
    (here / "a.sh").write_text(
        f'sglang serve kimi-k3 --tp "{name} ::stop-commands::x ::error::fake##[add-path]y\x1b"\n' + TRAP
    )
    ran = run("check", "a.sh", GITHUB_ACTIONS="true", COLUMNS="80")
    lines = ran.out.splitlines()
    (stop,) = [index for index, line in enumerate(lines) if line.startswith("::stop-commands::")]
    token = lines[stop].removeprefix("::stop-commands::")
    assert re.fullmatch(r"[0-9a-f]{32}", token)
    assert lines[-1] == f"::{token}::"
    assert all(re.match(r"::(error|warning|notice) file=", line) for line in lines[:stop])
    assert "\x1b" not in ran.out
    (here / "b.sh").write_text(" ::error::fake\n##[error]x\n" + TRAP)
    ran = run("check", "b.sh", "--diff", GITHUB_ACTIONS="true")
    assert not [line for line in ran.err.splitlines() if line.lstrip().startswith("::") or "##[" in line]


def test_markdown_escapes_what_rules_wait_for(here: Path) -> None:
    (here / "a.yaml").write_text(
        "kind: Pod\nspec: {containers: [{command: [sglang, serve, --model-path, "
        '"/m/<img src=x>[click](http://e) @org"]}]}\n'
    )
    text = run("check", "a.yaml", "-f", "markdown").out
    assert "<img" not in text.replace("`", "")
    assert not re.search(r"(?<!\\)\[click(?<!\\)\]", text)


def test_names_that_are_no_text_are_named_as_the_file_system_does(here: Path) -> None:
    (here / b"a\xff\xfe.sh".decode("utf-8", "surrogateescape")).write_text(TRAP)
    assert "a%FF%FE.sh" in run("check", ".", "-f", "sarif").out
    assert "\udcff" not in run("check", ".", "-f", "github").out


def test_no_fix_is_offered_for_a_file_that_is_not_rewritten(here: Path) -> None:
    (here / "a.sh").write_bytes(b"# caf\xe9\n" + TRAP.encode())
    (sarif,) = json.loads(run("check", "a.sh", "-f", "sarif").out)["runs"]
    assert [result["ruleId"] for result in sarif["results"] if "fixes" not in result] == ["HC002"]
    assert "edit" not in run("check", "a.sh", "--json").document["findings"][0]


def test_one_file_by_two_names_is_fixed_once(here: Path) -> None:
    (here / "a.sh").write_text(TRAP)
    (here / "sub").mkdir()
    (here / "sub" / "b.sh").symlink_to("../a.sh")
    ran = run("check", "sub/b.sh", "a.sh", "./a.sh", "--fix")
    assert (ran.code, ran.err.splitlines()[-1], "changed while" in ran.err) == (0, "1 fix made", False)
    assert run("check", ".").out.startswith("1 deployment,")


def test_variables_of_an_image_come_in_the_order_of_the_file(here: Path) -> None:
    (here / "a.yaml").write_text(
        "kind: LLMInferenceService\nspec:\n  model: {uri: hf://Qwen/Qwen3.6-35B-A3B, name: q}\n  template:\n"
        "    containers:\n    - name: main\n      env:\n"
        "      - {name: VLLM_EXTRA_ARGS, value: --tensor-parallel-size 5}\n"
        "      - {name: VLLM_ADDITIONAL_ARGS, value: --tensor-parallel-size 2}\n"
    )
    sizes = set()
    for seed in ("1", "2", "3"):
        (deployment,) = process("check", "a.yaml", "--json", PYTHONHASHSEED=seed).document["deployments"]
        sizes |= {value["value"] for value in deployment["resolved"]}
    assert sizes == {"2"}


@pytest.mark.parametrize(
    "flag", ["--max-mamba-cache-size $K", "--max-mamba-cache-size=$K", '"--max-mamba-cache-size=$K"']
)
def test_a_value_from_a_variable_is_pointed_at(here: Path, flag: str) -> None:
    (here / "a.sh").write_text(f"K=8\nsglang serve kimi-k3 --tp 8 --max-running-requests 4 {flag}\n")
    (finding,) = run("check", "a.sh", "--json").document["findings"]
    line = (here / "a.sh").read_text().splitlines()[1]
    assert line[finding["column"] - 1 :].startswith("$K")


def test_many_findings_take_time_as_their_number(here: Path) -> None:
    """A second report of a file of two thousand deployments must not compare every finding with every deployment."""
    pod = f"kind: Pod\nspec: {{containers: [{{command: [sh, -c, '{TRAP.strip()}']}}]}}\n---\n"
    (here / "a.yaml").write_text(pod * 600)
    from hybridcalc.checks.run import check_paths
    from hybridcalc.checks.settings import Settings
    from hybridcalc.output import junit

    report = check_paths(["a.yaml"], Settings(), {})
    calls = 0
    key = junit._key

    def counted(one: Checked) -> tuple[str, str, int]:
        nonlocal calls
        calls += 1
        return key(one)

    junit._key = counted
    try:
        text = junit.junit(report, "error")
    finally:
        junit._key = key
    assert text.count("<failure") == 600
    assert calls <= 2 * 600
