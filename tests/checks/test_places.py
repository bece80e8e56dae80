"""Where findings stand, what a fix changes of a file, and what a baseline knows again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from present import present

from hybridcalc.checks import IN_BASELINE, QUOTED_AROUND, Edit, Line, Located, Open, order, relative
from hybridcalc.checks.baseline import baseline_text, fingerprint, mark_known, read_baseline
from hybridcalc.checks.fix import edits_by_file, mended
from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings
from hybridcalc.checks.words import image_place, value_edit
from hybridcalc.errors import InputError
from hybridcalc.findings import Finding
from hybridcalc.manifests.find import read_file
from hybridcalc.shell import Source


def edit(begin: int, before: str, text: str, path: str = "a.sh") -> Edit:
    """An edit of one line of a file."""
    end = begin + len(before)
    return Edit(path, begin, end, 1, begin + 1, 1, end + 1, before, text)


def located(rule: str = "HC002", path: str = "a.sh", line: int = 1, column: int = 1, **fields: object) -> Located:
    """A finding at a place."""
    finding = Finding(rule, str(fields.pop("severity", "error")), str(fields.pop("message", "so it is")), "")
    return Located(finding, path, line, column, column + 1, str(fields.pop("deployment", "one")), **fields)  # type: ignore[arg-type]


def checked_file(tmp_path: Path, text: str, name: str = "run.sh") -> tuple[Located, ...]:
    """The findings of the only deployment of a file."""
    (tmp_path / name).write_text(text)
    (one,) = present(check_file(str(tmp_path / name), Settings(), {})).checked
    return one.findings


def test_edits_that_overlap_keep_the_first_and_those_that_touch_stay_both() -> None:
    """By where they begin; the same edit twice is one; of another file, of what is set aside or piped none."""
    first, inside, behind = edit(4, "abc", "x"), edit(6, "cd", "y"), edit(7, "de", "z")
    found = [located(edit=behind), located(edit=inside), located(edit=first), located("HC003", edit=first)]
    assert edits_by_file(found) == {"a.sh": [first, behind]}
    others = [
        located(edit=edit(0, "a", "b", "b.sh")),
        located(edit=edit(0, "a", "b", "<stdin>")),
        located(edit=edit(0, "a", "b"), suppressed="known"),
        located(),
    ]
    assert edits_by_file(others) == {"b.sh": [edit(0, "a", "b", "b.sh")]}


def test_each_fix_of_a_file_is_judged_where_those_before_it_leave_it(tmp_path: Path) -> None:
    """Two digits for one each, so that what follows begins a character later a fix; of the last line no fix holds."""
    line = "sglang serve Qwen/Qwen3.6-27B --tp 8 --max-mamba-cache-size 8 --max-running-requests 4\n"
    (tmp_path / "a.sh").write_text(
        3 * line + "docker run vllm/vllm-openai:v0.24.0 Qwen/Qwen3.6-27B --max-num-seqs 900\n"
    )
    found = present(check_file(str(tmp_path / "a.sh"), Settings(gpu="h100", length=8192), {})).checked
    edits = edits_by_file([item for one in found for item in one.findings])[str(tmp_path / "a.sh")]
    first = line.index("8 --max-r")
    assert [(each.begin, each.text) for each in edits] == [(first + at * len(line), "21") for at in range(3)]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_edits_change_their_own_characters_and_nothing_else(tmp_path: Path, mark: str) -> None:
    """A byte order mark counts in no place."""
    path = tmp_path / "a.sh"
    path.write_text(f"{mark}--a 10 --b 200 --c\r\n", encoding="utf-8", newline="")
    before, after = mended(str(path), [edit(4, "10", "7"), edit(11, "200", "2000")])
    assert (before, after) == (f"{mark}--a 10 --b 200 --c\r\n", f"{mark}--a 7 --b 2000 --c\r\n")
    with pytest.raises(InputError, match="changed while it was checked"):
        mended(str(path), [edit(4, "11", "7")])


@pytest.mark.parametrize(
    ("text", "begin", "end", "span"),
    [
        ("--k 8", 4, 5, (4, 5)),
        ("--k '8'", 4, 7, (5, 6)),
        ('--k "8"', 4, 7, (5, 6)),
        ("--k (8)", 4, 7, None),
        ("--k 18", 4, 6, None),
        ("--k $8", 4, 6, None),
        ("--k 8 ", 4, 6, None),
    ],
)
def test_an_edit_replaces_a_value_in_its_quotes_and_no_other_text(
    text: str, begin: int, end: int, span: tuple[int, int] | None
) -> None:
    source = Source("a.sh", f"first\n{text}\n")
    made = value_edit(source.place(begin + 6, end + 6), source, "8", "21")
    if span is None:
        assert made is None
    else:
        first, last = span[0] + 6, span[1] + 6
        assert made == Edit("a.sh", first, last, 2, span[0] + 1, 2, span[1] + 1, "8", "21", True)
    assert value_edit(Source("b.sh", text).place(begin, end), source, "8", "21") is None


K3 = "sglang serve kimi-k3 --tp 8 "


@pytest.mark.parametrize(
    ("text", "line", "column", "end", "quotes", "fixed"),
    [
        ("--max-running-requests 4 --max-mamba-cache-size 8", 1, 77, 78, [1], True),
        ("--max-running-requests 4 --max-mamba-cache-size=8", 1, 77, 78, [1], True),
        ("--max-running-requests 4 '--max-mamba-cache-size=8'", 1, 78, 79, [1], True),
        ('--max-running-requests 4 --max-mamba-cache-size "8"', 1, 78, 79, [1], True),
        ("--max-running-requests 4 \\\n  --max-mamba-cache-size 8", 2, 26, 27, [2], True),
        ("--max-running-requests 4 --max-mamba-cache-size \\\n  8", 2, 3, 4, [1, 2], True),
        ("--max-running-requests 4 --max-mamba-cache-size \\\n  8 --page-size 1", 2, 3, 4, [2], True),
    ],
)
def test_a_finding_stands_at_the_value_it_is_about(
    tmp_path: Path, text: str, line: int, column: int, end: int, quotes: list[int], fixed: bool
) -> None:
    """HC002 is about the slots: behind a blank or an equals sign, in quotes, on a line of its own with the flag's."""
    (found,) = checked_file(tmp_path, K3 + text + "\n")
    assert (found.finding.rule, found.line, found.column, found.end_column) == ("HC002", line, column, end)
    assert [quote.number for quote in found.quote] == quotes
    assert found.start == 1
    made = present(found.edit)
    source = K3 + text
    assert (source[made.begin : made.end], made.text) == ("8", "21")


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("K=8\n{launch} --max-mamba-cache-size $K", True),
        ("K=8\n{launch} --max-mamba-cache-size $K\necho $K", False),
        ("K=8\n{launch} --max-mamba-cache-size $K\n{launch} --max-mamba-cache-size $K", False),
        ("{launch} --max-mamba-cache-size 8\n{launch} --max-mamba-cache-size 8", True),
    ],
)
def test_a_value_that_others_take_is_left_alone(tmp_path: Path, text: str, fixed: bool) -> None:
    """A variable that is used once is mended where it is set."""
    path = tmp_path / "run.sh"
    path.write_text(text.replace("{launch}", K3 + "--max-running-requests 4") + "\n")
    found = [item for one in present(check_file(str(path), Settings(), {})).checked for item in one.findings]
    assert {item.edit is not None for item in found} == {fixed}


