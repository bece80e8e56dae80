"""What a file may grow to: aliases, variables, merges and functions end at a bound, whatever they are made of."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from present import present

import hybridcalc.shell as bounds
from hybridcalc.errors import InputError
from hybridcalc.manifests import Trouble
from hybridcalc.manifests.find import find_files, read_file
from hybridcalc.manifests.yamltree import documents
from hybridcalc.shell import Source, Text

LAUNCH = "sglang serve kimi-k3 --tp 8\n"
POD = "kind: Pod\nspec:\n  containers:\n"


def laughs(levels: int) -> str:
    """Variables of which each holds the one before ten times."""
    first = '    - {name: A0, value: "aaaaaaaaaaaaaaaaaaaa"}\n'
    rest = "".join(f'    - {{name: A{n}, value: "{f"$(A{n - 1})" * 10}"}}\n' for n in range(1, levels))
    return f"{POD}  - command: [sglang, serve, kimi-k3, --tp, $(A{levels - 1})]\n    env:\n{first}{rest}"


LIST = "x: &e\n" + "- --tp\n" * 1_250
ENTRIES = "x: &e\n" + "- {name: A, value: b}\n" * 625
KEYS = "x: &m\n" + "".join(f"  k{n}: v\n" for n in range(1_250))
BOMBS = {
    "laughs.yaml": laughs(12),
    "braces.yaml": "a: sglang\nb: [\n" + "{" * 100_000 + "\n",
    "lines.yaml": "a: sglang\nb: [\n" + "{{\n" * 50_000,
    "args.yaml": LIST + POD + "  - {command: [sglang, serve, kimi-k3], args: *e}\n" * 100,
    "env.yaml": ENTRIES + POD + "  - {command: [sglang, serve, kimi-k3], env: *e}\n" * 100,
    "merge.yaml": KEYS + POD + "  - {<<: *m, command: [sglang, serve, kimi-k3]}\n" * 100,
    "merges.yaml": "kind: Pod\n" + "<<: {}\n" * 5_000 + "spec: {command: [sglang, serve, kimi-k3]}\n",
    "split.sh": f'A="{"a " * 4_000}"\n' + "sglang serve kimi-k3 $A\n" * 250,
    "copies.sh": f"A={'a' * 8_000}\n" + "".join(f"B{n}=$A\n" for n in range(2_500)) + LAUNCH,
    "calls.sh": "f0() { :; }\n" + "".join(f"f{n}() {{ f{n - 1}; f{n - 1}; f{n - 1}; }}\n" for n in range(1, 18))
    + "f17\n" + LAUNCH,
    "functions.sh": "f() {\n" * 7_500 + LAUNCH,
    "brackets.sh": "( " * 15_000 + LAUNCH,
    "launches.sh": "".join(f"a{n}=1\n" for n in range(2_000)) + "vllm serve x\n" * 2_250,
    "added.sh": f"A=({'x ' * 5_000})\n" + "A+=(y)\n" * 5_000 + LAUNCH,
    "texts.sh": "f() { eval 'vllm serve x $A'; X=$(vllm serve x $A); }\n" + "f\n" * 15_000,
    "branches.sh": "if x; then A=\"$A --pp $Z\"; " * 1_750 + "fi; " * 1_750 + LAUNCH,
    "filled.yaml": f"defaults: {{a: {'a' * 25_000}}}\n{POD}" + f"  - command: [vllm, serve, {'{a}' * 20}]\n" * 2_000,
    "volumes.yaml": "x: &e\n" + "- /a:/b\n" * 1_250 + "services:\n"
    + "".join(f"  s{n}: {{command: [sglang, serve, kimi-k3], volumes: *e}}\n" for n in range(100)),
    "Dockerfile": "FROM x\nENV A0=aaaaaaaaaa\n" + "".join(f"ENV A{n}={f'$A{n - 1}' * 10}\n" for n in range(1, 12))
    + "CMD " + LAUNCH,
    "word.service": "[Service]\nEnvironment=" + "a" * 100_000 + "\nExecStart=" + LAUNCH,
    "word.yaml": POD + "  - command: [x, " + "sglang" * 25_000 + "]\n",
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_what_grows_ends_and_says_so_or_is_read(
    tmp_path: Path, name: str, steps: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one took half a minute or more, or hundreds of megabytes, when each of them was followed to its end. Here
    a file may grow to a sixteenth of what it may otherwise.
    """
    for bound in ("MOST_WORDS", "MOST_CHARACTERS", "MOST_VISITS", "MOST_SCRIPTS"):
        monkeypatch.setattr(bounds, bound, getattr(bounds, bound) // 16)
    (tmp_path / name).write_text(BOMBS[name])
    contents = None

    def read() -> None:
        nonlocal contents
        contents = read_file(str(tmp_path / name), {})

    assert steps(read) < 60 * len(BOMBS[name]) + 800_000
    assert present(contents).deployments or present(contents).troubles or name in ("word.yaml", "braces.yaml")
    for trouble in present(contents).troubles:
        assert any(said in trouble.message for said in ("more than", "no YAML", "deeper than"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2**20  # KiB: a gigabyte


def test_values_that_grow_are_unknown(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(laughs(6))
    (deployment,) = read_file(str(tmp_path / "a.yaml"), {}).deployments
    assert deployment.words[-1].why == "its value grows too long"


def test_an_honest_file_of_many_containers_is_read(tmp_path: Path) -> None:
    container = "  - {command: [sglang, serve, kimi-k3, --tp, '8'], env: [{name: A, value: b}]}\n"
    (tmp_path / "a.yaml").write_text(POD + container * 1_000)
    assert len(read_file(str(tmp_path / "a.yaml"), {}).deployments) == 1_000


def test_a_merged_key_is_found_in_as_many_steps_whatever_the_number_of_keys(steps: Callable[..., Any]) -> None:
    def taken(count: int) -> int:
        text = "m: &m\n" + "".join(f"  k{n}: v\n" for n in range(count)) + "a: {<<: *m}\n"
        document: Any = documents(Source("x.yaml", text))[0]
        assert document.mapping("a").string("k0") == "v"
        assert document.mapping("a").get("none") is None
        calls: int = steps(lambda: (document.mapping("a").string("k9"), document.mapping("a").get("no")))
        return calls

    assert taken(2_000) <= taken(20)


def test_a_pipe_without_an_extension_is_passed_over(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "a.sh").write_text(LAUNCH)
    assert [os.path.basename(str(path)) for path in find_files([str(tmp_path)])] == ["a.sh"]


@pytest.mark.parametrize("lines", ["[z-a]\n", "!\n", "\\\n", "/\n", "*a*a*a*a*a*a*a*a*a*a*a*a*b\n", "\xff[\n"])
def test_lines_of_a_gitignore_that_mean_nothing_leave_the_others(tmp_path: Path, lines: str) -> None:
    (tmp_path / ".gitignore").write_text(lines + "b.sh\n")
    (tmp_path / ("a" * 200 + ".sh")).write_text(LAUNCH)
    (tmp_path / "b.sh").write_text(LAUNCH)
    assert [os.path.basename(str(path))[:3] for path in find_files([str(tmp_path)])] == ["aaa"]


def test_an_empty_path_is_trouble_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(LAUNCH)
    trouble, found = find_files(["", str(tmp_path / "a.sh")])
    assert isinstance(trouble, Trouble)
    assert str(found).endswith("a.sh")


def test_a_file_counts_once_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text(LAUNCH)
    (tmp_path / "b.sh").symlink_to("a.sh")
    os.link(tmp_path / "a.sh", tmp_path / "c.sh")
    assert len(list(find_files([str(tmp_path), f"{tmp_path}/./a.sh"]))) == 1


def test_json_manifests_are_found_in_folders_and_read_as_json(tmp_path: Path) -> None:
    """Halves of characters in escapes and tabs between values are JSON, and no YAML."""
    pod = (
        '{"apiVersion": "v1",\n\t"kind": "Pod", "metadata": {"name": "\\ud83d\\ude00 a \\\\ud83d"},\n\t"spec": '
        '{"containers": [{"command": ["sglang", "serve", "kimi-k3", "--tp", "\\u0038"]}]}}'
    )
    (tmp_path / "pod.json").write_text(pod)
    (tmp_path / "other.json").write_text('{"sglang": true}')
    (path,) = find_files([str(tmp_path)])
    (deployment,) = read_file(str(path), {}).deployments
    assert (deployment.name, deployment.words[-1]) == ("\U0001f600 a \\ud83d", "8")
    place = deployment.words[-2].place
    assert pod[place.begin : place.end] == "--tp"


@pytest.mark.parametrize("name", ["a.sh", "Dockerfile", "a.yaml", "a.service"])
def test_marks_and_carriage_returns_are_no_part_of_a_value(tmp_path: Path, name: str) -> None:
    """A byte order mark, and CRLF at the end of a line or of the file."""
    text = {
        "Dockerfile": f"FROM x\nCMD {LAUNCH}",
        "a.service": f"[Service]\nExecStart={LAUNCH}",
        "a.yaml": f'{POD}  - command: ["sh", "-c", "{LAUNCH.strip()}\\r"]\n',
    }.get(name, LAUNCH)
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    (deployment,) = read_file(str(tmp_path / name), {}).deployments
    assert deployment.words == ("kimi-k3", "--tp", "8")


def test_a_mark_before_a_file_of_variables_hides_none(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfTP=8\r\n")
    (tmp_path / "compose.yaml").write_text("services: {a: {command: 'sglang serve kimi-k3 --tp ${TP}'}}\n")
    (deployment,) = read_file(str(tmp_path / "compose.yaml"), {}).deployments
    assert deployment.words == ("kimi-k3", "--tp", "8")


def test_places_are_those_of_the_value(tmp_path: Path) -> None:
    """Quotes inside quotes, tags, anchors, and quoted texts over lines."""
    text = "a: 'it''s b8'\nb: !!int 8\nc: &x 8\nd: \"a\\tb\n  c \\\n  d\n\n  e8\"\ne: 'f ''g\n  h8'\nf: !!str &y '8'\n"
    document: Any = documents(Source("x.yaml", text))[0]
    for key in "abcdef":
        chars = document.scalar(key).text()
        assert text[chars.at(chars.text.index("8"))] == "8", key
    for key in "bc":
        assert text[document.scalar(key).word().place.begin] == "8"


def test_a_script_that_runs_out_names_its_bound() -> None:
    source = Source("x.sh", "A=(x x x)\n" + 'A=("${A[@]}" "${A[@]}" "${A[@]}")\n' * 60)
    from hybridcalc.manifests.scripts import run_script

    with pytest.raises(InputError, match="words and arrays come to more than 200,000 words"):
        run_script(Text(source, source.text), {}, {})


def test_what_a_file_may_come_to_grows_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that all stand in the file are no growth, however many; what an alias copies is."""
    monkeypatch.setattr(bounds, "MOST_WORDS", 500)
    path = tmp_path / "compose.yaml"
    row = "  s{}:\n    image: vllm/vllm-openai:v0.20.0\n    command: --model org/name -tp 4\n"
    path.write_text("services:\n" + "".join(map(row.format, range(400))))
    assert len(read_file(str(path), {}).deployments) == 400
    words = " ".join(["x"] * 100)
    path.write_text(
        f"services:\n  s:\n    image: vllm/vllm-openai\n    command: &all {words}\n"
        + "".join(f"  s{n}: {{image: vllm/vllm-openai, command: *all}}\n" for n in range(50))
    )
    (trouble,) = read_file(str(path), {}).troubles
    assert "come to more than" in trouble.message
