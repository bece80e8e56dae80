"""A line means the same pasted behind ``plan --`` and written in a file that ``check`` reads: one shell reads both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests.find import read_file
from hybridcalc.shell import is_unresolved
from hybridcalc.shell.launch import Launch

RUN = "sglang serve kimi-k3 --tp"
TP8 = ("kimi-k3", "--tp", "8")
PYTHON = "python3 -m sglang.launch_server --model-path kimi-k3 --tp 8"
MODEL = ("--model-path", "kimi-k3", "--tp", "8")
IMAGE = "lmsysorg/sglang:v0.5.16"

LAUNCHES = {
    "plain": (f"{RUN} 8", TP8),
    "module": (PYTHON, MODEL),
    "options of the interpreter": ("python3 -u -X dev -m sglang.launch_server --tp 8", ("--tp", "8")),
    "vllm": ("vllm serve kimi-k3 -tp 8", ("kimi-k3", "-tp", "8")),
    "path": ("/opt/venv/bin/vllm serve kimi-k3", ("kimi-k3",)),
    "quotes": (f"{RUN} '8' --x \"a b\" --y a\\ b", (*TP8, "--x", "a b", "--y", "a b")),
    "quoted dollar": (f"{RUN} 8 --x '$TP' --y \\$TP", (*TP8, "--x", "$TP", "--y", "$TP")),
    "json": ("vllm serve m --x '{\"a\": [1, 2]}'", ("m", "--x", '{"a": [1, 2]}')),
    "continued lines": ("sglang serve \\\n  kimi-k3 \\\n  --tp 8", TP8),
    "continued lines of CRLF": ("sglang serve \\\r\n  kimi-k3 \\\r\n  --tp 8\r\n", TP8),
    "comment": (f"# a server\n{RUN} 8  # ranks", TP8),
    "prompt": (f"$ {RUN} 8", TP8),
    "redirections": (f"{RUN} 8 > log 2>&1 &", TP8),
    "pipe": (f"{RUN} 8 2>&1 | tee $LOG", TP8),
    "chain": (f"cd /x && ulimit -n 65536 && {RUN} 8; echo done", TP8),
    "alternative": (f"{RUN} 8 || exit 1", TP8),
    "exec": (f"exec {RUN} 8", TP8),
    "exec with a name": (f"exec -a server {RUN} 8", TP8),
    "wrappers": (f"nohup numactl -N 0 --membind=0 sudo -u me {RUN} 8", TP8),
    "batch": (f"srun -N 1 --gres=gpu:8 {RUN} 8", TP8),
    "variable": (f"TP=8; {RUN} $TP", TP8),
    "variables of variables": ('A=kimi; M=$A-k3; TP=8; sglang serve ${M} --tp "$TP"', TP8),
    "split variable": ('A="--tp 8"; sglang serve kimi-k3 $A', TP8),
    "quoted variable": ('A="--tp 8"; sglang serve kimi-k3 "$A"', ("kimi-k3", "--tp 8")),
    "default": (f"{RUN} ${{TP:-8}}", TP8),
    "default that is not needed": (f"TP=8; {RUN} ${{TP:-4}}", TP8),
    "alternative value": (f"X=1; {RUN} 8 ${{X:+--pp 2}} ${{Y:+--dp 2}}", (*TP8, "--pp", "2")),
    "arithmetic": (f"N=2; {RUN} $((N * 4))", TP8),
    "array": ('A=(--tp 8)\nsglang serve kimi-k3 "${A[@]}"', TP8),
    "array in pieces": ('A=(--tp 8 # ranks\n  --pp 2)\nA+=(--x)\nsglang serve kimi-k3 "${A[@]}"',
                        (*TP8, "--pp", "2", "--x")),
    "command in an array": ('C=(sglang serve kimi-k3 --tp 8); "${C[@]}"', TP8),
    "command in a variable": (f'C="{RUN} 8"; $C', TP8),
    "eval": (f'C="{RUN} 8"; eval "$C --x"', (*TP8, "--x")),
    "function": (f"run() {{\n  {RUN} $1\n}}\nrun 8", TP8),
    "function with its own variable": (f"TP=4; f() {{ local TP=8; {RUN} $TP; }}; f", TP8),
    "subshell": (f"TP=8; (TP=4); {RUN} $TP", TP8),
    "branch": (f"if [ -n x ]; then {RUN} 8; fi", TP8),
    "loop": (f"while true; do {RUN} 8; done", TP8),
    "shell": (f"bash -c 'cd /x && exec {RUN} 8'", TP8),
    "shell with arguments": ("bash -lc 'exec sglang serve \"$@\"' -- kimi-k3 --tp 8", TP8),
    "shell with a variable of this one": (f'TP=8; bash -c "{RUN} $TP"', TP8),
    "another host": (f"ssh host 'cd /x; {RUN} 8'", TP8),
    "terminal": (f'TP=8; tmux new -d -s k3 "{RUN} $TP 2>&1 | tee log"', TP8),
    "here-document": (f"TP=8\nbash <<EOF\n{RUN} $TP\nEOF\n", TP8),
    "here-document as it is": (f"ssh host <<'EOF'\n{RUN} 8\nEOF\n", TP8),
    "here-document that is only printed": (f"cat <<EOF\n{RUN} 4\nEOF\n{RUN} 8", TP8),
    "command substitution": (f"OUT=$({RUN} 8)", TP8),
    "container": (f"docker run --gpus all -p 1:1 {IMAGE} {PYTHON}", MODEL),
    "entrypoint": ("docker run --rm vllm/vllm-openai:latest --model kimi-k3", ("--model", "kimi-k3")),
    "container with a shell": (f"docker run {IMAGE} bash -c '{RUN} 8'", TP8),
    "container that runs": (f"docker exec -it k3 {PYTHON}", MODEL),
    "unresolved": (f"{RUN} $TP", ("kimi-k3", "--tp", "?$TP")),
    "unresolved command": (f"{RUN} $(nproc)", ("kimi-k3", "--tp", "?$(nproc)")),
    "unresolved arguments": ('sglang serve kimi-k3 "$@"', ("kimi-k3", "?$@")),
    "by a condition": (f"TP=8; if x; then TP=4; fi; {RUN} $TP", ("kimi-k3", "--tp", "?$TP")),
    "by a loop": (f"for TP in 8; do {RUN} $TP; done", ("kimi-k3", "--tp", "?$TP")),
    "pattern": (f"TP=a8; {RUN} ${{TP#@(a)}}", ("kimi-k3", "--tp", "?${TP#@(a)}")),
    "before it is set": (f"TP=8 {RUN} $TP", ("kimi-k3", "--tp", "?$TP")),
}  # fmt: skip

VARIABLES = {
    "for one command": (f"A=1 B='2 3' {RUN} 8", {"A": "1", "B": "2 3"}),
    "env": (f"A=1 env -u A B=2 {RUN} 8", {"B": "2"}),
    "env -i": (f"export A=1; env -i B=2 {RUN} 8", {"B": "2"}),
    "export": (f"export A=1 B=2; C=3; {RUN} 8", {"A": "1", "B": "2"}),
    "export later": (f"A=1; export A; {RUN} 8", {"A": "1"}),
    "unset": (f"export A=1 B=2; unset A; {RUN} 8", {"B": "2"}),
    "container": (f"docker run -e A=1 --env B=2 --env=C=3 {IMAGE} {PYTHON}", {"A": "1", "B": "2", "C": "3"}),
    "container with a shell": (f"docker run -e A=1 {IMAGE} bash -c 'B=2 {RUN} 8'", {"A": "1", "B": "2"}),
    "shell": (f"A=1 bash -c '{RUN} 8'", {"A": "1"}),
    "unresolved": (f"A=$B {RUN} 8", {"A": "?"}),
}

NOTHING = {
    "echo": f"echo {RUN} 8", "install": "pip install sglang", "kill": "pkill -f sglang.launch_server",
    "comment": f"# {RUN} 8", "quoted": f"echo '{RUN} 8' | tee notes", "printed": f"cat <<EOF\n{RUN} 8\nEOF",
    "benchmark": "python3 -m sglang.bench_serving --model kimi-k3", "exported names": "export A=1 sglang serve",
    "other program": "python3 serve.py --tp 8", "variables": "A=1; export B=2", "command": "sglang generate kimi-k3",
}  # fmt: skip


def in_file(tmp_path: Path, line: str) -> list[Launch]:
    """The launches that ``check`` reads from a script of these lines."""
    path = tmp_path / "a.sh"
    path.write_bytes(line.encode())
    contents = read_file(str(path), {})
    assert contents.troubles == ()
    return [deployment.launch for deployment in contents.deployments]


def described(launch: Any) -> tuple[object, ...]:
    """Everything but the places."""
    return (launch.engine, launch.program, launch.image, launch.model, shown(launch.words), launch.variables)


def shown(words: Any) -> tuple[str, ...]:
    return tuple(f"?{word}" if is_unresolved(word) else str(word) for word in words)


@pytest.mark.parametrize(("line", "words"), LAUNCHES.values(), ids=LAUNCHES)
def test_a_launch_has_the_same_words_pasted_and_in_a_file(tmp_path: Path, line: str, words: Any) -> None:
    pasted, (held,) = ENGINES.launch(line), in_file(tmp_path, line)
    assert described(pasted) == described(held)
    assert shown(pasted.words) == words


@pytest.mark.parametrize(("line", "variables"), VARIABLES.values(), ids=VARIABLES)
def test_a_launch_has_the_same_environment_in_both(tmp_path: Path, line: str, variables: dict[str, str]) -> None:
    pasted, (held,) = ENGINES.launch(line), in_file(tmp_path, line)
    assert described(pasted) == described(held)
    assert {name: "?" if is_unresolved(value) else value for name, value in pasted.variables.items()} == variables


@pytest.mark.parametrize("line", NOTHING.values(), ids=NOTHING)
def test_what_starts_nothing_in_a_file_starts_nothing_pasted(tmp_path: Path, line: str) -> None:
    with pytest.raises(InputError, match=r"starts no engine known here|there is no launch command"):
        ENGINES.launch(line)
    assert in_file(tmp_path, line) == []


@pytest.mark.parametrize("line", ["docker run -v /data:/m lmsysorg/sglang:v0.5.16 sglang serve --model-path /m/k3"])
def test_an_image_and_what_is_mounted_are_known_to_both(tmp_path: Path, line: str) -> None:
    pasted, (held,) = ENGINES.launch(line), in_file(tmp_path, line)
    assert (pasted.image, pasted.model) == (held.image, held.model) == (IMAGE, "/data/k3")


def test_a_quote_that_is_never_closed_is_the_same_mistake(tmp_path: Path) -> None:
    line = f"echo x\n{RUN} '8"
    with pytest.raises(InputError, match=r"(?m)^no closing ' for \"'8\"$"):
        ENGINES.launch(line)
    (tmp_path / "a.sh").write_text(line)
    (trouble,) = read_file(str(tmp_path / "a.sh"), {}).troubles
    assert (trouble.line, trouble.message) == (2, "no closing ' for \"'8\"")


def test_blanks_behind_a_backslash_end_a_line_in_both(tmp_path: Path) -> None:
    line = "sglang serve kimi-k3 \\  \n  --tp 8"
    with pytest.raises(InputError, match=r"'--tp' starts a command of its own"):
        ENGINES.launch(line)
    (held,) = in_file(tmp_path, line)
    assert (shown(held.words), held.orphan) == (("kimi-k3",), "--tp")


def test_words_that_a_shell_has_split_already_are_the_same_launch() -> None:
    for line in (f"A=1 numactl -N 0 {PYTHON}", f"docker run -e A=1 {IMAGE} {PYTHON}", f"env -u B A=1 {RUN} 8"):
        assert described(ENGINES.launch(line.split())) == described(ENGINES.launch(line))
    inner = ENGINES.launch(["bash", "-c", f"TP=8; {RUN} $TP"])
    assert inner.words == TP8