@pytest.mark.parametrize("nearest", ["above", "below"])
def test_the_image_of_a_launch_is_the_nearest_of_its_text(tmp_path: Path, nearest: str) -> None:
    """Whole where the file has it in one piece, else its tag."""
    image = "lmsysorg/sglang:v0.5.16"
    pod = "    - image: {image}\n      command: [sglang, serve, kimi-k3]\n"
    spare = "#\n" * 50 + f"# {image}\n" * 3 + "#\n" * 50
    text = "kind: Pod\nspec:\n  containers:\n" + pod.format(image=image)
    text = spare + text if nearest == "above" else text + spare
    path = tmp_path / "pod.yaml"
    path.write_text(text)
    (deployment,) = read_file(str(path), {}).deployments
    place = present(image_place(deployment))
    assert text[place.begin : place.end] == image
    assert text.splitlines()[place.line - 1].strip() == f"- image: {image}"


@pytest.mark.parametrize(("image", "piece"), [("vllm/vllm-openai:${{TAG:-{tag}}}", "v0.11.0"), ("${{I:-vllm}}", None)])
def test_the_image_of_a_launch_is_its_tag_where_it_is_not_in_one_piece(
    tmp_path: Path, image: str, piece: str | None
) -> None:
    path = tmp_path / "compose.yaml"
    text = f"services:\n  a:\n    image: {image.format(tag=piece)}\n    command: vllm serve kimi-k3\n"
    path.write_text(text)
    (deployment,) = read_file(str(path), {}).deployments
    place = image_place(deployment)
    assert place is not None
    assert text[place.begin : place.end] == (piece or deployment.image)


