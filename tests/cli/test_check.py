"""``hybridcalc check`` and ``hybridcalc rules``: exit codes, texts, options, fixes, baselines, settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import run

DATA = Path(__file__).parent.parent / "data" / "manifests"
TRAP = "sglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size 8\n"
GOOD = "sglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size 21\n"
OPEN = "sglang serve kimi-k3 --tp 8 --max-running-requests $N\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own that is the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_text_names_the_place_and_the_way_out(here: Path) -> None:
    (here / "k3.yaml").write_text((DATA / "kubernetes" / "k3-eight-slots.yaml").read_text())
    ran = run("check", "k3.yaml")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.splitlines()[:6] == [
        "k3.yaml:23:16 error HC002",
        "    8 slots admit 1 request; 4 requests x 5 slots + 1 = 21 are needed",
        "   22 |             - --max-mamba-cache-size",
        '   23 |             - "8"',
        "                       ^",
        "        write 21, or 17 with --mamba-radix-cache-strategy extra_buffer_lazy",
    ]
    assert ran.out.splitlines()[6] == "1 deployment, 1 error, 4 rules not checked   exit 1"


def test_exit_codes(here: Path) -> None:
    """0 good, 1 a finding, 2 unreadable (the others are still checked), 3 unresolved."""
    for name, text in (("trap.sh", TRAP), ("good.sh", GOOD), ("open.sh", OPEN)):
        (here / name).write_text(text)
    assert run("check", "good.sh").code == 0
    assert run("check", "trap.sh").code == 1
    assert run("check", "open.sh").code == 3
    assert run("check", "open.sh", "--allow-unresolved").code == 0
    assert run("check", "open.sh", "--set", "N=4").code == 0
    assert run("check", "trap.sh", "open.sh").code == 1
    gone = run("check", "trap.sh", "gone.sh", "--json")
    assert gone.code == 2
    assert gone.document["unreadable"][0]["file"] == "gone.sh"
    assert [finding["rule"] for finding in gone.document["findings"]] == ["HC002"]
    assert run("check", "trap.sh", "--fail-on", "never").code == 0
    assert run("check", "trap.sh", "--ignore", "HC002").code == 0
    (here / "note.sh").write_text("sglang serve kimi-k3 --tp 8 --mamba-scheduler-strategy extra_buffer\n")
    assert run("check", "note.sh").code == 0
    assert run("check", "note.sh", "--fail-on", "note").code == 1


def test_nothing_to_check_is_said(here: Path) -> None:
    (here / "a.yaml").write_text("a: b\n")
    ran = run("check")
    said = "no launch of an engine known here in 1 file read"
    assert (ran.code, ran.out) == (0, f"0 deployments   exit 0\n  {said}\n")


def test_what_looks_like_a_launch_and_is_not_read_is_named(here: Path) -> None:
    """A file of a kind that is not read; what is commented out or printed is no launch."""
    (here / "a.sh").write_text("# vllm serve kimi-k3\necho 'vllm serve kimi-k3'\n")
    (here / "b.sh").write_text("cat > run.py <<EOF\nos.system('vllm serve kimi-k3')\nEOF\n")
    ran = run("check")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "  looks like a launch and is not read: b.sh")
    assert run("check", "--json").document["summary"]["unread"] == ["b.sh"]


def test_a_suppression_above_the_document_or_the_container(here: Path) -> None:
    text = (DATA / "kubernetes" / "k3-eight-slots.yaml").read_text()
    for line in ("apiVersion:", "      containers:", "        - name:"):
        comment = "# hybridcalc: ignore=HC002 four requests never come\n"
        assert text.count("\n" + line) <= 1
        (here / "a.yaml").write_text(
            text.replace(line, comment + line, 1)
            if text.startswith(line)
            else text.replace("\n" + line, "\n" + comment + line)
        )
        expected = 1 if "containers" in line else 0
        assert run("check", "a.yaml").code == expected, line


def test_an_ignored_folder_is_read_where_it_is_named(here: Path) -> None:
    (here / ".git").mkdir()
    (here / ".gitignore").write_text("build/\n")
    (here / "build" / "deep").mkdir(parents=True)
    (here / "build" / "deep" / "a.sh").write_text(TRAP)
    assert run("check").code == 0
    assert run("check", "build").code == 1
    assert run("check", "build/deep").code == 1


def test_a_patch_is_all_that_diff_prints(here: Path) -> None:
    (here / "a.sh").write_text(TRAP)
    ran = run("check", "a.sh", "--diff")
    assert (ran.code, ran.out.splitlines()[0], ran.out.splitlines()[-1]) == (
        1,
        "--- a/a.sh",
        "+" + TRAP.strip().replace("size 8", "size 21"),
    )
    assert "HC002" in ran.err
    assert run("check", "a.sh", "--diff", "--json").document["findings"] != []


def test_nothing_that_is_not_checked_passes_in_silence(here: Path) -> None:
    """A refusal, and what the planner does not model, leave all rules of the engine unchecked."""
    (here / "a.sh").write_text("vllm serve Qwen/Qwen3.6-35B-A3B --attention-backend XFORMERS\n")
    document = run("check", "a.sh", "--json").document["summary"]
    assert document["not_checked"] > 20
    assert list(document["not_checked_for_want_of"]) == ["rules for --attention-backend XFORMERS"]
    assert "for want of rules for --attention-backend XFORMERS (1 deployment)" in run("check", "a.sh").out


def test_prefixes_of_ids_set_findings_aside_and_others_name_no_rule(here: Path) -> None:
    (here / "a.sh").write_text("# hybridcalc: ignore=HC00 four requests never come\n" + TRAP)
    assert run("check", "a.sh").code == 0
    for name in ("XC002", "HC9X", "all"):
        (here / "a.sh").write_text(f"# hybridcalc: ignore={name} four requests never come\n" + TRAP)
        ran = run("check", "a.sh", "--json")
        stray = next(item for item in ran.document["findings"] if item["rule"] == "HC078")
        assert (ran.code, stray["message"]) == (1, f"the suppression of {name} names no rule")


def test_a_release_is_asked_for_at_the_image(here: Path) -> None:
    (here / "a.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n    - image: vllm/vllm-openai:v0.32.0\n"
        "      args: [--model, Qwen/Qwen3.6-35B-A3B, --mamba-cache-mode, all]\n"
    )
    (finding,) = run("check", "a.yaml", "--json").document["findings"]
    assert (finding["rule"], finding["line"], finding["column"]) == ("HC042", 4, 14)
    assert "--engine-version" not in finding["fix"]
    assert "(the tag of its image)" in finding["fix"]


def test_an_unresolved_value_names_its_line_and_what_resolves_it(here: Path) -> None:
    (here / "open.sh").write_text("set -e\n" + OPEN)
    ran = run("check", "open.sh")
    assert "open.sh:2:52 unresolved" in ran.out
    assert "$N decides --max-running-requests: N comes from outside; give --set N=... or" in ran.out
    (here / "values.env").write_text("# sizes\nN=4\n")
    assert run("check", "open.sh", "--env-file", "values.env").code == 0


def test_stdin_is_checked(here: Path) -> None:
    ran = run("check", "-", "--json", stdin=(DATA / "kubernetes" / "k3-eight-slots.yaml").read_bytes())
    assert (ran.code, ran.document["findings"][0]["file"], ran.document["findings"][0]["line"]) == (1, "<stdin>", 23)


def test_fix_shows_a_diff_and_keeps_everything_else(here: Path) -> None:
    text = (
        "# our server  \r\nsglang serve kimi-k3 \\\r\n  --tp 8 --max-running-requests 4 \\\r\n"
        "  --max-mamba-cache-size '8'   # tuned\r\n"
    )
    (here / "a.sh").write_bytes(text.encode())
    (here / "b.yaml").write_text((DATA / "kubernetes" / "k3-eight-slots.yaml").read_text())
    (here / "b.yaml").chmod(0o640)
    shown = run("check", ".", "--diff")
    assert shown.code == 1
    assert '-            - "8"\n+            - "21"\n' in shown.out
    assert (here / "a.sh").read_bytes() == text.encode()
    fixed = run("check", ".", "--fix")
    assert (fixed.code, fixed.err.splitlines()[-1]) == (0, "2 fixes made")
    assert (here / "a.sh").read_bytes() == text.replace("'8'", "'21'").encode()
    before = (DATA / "kubernetes" / "k3-eight-slots.yaml").read_text().splitlines()
    after = (here / "b.yaml").read_text().splitlines()
    assert [pair for pair in zip(before, after, strict=True) if pair[0] != pair[1]] == [
        ('            - "8"', '            - "21"')
    ]
    assert (here / "b.yaml").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in here.iterdir()) == ["a.sh", "b.yaml"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "a.sh",
            "K=8\nsglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size $K --page-size $K\n",
        ),
        ("b.sh", "K=8\necho $K\nsglang serve kimi-k3 --tp 8 --max-running-requests 4 --max-mamba-cache-size $K\n"),
        (
            "c.yaml",
            "x: &k 8\ny: *k\nservices:\n  s:\n    image: lmsysorg/sglang\n"
            "    command: [sglang, serve, kimi-k3, --tp, 8, --max-running-requests, 4, --max-mamba-cache-size, *k]\n",
        ),
        (
            "d.yaml",
            "x: &c [sglang, serve, kimi-k3, --tp, 8, --max-running-requests, 4, --max-mamba-cache-size, 8]\n"
            "services:\n  s: {image: lmsysorg/sglang, command: *c}\n  t: {image: lmsysorg/sglang, command: *c}\n",
        ),
    ],
)
def test_a_fix_leaves_a_value_alone_that_another_setting_shares(here: Path, name: str, text: str) -> None:
    (here / name).write_text(text, encoding="utf-8")
    ran = run("check", name, "--fix")
    assert (ran.code, (here / name).read_text(encoding="utf-8")) == (1, text)
    assert "HC002" in ran.out


def test_a_fix_goes_where_the_value_is_written(here: Path) -> None:
    (here / "a.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n    - env: [{name: K, value: '8'}]\n"
        "      command: [sglang, serve, kimi-k3, --tp, '8', --max-running-requests, '4']\n"
        "      args: [--max-mamba-cache-size, $(K)]\n"
    )
    assert run("check", "a.yaml").code == 1
    assert run("check", "a.yaml", "--fix").code == 0
    assert "value: '21'" in (here / "a.yaml").read_text()


def test_a_baseline_sets_old_findings_aside(here: Path) -> None:
    (here / "a.sh").write_text(TRAP)
    assert run("check", "a.sh", "--write-baseline", "old.json").code == 0
    (here / "a.sh").write_text("# moved\n\n" + TRAP)
    assert run("check", "a.sh", "--baseline", "old.json").code == 0
    (here / "b.sh").write_text(TRAP)
    ran = run("check", ".", "--baseline", "old.json", "--json")
    assert (ran.code, ran.document["summary"]["suppressed"]) == (1, 1)
    assert run("check", "a.sh", "--baseline", "none.json").err.startswith("error: none.json: no such baseline\n")
    (here / "bad.json").write_text("[]")
    assert run("check", "a.sh", "--baseline", "bad.json").code == 2


def test_suppressions_need_a_reason_and_an_effect(here: Path) -> None:
    (here / "a.sh").write_text("# hybridcalc: ignore=HC002 four requests never come\n" + TRAP)
    assert run("check", "a.sh").code == 0
    (here / "a.sh").write_text(TRAP.rstrip() + "  # hybridcalc: ignore=HC002\n")
    ran = run("check", "a.sh")
    assert ran.code == 0
    assert "warning HC078" in ran.out
    assert "gives no reason" in ran.out
    (here / "a.sh").write_text("# hybridcalc: ignore=HC009 no longer\n" + TRAP)
    ran = run("check", "a.sh", "--json")
    assert ran.code == 1
    assert "has no effect" in next(f["message"] for f in ran.document["findings"] if f["rule"] == "HC078")
    (here / "a.sh").write_text(TRAP + "# hybridcalc: ignore-file=HC002 generated\n")
    assert run("check", "a.sh").code == 0


def test_settings_come_from_the_project_and_options_win(here: Path) -> None:
    (here / "sub").mkdir()
    (here / "sub" / "a.sh").write_text(TRAP + "sglang serve /model --tp 8\n")
    (here / "pyproject.toml").write_text(
        '[tool.hybridcalc]\nignore = ["HC002"]\nfail-on = "warning"\n[tool.hybridcalc.models]\n"/model" = "kimi-k3"\n'
    )
    assert run("check", ".").code == 0
    assert run("check", ".", "--ignore", "HC009").code == 1
    (here / ".hybridcalc.yaml").write_text("exclude: [sub]\n")
    assert run("check", ".").out.startswith("0 deployments   exit 0\n")
    (here / ".hybridcalc.yaml").write_text("ignroe: [HC002]\n")
    assert run("check", ".").err.startswith("error: .hybridcalc.yaml: ignroe is no setting\n")


def test_github_gets_annotations_and_a_summary_of_itself(here: Path) -> None:
    (here / "a.sh").write_text(TRAP)
    summary = here / "summary.md"
    ran = run("check", "a.sh", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert ran.code == 1
    assert ran.out.startswith("::error file=a.sh,line=1,col=77,endColumn=78,title=hybridcalc HC002::")
    assert summary.read_text().startswith("### hybridcalc check: 1 deployment, 1 error")
    plain = run("check", "a.sh", "--json", GITHUB_ACTIONS="true")
    assert json.loads(plain.out)["schema"] == "hybridcalc.check/2"


@pytest.mark.parametrize("form", ["json", "sarif", "junit", "github", "markdown"])
def test_every_form_is_written_to_a_file(here: Path, form: str) -> None:
    (here / "a.sh").write_text(TRAP)
    ran = run("check", "a.sh", "--format", form, "--output", "report")
    assert (ran.code, ran.out) == (1, "")
    assert "HC002" in (here / "report").read_text()


def test_many_files_are_shared_out_among_processes(here: Path) -> None:
    for number in range(330):
        (here / f"s{number:03}.sh").write_text(TRAP if number % 2 else GOOD)
    ran = run("check", ".", "--json")
    assert (ran.document["summary"]["deployments"], ran.document["summary"]["errors"]) == (330, 165)
    assert [f["file"] for f in ran.document["findings"]] == sorted(f["file"] for f in ran.document["findings"])


def test_the_schema_is_printed_and_current() -> None:
    from hybridcalc.manifests.native import schema_text

    ran = run("check", "--schema")
    assert (ran.code, ran.out) == (0, schema_text())
    assert json.loads(ran.out)["properties"]["deployments"]["type"] == "array"


BAD = {
    "format": (("check", "--format", "xml"), "error: --format 'xml' is not known\n"),
    "rule": (("check", "--select", "HC9"), "error: 'HC9' is no rule\n       see `hybridcalc rules`\n"),
    "severity": (("check", "--fail-on", "fatal"), "error: check: fail_on: not a severity\n"),
    "both": (("check", "--fix", "--diff"), "error: --fix and --diff exclude each other\n"),
    "env file": (("check", "--env-file", "none.env"), "error: no such file or directory\n       none.env\n"),
    "no rule": (("rules", "HC999"), "error: no rule 'HC999'\n"),
}


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD)
def test_bad_usage_is_exit_2(here: Path, arguments: tuple[str, ...], text: str) -> None:
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(text)


def test_rules_are_listed_and_explained() -> None:
    listed = run("rules")
    assert listed.code == 0
    assert all(rule in listed.out for rule in ("HC001", "HC040", "HC070"))
    one = run("rules", "hc002")
    assert "K slots admit K // S requests" in one.out
    ids = [rule["id"] for rule in run("rules", "--json").document["rules"]]
    assert ids == sorted(set(ids))


def test_narrow_and_piped_output_behaves(here: Path) -> None:
    (here / "a.sh").write_text(TRAP + OPEN)
    for columns in ("20", "80", "200"):
        ran = run("check", "a.sh", COLUMNS=columns)
        assert ran.code == 1
        assert "\x1b" not in ran.out
        assert "HC002" in ran.out
    shutil.rmtree(here / "none", ignore_errors=True)


def test_control_characters_of_a_file_do_not_reach_the_terminal(here: Path) -> None:
    (here / "a.sh").write_text(
        "sglang serve kimi-k3 --tp 8 --max-running-requests $N\x1b]0;x\x07 --max-mamba-cache-size 8\n"
    )
    ran = run("check", "a.sh", FORCE_COLOR="1")
    assert "\x07" not in ran.out
    assert "\x1b]" not in ran.out


def test_a_file_that_cannot_be_rewritten_leaves_the_others(here: Path) -> None:
    (here / "a.sh").write_bytes(b"# caf\xe9\n" + TRAP.encode())
    (here / "b.sh").write_text(TRAP)
    ran = run("check", ".", "--fix")
    assert ran.code == 1
    assert "error: a.sh: cannot be rewritten" in ran.err
    assert (here / "b.sh").read_text() == GOOD


def test_names_that_are_no_text_are_written_all_the_same(here: Path) -> None:
    name = b"a\xff.sh".decode("utf-8", "surrogateescape")
    (here / name).write_text(TRAP)
    for form in ("json", "sarif", "junit", "github", "markdown"):
        assert run("check", ".", "--format", form, "--output", "report").code == 1
    assert run("check", ".").code == 1
