"""Shell scripts: read as bash would, never run, never guessed."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridcalc.errors import InputError
from hybridcalc.manifests.script import read_script
from hybridcalc.manifests.source import Source, Text, Unknown
from hybridcalc.manifests.variables import Outside, calculate


def read(script, *, arguments=(), **outside):
    source = Source("x.sh", script)
    return read_script(Text(source, script), {}, Outside(outside), arguments)


def words(script, **outside):
    """The words of the only launch; unknown ones as (text, why)."""
    (launch,) = read(script, **outside)
    return [(str(w), w.why) if isinstance(w, Unknown) else str(w) for w in launch.words]


SCRIPTS = {
    "assignment": ("TP=8\nsglang serve kimi-k3 --tp $TP", ["kimi-k3", "--tp", "8"]),
    "default": ("sglang serve kimi-k3 --tp ${TP:-4}", ["kimi-k3", "--tp", "4"]),
    "nested default": ("sglang serve ${M:-${N:-kimi-k3}}", ["kimi-k3"]),
    "default of a set variable": ("TP=2; sglang serve kimi-k3 --tp ${TP:-4}", ["kimi-k3", "--tp", "2"]),
    "alternative": ("T=1; sglang serve kimi-k3 ${T:+--tp 2} ${U:+--pp 2}", ["kimi-k3", "--tp", "2"]),
    "self default": ("TP=${TP:-8}; sglang serve kimi-k3 --tp $TP", ["kimi-k3", "--tp", "8"]),
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
    "unset on a condition": (f"N=8; x && unset N; [ a ] && unset N; {RUN} $N", ["$N"]),
    "case in a subshell": (f"N=8; ( case $x in a) M=1;; b) M=2;; esac; N=40 ); {RUN} $N", ["8"]),
    "pattern that is named as a function": (f"N=8; go() {{ N=40; }}; case $1 in go) x;; esac; {RUN} $N", ["8"]),
    "arithmetic": (f"N=8; ((N = 40)); {RUN} $N", ["$N"]),
    "let": (f"N=8; let N=40; {RUN} $N", ["$N"]),
    "printf": (f"N=8; printf -v N 40; {RUN} $N", ["$N"]),
    "subshells": (f"N=8; ( (N=40); {RUN} $N )", ["8"]),
    "command substitution": (f"N=8; OUT=$({RUN} $N)", ["8"]),
    "backticks": (f"N=8; echo `{RUN} $N`", ["8"]),
    "second here-document": (f"cat <<A <<B\nx\nA\n{RUN} 4\nB\n{RUN} 8", ["8"]),
    "blank in the end of a here-document": (f"cat <<'E O'\n{RUN} 4\nE O\n{RUN} 8", ["8"]),
    "here-document of CRLF": (f"bash <<E\r\n{RUN} 8\r\nE\r\n", ["8"]),
}


@pytest.mark.parametrize(("script", "sizes"), SCOPES.values(), ids=SCOPES)
def test_a_variable_holds_where_bash_holds_it(script, sizes):
    """What bash prints for each of them; ``$N`` where bash alone knows."""
    assert [str(launch.words[2]) for launch in read(script)] == sizes


@pytest.mark.parametrize(("script", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_is_read_as_bash_would(script, expected):
    assert words(script) == expected


UNKNOWN = {
    "from outside": ("sglang serve kimi-k3 --tp $TP", "$TP", "TP comes from outside"),
    "condition": ("TP=8\nif x; then TP=4; fi\nsglang serve kimi-k3 --tp $TP", "$TP", "a condition sets it (line 2)"),
    "array by a condition": ('A=()\nif x; then\n A+=(--tp 8)\nfi\nsglang serve kimi-k3 "${A[@]}"', "${A[@]}",
                             "a condition sets it (line 3)"),
    "and-list": ('[ -n "$X" ] && A=(--tp 8)\nsglang serve kimi-k3 "${A[@]}"', "${A[@]}",
                 "a condition sets it (line 1)"),
    "group after and": ("T=1; [ -n x ] && { U=2; T=2; }\nsglang serve kimi-k3 --tp $T", "$T",
                        "a condition sets it (line 1)"),
    "or-list": ("T=$(x) || T=8\nsglang serve kimi-k3 --tp $T", "$T", "a condition sets it (line 1)"),
    "case": ("case $1 in a) T=1;; *) T=2;; esac\nsglang serve kimi-k3 --tp $T", "$T", "a condition sets it (line 1)"),
    "loop": ("for T in 1 2; do sglang serve kimi-k3 --tp $T; done", "$T", "a loop sets it"),
    "command": ("sglang serve kimi-k3 --tp $(nvidia-smi -L | wc -l)", "$(nvidia-smi -L | wc -l)",
                "a command's output decides it"),
    "positional": ('sglang serve "$@"', "$@", "the script is started with it"),
    "read": ("read T\nsglang serve kimi-k3 --tp $T", "$T", "read sets it"),
    "pattern": ("T=a8; sglang serve kimi-k3 --tp ${T#a}", "${T#a}", "an expansion decides it"),
    "required": ("sglang serve kimi-k3 --tp ${T:?say how many}", "${T:?say how many}", "T comes from outside"),
}  # fmt: skip


@pytest.mark.parametrize(("script", "text", "why"), UNKNOWN.values(), ids=UNKNOWN)
def test_what_a_script_leaves_open_is_unknown(script, text, why):
    (found,) = [word for word in words(script) if isinstance(word, tuple)]
    assert found == (text, why)


def test_the_caller_resolves_what_is_open_and_overrules_nothing():
    assert words("sglang serve kimi-k3 --tp $TP", TP="8") == ["kimi-k3", "--tp", "8"]
    assert words("TP=${TP:-8}; sglang serve kimi-k3 --tp $TP", TP="4") == ["kimi-k3", "--tp", "4"]
    assert words("TP=8; sglang serve kimi-k3 --tp $TP", TP="4") == ["kimi-k3", "--tp", "8"]
    assert words('if x; then A=(1); fi\nsglang serve kimi-k3 "${A[@]}"', A="--tp 8") == ["kimi-k3", "--tp", "8"]


def test_only_what_is_exported_reaches_the_engine():
    (launch,) = read("A=1\nexport B=2\nC=3 sglang serve kimi-k3")
    assert {name: setting.text for name, setting in launch.env.items()} == {"B": "2", "C": "3"}


@pytest.mark.parametrize("script", [
    "echo python3 -m sglang.launch_server --tp 8", "pkill -f sglang.launch_server", "pip install sglang vllm",
    "python3 -m sglang.bench_serving --backend vllm", "python3 -m sglang_router.launch_router --tp 8",
    "# sglang serve kimi-k3", "cat <<'EOF'\nsglang serve kimi-k3\nEOF", "grep -q 'vllm serve x' log",
    "python3 -m dynamo.frontend --http-port 8000", "python -m sglang.check_env", "python -m my_sglang_tools --model x",
    "python -m vllm.collect_env", "python -m sglang.bench_one_batch --model-path kimi-k3",
])  # fmt: skip
def test_what_only_speaks_of_an_engine_starts_none(script):
    assert read(script) == []


def test_an_unclosed_quote_at_the_launch_names_its_line():
    with pytest.raises(InputError, match=r"x\.sh:3: no closing '"):
        read("\n\nsglang serve 'kimi-k3\n")


def test_growing_values_end(within):
    """Arrays of arrays and texts of texts stop at a bound instead of filling the memory."""
    with within(5), pytest.raises(InputError, match="words and arrays come to more than"):
        read("A=(x x x)\n" + 'A=("${A[@]}" "${A[@]}" "${A[@]}")\n' * 60 + 'sglang serve "${A[@]}"')
    with within(5):
        text = 'A="$A$A$A$A"\n' * 60
        assert words(f"A=xxxxxxxx\n{text}sglang serve kimi-k3 --tp $A")[-1] == ("$A", "its value grows too long")
    with within(5):
        assert read("cat <<EOF\n" * 20_000 + "sglang serve kimi-k3\n") != []


@pytest.mark.parametrize(("text", "value"), [("2*8", 16), ("2+3*4-1", 13), ("9/2", 4), ("9%2", 1), ("", None),
                                             ("1/0", None), ("2**3", None), ("(1+2)*3", None), ("08", 8)])  # fmt: skip
def test_arithmetic(text, value):
    assert calculate(text) == value


pieces = st.sampled_from([
    "sglang serve kimi-k3 ", "if x; then ", "fi; ", "A=(1 ", ") ", '"${A[@]}" ', "$( ", "' ", '" ', "\\\n", "\n", "; ",
    "&& ", "{ ", "} ", "<<EOF\n", "EOF\n", "case x in ", "esac ", "$((1 ", ")) ", "bash -c ", "${A:-", "--tp 8 ",
])  # fmt: skip


@given(st.lists(pieces, max_size=25))
@settings(max_examples=200)
def test_no_script_ends_in_anything_but_words_or_an_input_error(parts):
    try:
        for launch in read("".join(parts)):
            assert all(word.place.line >= 1 for word in launch.words)
    except InputError:
        pass


LARGE = {
    "assignments": "a=1\n" * 60_000 + "sglang serve kimi-k3\n", "blocks": "if x; then\n" * 20_000,
    "launcher words": "echo; " + "sglang " * 30_000, "interpreters": "x " + "python3 -u " * 20_000,
    "words": "sglang serve kimi-k3 " + "--x y " * 40_000, "lines in quotes": "X='" + "a b\n" * 60_000 + "'\n",
    "unbalanced lines": "'\n" * 60_000,
}  # fmt: skip


@pytest.mark.parametrize("script", LARGE.values(), ids=LARGE)
def test_large_scripts_take_bounded_time(script, within):
    with within(10), suppress(InputError):
        read(script)


def test_a_script_beyond_the_bounds_is_refused_and_not_cut():
    with pytest.raises(InputError, match="more than 2,000 launches"):
        read("sglang serve kimi-k3\n" * 2_001)
    with pytest.raises(InputError, match="a script of 300,021 characters is longer than 262,144"):
        read("sglang serve kimi-k3\n" + "#" * 300_000)