def test_a_quoted_line_is_cut_around_its_column() -> None:
    """500 characters on either side, and how many are left out before."""
    assert QUOTED_AROUND == 500
    text = "".join(chr(48 + at % 75) for at in range(3000))
    assert Line.around(1, 7, text) == Line(7, text[:500], 0)
    assert Line.around(501, 7, text) == Line(7, text[:1000], 0)
    assert Line.around(502, 7, text) == Line(7, text[1:1001], 1)
    assert Line.around(2990, 7, text) == Line(7, text[2489:], 2489)


def test_findings_are_sorted_by_place_and_the_worst_first() -> None:
    found = [
        located(line=2),
        located(column=3, severity="note"),
        located(column=3, severity="error"),
        located(column=3, severity="warning"),
        located(column=2, severity="note"),
        located(path="A.sh", line=9),
    ]
    ranked = [(item.path, item.line, item.column, item.finding.severity) for item in sorted(found, key=order)]
    assert ranked == [
        ("A.sh", 9, 1, "error"),
        ("a.sh", 1, 2, "note"),
        ("a.sh", 1, 3, "error"),
        ("a.sh", 1, 3, "warning"),
        ("a.sh", 1, 3, "note"),
        ("a.sh", 2, 1, "error"),
    ]


def test_a_fingerprint_is_rule_file_deployment_and_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the line, the column or how bad it is; a path is the same however it is written."""
    monkeypatch.chdir(tmp_path)
    same = [located(), located(line=9, column=4), located(severity="note"), located(path="./x/../a.sh")]
    same.append(located(path=str(tmp_path / "a.sh")))
    assert len({fingerprint(item) for item in same}) == 1
    others = [located("HC003"), located(path="b.sh"), located(deployment="two"), located(message="or so")]
    assert len({fingerprint(item) for item in (*same, *others)}) == 1 + len(others)


def test_a_baseline_knows_a_finding_as_often_as_it_holds_it(tmp_path: Path) -> None:
    """The third of a kind that was there twice is new, and what a comment set aside is not counted."""
    path = tmp_path / "baseline.json"
    path.write_text(baseline_text([located(), located(line=2), located(line=3, suppressed="a reason")]))
    known = read_baseline(str(path))
    assert known == Counter({fingerprint(located()): 2})
    aside = located(suppressed="a reason")
    marked = mark_known([aside, located(), located(line=5), located(line=6), located("HC003")], known)
    assert [item.suppressed for item in marked] == ["a reason", IN_BASELINE, IN_BASELINE, None, None]
    assert known == Counter({fingerprint(located()): 2})


def test_a_path_is_as_its_repository_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    assert relative(str(tmp_path / "in" / "a.sh")) == "a.sh"
    assert relative(str(tmp_path / "a.sh")) == str(tmp_path / "a.sh")
    assert relative("./x/../a.sh") == "a.sh"
    assert relative("<stdin>") == "<stdin>"


@pytest.mark.parametrize(
    ("flag", "effect"),
    [("expect", " cannot be judged"), ("--tp-size", " decides --tp-size"), ("", " may hold any flag")],
)
def test_what_is_open_says_what_it_does(flag: str, effect: str) -> None:
    assert Open("$N", flag, "why", "fix", "a.sh", 1, 1).effect == effect


@pytest.mark.parametrize(("replicas", "rules"), [("0", []), ("1", ["HC073"]), ("2", ["HC073"])])
def test_gpus_of_a_deployment_that_runs_no_copy_do_not_idle(tmp_path: Path, replicas: str, rules: list[str]) -> None:
    text = (
        f"kind: Deployment\nspec:\n  replicas: {replicas}\n  template:\n    spec:\n      containers:\n"
        "        - command: [sglang, serve, kimi-k3, --tp, '4']\n"
        "          resources: {limits: {nvidia.com/gpu: 8}}\n"
    )
    assert [item.finding.rule for item in checked_file(tmp_path, text, "deploy.yaml")] == rules


@pytest.mark.parametrize(
    ("flags", "gpus", "nodes", "rule", "message"),
    [
        ("--tp, '8'", 8, "", "", ""),
        ("--tp, '8'", 7, "", "HC070", "8 ranks, and 7 GPUs to run them on"),
        ("--tp, '4'", 5, "", "HC073", "4 ranks on 5 GPUs: the others idle"),
        ("--tp, '16'", 8, ", --nnodes, '2'", "", ""),
        ("--tp, '16'", 7, ", --nnodes, '2'", "HC070", "16 ranks, and 2 x 7 GPUs to run them on"),
        ("--tp, '1'", 1, ", --nnodes, '2'", "HC073", "1 rank on 2 x 1 GPU: the others idle"),
        ("--tp, '4'", 8, ", --data-parallel-size-local, '1'", "", ""),
        ("--tp, '4'", 0, "", "HC070", "4 ranks, and 0 GPUs to run them on"),
    ],
)
def test_ranks_are_held_against_the_gpus_of_all_nodes(
    tmp_path: Path, flags: str, gpus: int, nodes: str, rule: str, message: str
) -> None:
    text = (
        "kind: Pod\nspec:\n  containers:\n"
        f"    - command: [sglang, serve, qwen3.5-9b, {flags}{nodes}]\n"
        f"      resources: {{limits: {{nvidia.com/gpu: {gpus}}}}}\n"
    )
    found = [
        item.finding for item in checked_file(tmp_path, text, "pod.yaml") if item.finding.rule in ("HC070", "HC073")
    ]
    assert [(item.rule, item.message) for item in found] == ([(rule, message)] if rule else [])


@pytest.mark.parametrize(
    ("before", "flags", "place"),
    [
        ("", "--spec-draft-n-max 3 --spec-type draft-mtp", (2, 36)),
        ("LLAMA_ARG_SPEC_TYPE=draft-mtp ", "--spec-draft-n-max 3", (2, 22)),
    ],
)
def test_a_finding_stands_at_the_first_of_its_flags_that_is_there(
    tmp_path: Path, before: str, flags: str, place: tuple[int, int]
) -> None:
    """Drafts of llama.cpp: at their kind, or at their number where a variable says the kind."""
    text = f"{before}llama-server -m Qwen3.5-27B-Q4_K_M.gguf -c 8192 \\\n  {flags}\n"
    [found] = [item for item in checked_file(tmp_path, text) if item.finding.rule == "HC211"]
    assert (found.line, found.column) == place
