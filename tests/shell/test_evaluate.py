"""Shell scripts: read as bash would, never run, never guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcalc.errors import InputError
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Source, Text
from hybridcalc.shell.conditions import calculate
from hybridcalc.shell.launch import Launch


def read(script: str, *, arguments: Sequence[Any] = (), **outside: str) -> list[Launch]:
    source = Source("x.sh", script)
    return run_script(Text(source, script), {}, outside, arguments).launches


def words(script: str, **outside: str) -> list[Any]:
    """The words of the only launch; unknown ones as (text, why)."""
    (launch,) = read(script, **outside)
    return [(str(w), w.why) if w.why else str(w) for w in launch.words]


SCRIPTS = {
    "assignment": ("TP=8\nsglang serve kimi-k3 --tp $TP", ["kimi-k3", "--tp", "8"]),
    "default": ("sglang serve kimi-k3 --tp ${TP:-4}", ["kimi-k3", "--tp", "4"]),
    "nested default": ("sglang serve ${M:-${N:-kimi-k3}}", ["kimi-k3"]),
    "default of a set variable": ("TP=2; sglang serve kimi-k3 --tp ${TP:-4}", ["kimi-k3", "--tp", "2"]),
    "alternative": ("T=1; sglang serve kimi-k3 ${T:+--tp 2} ${U:+--pp 2}", ["kimi-k3", "--tp", "2"]),
    "self default": ("TP=${TP:-8}; sglang serve kimi-k3 --tp $TP", ["kimi-k3", "--tp", "8"]),
    "default by a colon": (': "${N:=8}"\nsglang serve kimi-k3 --tp $N', ["kimi-k3", "--tp", "8"]),
    "no default by a colon": ("N=2; : ${N:=8}\nsglang serve kimi-k3 --tp $N", ["kimi-k3", "--tp", "2"]),
    "quoted text is one word": ('A="--tp 8"; sglang serve kimi-k3 "$A"', ["kimi-k3", "--tp 8"]),
    "unquoted text is split": ('A="--tp 8"; sglang serve kimi-k3 $A', ["kimi-k3", "--tp", "8"]),
    "array": ('A=(--tp 8 # ranks\n --pp 2)\nsglang serve kimi-k3 "${A[@]}"', ["kimi-k3", "--tp", "8", "--pp", "2"]),
    "array appended": (
        'A=(--tp 8); A+=(--pp 2)\nsglang serve kimi-k3 "${A[@]}"',
        ["kimi-k3", "--tp", "8", "--pp", "2"],
    ),
    "array or nothing": ('A=()\nsglang serve kimi-k3 ${A[@]+"${A[@]}"} --tp 2', ["kimi-k3", "--tp", "2"]),
    "text appended": ('A="--tp 8"; A+=" --pp 2"; sglang serve kimi-k3 $A', ["kimi-k3", "--tp", "8", "--pp", "2"]),
    "arithmetic": ("N=2; sglang serve kimi-k3 --tp $((N * 8))", ["kimi-k3", "--tp", "16"]),
    "octal": ("N=010; sglang serve kimi-k3 --tp $((010)) --pp $((N + 1))", ["kimi-k3", "--tp", "8", "--pp", "9"]),
    "no octal": ("sglang serve kimi-k3 --tp $((08))", ["kimi-k3", "--tp", ("$((08))", "arithmetic decides it")]),
    "too large a shift": (
        "sglang serve kimi-k3 --tp $((1 << 63))",
        ["kimi-k3", "--tp", ("$((1 << 63))", "arithmetic decides it")],
    ),
    "sign of a power": ("sglang serve kimi-k3 --tp $((-2 ** 2))", ["kimi-k3", "--tp", "4"]),
    "octal in a test": (
        "N=4; if [[ 010 -gt 9 ]]; then N=8; fi; sglang serve kimi-k3 --tp $N",
        ["kimi-k3", "--tp", ("$N", "a condition sets it (line 1)")],
    ),
    "arithmetic as it was": (
        'N=2; sglang serve kimi-k3 --tp $[N+6] --pp "$[1+2]"',
        ["kimi-k3", "--tp", "8", "--pp", "3"],
    ),
    "quotes behind a dollar": ("sglang serve $'kimi-k3' --tp $\"5\"", ["kimi-k3", "--tp", "5"]),
    "escapes behind a dollar": (r"sglang serve $'it\'s\x41\101\t' --tp 5", ["it's" + "AA\t", "--tp", "5"]),
    "single quotes": ("sglang serve kimi-k3 --x '$TP'", ["kimi-k3", "--x", "$TP"]),
    "continuations": ("sglang serve \\\n  kimi-k3 \\\n  --tp 8 # end", ["kimi-k3", "--tp", "8"]),
    "carriage returns": ("sglang serve \\\r\n  kimi-k3 \\\r\n  --tp 8\r\n", ["kimi-k3", "--tp", "8"]),
    "bash -c": ("bash -c 'cd /x && exec sglang serve kimi-k3 --tp 8'", ["kimi-k3", "--tp", "8"]),
    "bash -lc with positional": ("bash -lc 'exec sglang serve \"$@\"' -- kimi-k3 --tp 8", ["kimi-k3", "--tp", "8"]),
    "wrappers": ("env A=1 numactl -N 0 nohup sglang serve kimi-k3 --tp 8 &", ["kimi-k3", "--tp", "8"]),
    "interpreter of an environment": ("V=/opt/v; $V/bin/python3.12 -u -m sglang.launch_server --tp 8", ["--tp", "8"]),
    "interpreter somewhere": ('"$V/bin/python" -m sglang.launch_server --tp 8', ["--tp", "8"]),
    "image arguments": ("docker run --gpus all -p 1:1 vllm/vllm-openai:latest --model kimi-k3", ["--model", "kimi-k3"]),
    "module that wraps an engine": ("python3 -m sglang_with_limits --model-path kimi-k3", ["--model-path", "kimi-k3"]),
    "engine's own main module": ("python -m vllm.entrypoints.cli.main serve kimi-k3 --x", ["kimi-k3", "--x"]),
    "command in a variable": ('CMD="python3 -m sglang.launch_server"; $CMD --tp 8', ["--tp", "8"]),
    "launcher in an array": ('C=(sglang serve kimi-k3 --tp 8)\n"${C[@]}"', ["kimi-k3", "--tp", "8"]),
    "here-document for a shell": ("T=8\nbash <<EOF\nsglang serve kimi-k3 --tp $T\nEOF\n", ["kimi-k3", "--tp", "8"]),
    "text for another shell": (
        'T=8; tmux new -d -s k3 "A=1 /x/sglang serve kimi-k3 --tp $T 2>&1 | tee $LOG"',
        ["kimi-k3", "--tp", "8"],
    ),
    "text for another host": ("ssh host 'cd /x && sglang serve kimi-k3 --tp 8'", ["kimi-k3", "--tp", "8"]),
    "here-document for another host": ("ssh host <<'EOF'\nsglang serve kimi-k3 --tp 8\nEOF", ["kimi-k3", "--tp", "8"]),
    "option of a batch system": ('sbatch -N 1 --wrap="sglang serve kimi-k3 --tp 8"', ["kimi-k3", "--tp", "8"]),
    "text for a function": ("in_background 'sglang serve kimi-k3 --tp 8'", ["kimi-k3", "--tp", "8"]),
    "container runtime by its path": (
        "/usr/bin/docker --context x run --rm --gpus all vllm/vllm-openai:v1 --model kimi-k3",
        ["--model", "kimi-k3"],
    ),
    "options of a runtime": (
        "podman run --health-retries 3 --pod p $(x /y) --entrypoint /bin/bash $IMG -lc 'sglang serve kimi-k3'",
        ["kimi-k3"],
    ),
    "expansions in the quotes of a script in quotes": (
        """N=3; bash -c "sglang serve kimi-k3 --x '{\\"n\\":$N}' --y '{\\"m\\":\\"'$N'\\"}'\"""",
        ["kimi-k3", "--x", '{"n":3}', "--y", '{"m":"3"}'],
    ),
    "reference of a template in quotes": (
        "sglang serve kimi-k3 --x '{\"a\"${b.c}}'",
        ["kimi-k3", "--x", ('{"a"${b.c}}', "an expansion decides it")],
    ),
    "program that a variable names": (
        'SERVER=$(command -v llama-server)\n"$SERVER" --model m --ctx-size 8 --n-gpu-layers 9',
        ["--model", "m", "--ctx-size", "8", "--n-gpu-layers", "9"],
    ),
    "model that nobody knows before flags of an image": (
        'docker run vllm/vllm-openai:v0.30.0 "$M" --x 4\ndocker run vllm/vllm-openai:v0.30.0 "$COMMAND"',
        [("$M", "M comes from outside"), "--x", "4"],
    ),
    "function": ("run() {\n  TP=8\n  sglang serve kimi-k3 --tp $TP\n}\nrun\n", ["kimi-k3", "--tp", "8"]),
    "arguments loop": (
        'TP=8\nwhile [[ $# -gt 0 ]]; do case $1 in --tp) TP="$2"; shift 2;; esac; done\nsglang serve kimi-k3 --tp $TP',
        ["kimi-k3", "--tp", "8"],
    ),
    "odd syntax elsewhere": ("x='it''s'\necho \"a\n(b\"\n[[ a =~ ^(b|c)$ ]]\nsglang serve kimi-k3", ["kimi-k3"]),
}

RUN = "sglang serve kimi-k3 --tp"
SCOPES = {
    "subshell": (f"N=8; (N=40); {RUN} $N", ["8"]),
    "in the subshell": (f"N=8; (N=40; {RUN} $N)", ["40"]),
    "function never called": (f"N=8; f() {{ N=40; }}\n{RUN} $N", ["8"]),
    "function called": (f"N=8\nfunction f {{\n N=40\n}}\nf\n{RUN} $N", ["40"]),
    "function with a space": (f"N=8\nf () {{ N=40; }}; f; {RUN} $N", ["40"]),
    "function called on a condition": (f"N=8; f() {{ N=40; }}; if x; then f; fi; {RUN} $N", ["$N"]),
    "function in a pipe": (f"N=8; f() {{ N=40; }}; f | cat; {RUN} $N", ["8"]),
    "local": (f"N=8; f() {{ local N=40; {RUN} $N; }}; f; {RUN} $N", ["40", "8"]),
    "arguments of a function": (f'f() {{ local n=$1; shift; {RUN} $n "$@"; }}; f 4 x; f 8', ["4", "8"]),
    "function whose brace follows at once": (f'f(){{ # n\n{RUN} "$1"\n}}\nif f 4; then f 8; fi', ["4", "8"]),
    "keyword and brace at once": (f'function f(){{\n{RUN} "$1"\n}}\nf 8', ["8"]),
    "function that nothing here calls": (f"N=8; f() {{ {RUN} $N; }}", ["8"]),
    "function that calls itself": (f"f() {{ f; f; {RUN} 8; }}; f", ["8"]),
    "pipe": (f"N=40; N=8 | cat; {RUN} $N", ["40"]),
    "end of a pipe": (f"N=40; cat x | N=8; {RUN} $N", ["40"]),
    "background": (f"N=40; {{ N=8; }} & {RUN} $N", ["40"]),
    "background job": (f"N=40; N=8 & {RUN} $N", ["40"]),
    "loop in a pipe": (f"N=40; cat x | while read l; do N=8; done; {RUN} $N", ["40"]),
    "block into a pipe": (f"N=40\nif x; then N=8; fi 2>&1 | tee log\n{RUN} $N", ["40"]),
    "braces": (f"N=40; {{ N=8; }}; {RUN} $N", ["8"]),
    "unset": (f"N=8; unset N; {RUN} ${{N:-40}}", ["40"]),
    "unset on a condition": (f"N=8; x && unset N; [ $a ] && unset N; {RUN} $N", ["$N"]),
    "case in a subshell": (f"N=8; ( case $x in a) M=1;; b) M=2;; esac; N=40 ); {RUN} $N", ["8"]),
    "pattern that is named as a function": (f"N=8; go() {{ N=40; }}; case $1 in go) x;; esac; {RUN} $N", ["8"]),
    "arithmetic": (f"N=8; ((N = 40)); {RUN} $N", ["$N"]),
    "let": (f"N=8; let N=40; {RUN} $N", ["$N"]),
    "printf": (f"N=8; printf -v N 40; {RUN} $N", ["$N"]),
    "subshell in a branch": (f"N=8; if x; then (N=40); {RUN} $N; fi; {RUN} $N", ["8", "8"]),
    "branch in a subshell": (f"N=8; (if x; then N=40; {RUN} $N; fi); {RUN} $N", ["40", "8"]),
    "branch in a pipe": (f"N=8; if x; then N=40; fi | cat; {RUN} $N", ["8"]),
    "local in a branch": (f"f() {{ local N=40; }}; N=8; if x; then f; fi; {RUN} $N", ["8"]),
    "branch in a function": (f"f() {{ local N=8; if x; then N=4; fi; {RUN} $N; }}; N=2; f; {RUN} $N", ["$N", "2"]),
    "function in its branch": (
        f"f() {{ N=8; }}; if x; then f; {RUN} $N; else {RUN} $N; fi; {RUN} $N",
        ["8", "$N", "$N"],
    ),
    "subshell in a case": (f"N=8; case $1 in a) N=4;; b|c) (N=2); {RUN} $N;; esac; {RUN} $N", ["8", "$N"]),
    "unset in a branch": (f"N=8; if x; then unset N; fi; {RUN} ${{N:-40}}", ["${N:-40}"]),
    "unset in a subshell": (f"N=8; (unset N; {RUN} ${{N:-4}}); {RUN} $N", ["4", "8"]),
    "text of a function": (f'f() {{ eval "{RUN} $1"; }}; f 8; f 4', ["8", "4"]),
    "text for a host in a function": (f'f() {{ ssh h "{RUN} $N"; }}; N=8; f', ["8"]),
    "command substitution that is handed on": (f'ssh h "$({RUN} 8)"', ["8"]),
    "subshells": (f"N=8; ( (N=40); {RUN} $N )", ["8"]),
    "command substitution": (f"N=8; OUT=$({RUN} $N)", ["8"]),
    "backticks": (f"N=8; echo `{RUN} $N`", ["8"]),
    "second here-document": (f"cat <<A <<B\nx\nA\n{RUN} 4\nB\n{RUN} 8", ["8"]),
    "blank in the end of a here-document": (f"cat <<'E O'\n{RUN} 4\nE O\n{RUN} 8", ["8"]),
    "here-document of CRLF": (f"bash <<E\r\n{RUN} 8\r\nE\r\n", ["8"]),
}


@pytest.mark.parametrize(("script", "sizes"), SCOPES.values(), ids=SCOPES)
def test_a_variable_holds_where_bash_holds_it(script: str, sizes: list[str]) -> None:
    """What bash prints for each of them; ``$N`` where bash alone knows."""
    assert [str(launch.words[2]) for launch in read(script)] == sizes


@pytest.mark.parametrize(("script", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_read_as_bash_would(script: str, expected: list[str]) -> None:
    assert words(script) == expected


UNKNOWN = {
    "from outside": ("sglang serve kimi-k3 --tp $TP", "$TP", "TP comes from outside"),
    "condition": ("TP=8\nif x; then TP=4; fi\nsglang serve kimi-k3 --tp $TP", "$TP", "a condition sets it (line 2)"),
    "after the branches": ("N=4; if x; then N=8; else N=2; fi; sglang serve kimi-k3 --tp $N", "$N",
                           "a condition sets it (line 1)"),
    "text in quotes, known in part": ('A="--tp $TP --pp 2"; sglang serve kimi-k3 "$A"', "$A", "TP comes from outside"),
    "array by a condition": ('A=()\nif x; then\n A+=(--tp 8)\nfi\nsglang serve kimi-k3 "${A[@]}"', "${A[@]}",
                             "a condition adds to it (line 3)"),
    "and-list": ('[ -n "$X" ] && A=(--tp 8)\nsglang serve kimi-k3 "${A[@]}"', "${A[@]}",
                 "a condition sets it (line 1)"),
    "group after and": ("T=1; [ -n $x ] && { U=2; T=2; }\nsglang serve kimi-k3 --tp $T", "$T",
                        "a condition sets it (line 1)"),
    "or-list": ("T=$(x) || T=8\nsglang serve kimi-k3 --tp $T", "$T", "a condition sets it (line 1)"),
    "case": ("case $1 in a) T=1;; *) T=2;; esac\nsglang serve kimi-k3 --tp $T", "$T", "a condition sets it (line 1)"),
    "loop": ("for T in 1 2; do sglang serve kimi-k3 --tp $T; done", "$T", "a loop sets it"),
    "command": ("sglang serve kimi-k3 --tp $(nvidia-smi -L | wc -l)", "$(nvidia-smi -L | wc -l)",
                "a command's output decides it"),
    "positional": ('sglang serve "$@"', "$@", "the script is started with it"),
    "read": ("read T\nsglang serve kimi-k3 --tp $T", "$T", "read sets it"),
    "pattern": ("T=a8; sglang serve kimi-k3 --tp ${T#@(a)}", "${T#@(a)}", "an expansion decides it"),
    "required": ("sglang serve kimi-k3 --tp ${T:?say how many}", "${T:?say how many}", "T comes from outside"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "text", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_a_script_leaves_open_is_unknown(script: str, text: str, why: str) -> None:
    (found,) = [word for word in words(script) if isinstance(word, tuple)]
    assert found == (text, why)


IN_BRANCHES = {
    "in its branch": "N=4; if x; then N=8; sglang serve kimi-k3 --tp $N; fi",
    "the branch before it does not count": "N=8; if x; then N=4; else sglang serve kimi-k3 --tp $N; fi",
    "nor the branch before in a case": "N=8\ncase $1 in\n a) N=1\n ;;\n b)\n sglang serve kimi-k3 --tp $N;; esac",
    "in a loop": "for x in a b; do N=8; sglang serve kimi-k3 --tp $N; done",
    "in a group": "[ -n $x ] && { N=8; sglang serve kimi-k3 --tp $N; }",
    "from the branch outside": "if x; then N=8; if y; then sglang serve kimi-k3 --tp $N; fi; fi",
    "set again behind": "if x; then N=4; fi; N=8; sglang serve kimi-k3 --tp $N",
}


@pytest.mark.parametrize("script", IN_BRANCHES.values(), ids=IN_BRANCHES)
def test_a_value_is_known_in_its_own_branch(script: str) -> None:
    assert words(script) == ["kimi-k3", "--tp", "8"]


DECIDED = {
    "number": ('n=3; A=(); [ "$n" -gt 0 ] && A+=(--pp $n); sglang serve m "${A[@]}"', ["--pp", "3"]),
    "both parts of a chain": ('[[ -n "${X:-}" && "$X" != 0 ]] && A=(--pp 2); sglang serve m ${A:-8}', ["8"]),
    "else of a chain": ('[ -n "${S:-}" ] && { A=4; } || A=8; sglang serve m $A', ["8"]),
    "if, elif, else": ("N=2; if ((N > 2)); then A=1; elif ((N == 2)); then A=2; else A=3; fi; sglang serve m $A",
                       ["2"]),
    "not": ("A=1; if ! [ a = b ]; then A=2; fi; sglang serve m $A", ["2"]),
    "case": ('M=${M:-ab}; case "$M" in x|y) A=1;; a*) A=2;; *) A=3;; esac; sglang serve m $A', ["2"]),
    "nothing fits": ("case b in a) A=1;; esac; sglang serve m ${A:-8}", ["8"]),
    "unknown and false": ('if [ "$X" = 1 ] && [ a = b ]; then A=1; else A=2; fi; sglang serve m $A', ["2"]),
    "nested": ("if [ a ]; then if [ a = b ]; then A=1; else A=2; fi; fi; sglang serve m $A", ["2"]),
    "regular expression": ("N=12; [[ $N =~ ^[0-9]+$ ]] || N=1; sglang serve m $N", ["12"]),
    "length of an array": ("B=(1 2); if [ ${#B[@]} -gt 1 ]; then A=2; fi; sglang serve m $A", ["2"]),
    "case of letters": ('X=TRUE; [ "${X,,}" = true ] && A=2; sglang serve m $A', ["2"]),
    "end that is cut off": ("X=org/name-fp8; A=${X##*/}; sglang serve m ${A%-*}", ["name"]),
    "arguments that a script sets": (
        'set -- sglang serve m; n=1; if [ "$n" -gt 0 ]; then set -- "$@" --pp "$n"; fi; exec "$@"', ["--pp", "1"]),
    "arguments that a function gets": ('f() { if [ "$1" -gt 1 ]; then sglang serve m $1; fi; }; f 4; f 1', ["4"]),
    "block that does not run": ("A=8; [ a = b ] && { A=4; }; sglang serve m $A", ["8"]),
    "launch that does not run": ("if [ a = b ]; then sglang serve x 1; fi; sglang serve m 2", ["2"]),
}  # fmt: skip


@pytest.mark.parametrize(("script", "expected"), DECIDED.values(), ids=DECIDED)
def test_a_condition_whose_operands_are_known_is_decided(script: str, expected: list[str]) -> None:
    """What bash starts, with nothing set outside."""
    assert words(script)[1:] == expected


@pytest.mark.parametrize(
    "condition", ["[ -f /x ]", '[ "$X" = 1 ]', "command -v x", "((X))", "[[ a =~ (a|b)+ ]]", "[ $# -gt 1 ]", "[ a b ]"]
)
def test_a_condition_that_nobody_here_knows_stays_open(condition: str) -> None:
    assert words(f"A=1; if {condition}; then A=2; fi; sglang serve $A") == [("$A", "a condition sets it (line 1)")]


def test_a_default_that_decides_is_said_and_overruled() -> None:
    """The branch that a default does not take may still be somebody's: its launch counts, unless it rests on that."""
    script = 'if [ -n "${S:-}" ]; then sglang serve a; sglang serve "$S"; fi; [ 1 = 1 ] && sglang serve b'
    assert [(launch.words, set(launch.assumed)) for launch in read(script)] == [(("a",), {"S"}), (("b",), {"S"})]
    assert [launch.words for launch in read(script, S="x")] == [("a",), ("x",), ("b",)]
    assert [launch.assumed for launch in read(script, S="x")] == [frozenset()] * 3


ADDED = {
    "array": ('A=(--tp 8)\nif x; then A+=(--pp 2); fi\nsglang serve kimi-k3 "${A[@]}" --x 1', "${A[@]}"),
    "array, and-list": ('A=(--tp 8)\n[ $x ] && A+=(--pp 2)\nsglang serve kimi-k3 "${A[@]}" --x 1', "${A[@]}"),
    "array, written out": (
        'A=(--tp 8)\nif x; then A=("${A[@]}" --pp 2); fi\nsglang serve kimi-k3 "${A[@]}" --x 1', "${A[@]}"),
    "text": ('A="--tp 8"\nif x; then A+=" --pp 2"; fi\nsglang serve kimi-k3 $A --x 1', "$A"),
    "text, written out": ('A="--tp 8"\nif x; then A="$A --pp 2"; fi\nsglang serve kimi-k3 $A --x 1', "$A"),
    "twice": ('A=(--tp 8)\nif x; then A+=(1); if y; then A+=(2); fi; fi\nsglang serve kimi-k3 "${A[@]}" --x 1',
              "${A[@]}"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "text"), ADDED.values(), ids=ADDED)
def test_what_a_variable_held_stays_where_a_condition_only_adds_to_it(script: str, text: str) -> None:
    assert words(script) == ["kimi-k3", "--tp", "8", (text, "a condition adds to it (line 2)"), "--x", "1"]
    assert words(script, A="--dp 2") == ["kimi-k3", "--tp", "8", "--dp", "2", "--x", "1"]
    assert words(script, A="") == ["kimi-k3", "--tp", "8", "--x", "1"]


def test_branches_that_set_and_add_leave_nothing_known() -> None:
    script = 'A=(1)\nif x; then A+=(2); else A=(3); fi\nsglang serve "${A[@]}"'
    assert words(script) == [("${A[@]}", "a condition sets it (line 2)")]


def test_a_command_in_a_text_that_is_known_in_part() -> None:
    script = 'CMD="sglang serve kimi-k3 --tp $TP"\nCMD="$CMD --pp ${PP}"\n$CMD --x 1'
    outside = "comes from outside"
    assert words(script) == [
        "kimi-k3",
        "--tp",
        ("$TP", f"TP {outside}"),
        "--pp",
        ("${PP}", f"PP {outside}"),
        "--x",
        "1",
    ]
    assert words(script.replace("$CMD --x", 'eval "$CMD" --x'), TP="8", PP="2")[2:5] == ["8", "--pp", "2"]


def test_flags_behind_a_launch_that_no_backslash_joins_to_it() -> None:
    (launch,) = read("vllm serve kimi-k3 \n    --port 8000 \\\n --tensor-parallel-size 8\necho x")
    orphan = launch.orphan
    assert orphan is not None and (orphan, orphan.place.line, launch.words) == ("--port", 2, ("kimi-k3",))
    for script in (
        "case $1 in\n x) sglang serve kimi-k3 ;;\n --tp|--tp-size) shift;;\nesac",
        "sglang serve kimi-k3\n--x 1",
        "sglang serve kimi-k3 \\\n --tp 8",
    ):
        assert read(script)[0].orphan is None


def test_what_is_mounted_names_the_model() -> None:
    (launch,) = read("docker run -v ${HF:-/data}/Kimi-K3:/model:ro lmsysorg/sglang sglang serve --model-path /model")
    assert launch.model == "/data/Kimi-K3"
    (launch,) = read("docker run --mount type=bind,src=/d,dst=/m vllm/vllm-openai --model=/m/Kimi-K3 --max-num-seqs 1")
    assert launch.model == "/d/Kimi-K3"


def test_the_caller_resolves_what_is_open_and_overrules_nothing() -> None:
    assert words("sglang serve kimi-k3 --tp $TP", TP="8") == ["kimi-k3", "--tp", "8"]
    assert words("TP=${TP:-8}; sglang serve kimi-k3 --tp $TP", TP="4") == ["kimi-k3", "--tp", "4"]
    assert words("TP=8; sglang serve kimi-k3 --tp $TP", TP="4") == ["kimi-k3", "--tp", "8"]
    assert words('if x; then A=(1); fi\nsglang serve kimi-k3 "${A[@]}"', A="--tp 8") == ["kimi-k3", "--tp", "8"]


def test_only_what_is_exported_reaches_the_engine() -> None:
    (launch,) = read("A=1\nexport B=2\nC=3 sglang serve kimi-k3")
    assert {name: setting.text for name, setting in launch.env.items()} == {"B": "2", "C": "3"}


@pytest.mark.parametrize(
    "script",
    [
        "echo python3 -m sglang.launch_server --tp 8",
        "pkill -f sglang.launch_server",
        "pip install sglang vllm",
        "python3 -m sglang.bench_serving --backend vllm",
        "python3 -m sglang_router.launch_router --tp 8",
        "# sglang serve kimi-k3",
        "cat <<'EOF'\nsglang serve kimi-k3\nEOF",
        "grep -q 'vllm serve x' log",
        "python3 -m dynamo.frontend --http-port 8000",
        "python -m sglang.check_env",
        "python -m my_sglang_tools --model x",
        "log 'Starting vllm serve kimi-k3 --tp 8'",
        "tmux kill-session -t 'vllm'",
        "git commit -m 'python -m vllm serve'",
        "echo 'vllm serve kimi-k3 --tp 8' | tee notes",
        "python -m vllm.collect_env",
        "python -m sglang.bench_one_batch --model-path kimi-k3",
    ],
)
def test_what_only_speaks_of_an_engine_starts_none(script: str) -> None:
    assert read(script) == []


def test_an_unclosed_quote_at_the_launch_names_its_line() -> None:
    with pytest.raises(InputError, match=r"x\.sh:3: no closing '"):
        read("\n\nsglang serve 'kimi-k3\n")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2*8", 16),
        ("2+3*4-1", 13),
        ("9/2", 4),
        ("9%2", 1),
        ("", None),
        ("1/0", None),
        ("2**3", 8),
        ("2**99", None),
        ("(1+2)*3", 9),
        ("-7/2", -3),
        ("1<2 ? 5 : 6", 5),
        ("!0 && 3>=3", 1),
        ("(1", None),
        ("08", None),
        ("010", 8),
    ],
)
def test_arithmetic(text: str, value: int | None) -> None:
    assert calculate(text) == value


pieces = st.sampled_from([
    "sglang serve kimi-k3 ", "if x; then ", "fi; ", "A=(1 ", ") ", '"${A[@]}" ', "$( ", "' ", '" ', "\\\n", "\n", "; ",
    "&& ", "{ ", "} ", "<<EOF\n", "EOF\n", "case x in ", "esac ", "$((1 ", ")) ", "bash -c ", "${A:-", "--tp 8 ",
])  # fmt: skip


@given(st.lists(pieces, max_size=25))
@settings(max_examples=200)
def test_no_script_ends_in_anything_but_words_or_an_input_error(parts: list[str]) -> None:
    try:
        for launch in read("".join(parts)):
            assert all(word.place.line >= 1 for word in launch.words)
    except InputError:
        pass


EXEC = """\
N="${SPEC_N:-1}"
if [ "$N" -gt 0 ]; then
  exec vllm serve m --max-num-seqs "$N"
fi
ARGS=()
for a in "$@"; do ARGS+=("$a"); done
exec vllm serve m "${ARGS[@]}"
"""


def test_what_exec_replaces_runs_no_further() -> None:
    """A launch behind an `exec` that a decided condition leads to is told only where all of it is known."""
    assert [[str(word) for word in one.words] for one in read(EXEC)] == [["m", "--max-num-seqs", "1"]]
    (other,) = read(EXEC, SPEC_N="0")
    assert other.words[0] == "m" and other.words[-1].why
    known = "if [ ${N:-1} = 1 ]; then exec vllm serve a; fi; exec vllm serve b"
    assert [str(one.words[0]) for one in read(known)] == ["a", "b"]


@pytest.mark.parametrize(
    "script",
    [
        "if [ -e /x ]; then exec vllm serve a; fi\nexec vllm serve b $(cat f)",
        "(exec vllm serve a)\nexec vllm serve b $(cat f)",
        "exec vllm serve a &\nexec vllm serve b $(cat f)",
        "exec vllm serve a | tee log\nexec vllm serve b $(cat f)",
        "exec > log\nvllm serve a\nexec vllm serve b $(cat f)",
    ],
)
def test_an_exec_that_may_not_end_the_script_keeps_the_rest(script: str) -> None:
    assert [str(one.words[0]) for one in read(script)] == ["a", "b"]
