"""Launch commands as people paste them: the words a shell sees, which of them launch an engine, what is refused."""

import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.shell import is_unresolved
from hybridcalc.shell.launch import Launch
from hybridcalc.shell.parse import LONGEST_SCRIPT, split_command

SERVER = ("python", "-m", "sglang.launch_server")
KNOWN = ENGINES.launchers.commands
PROGRAMS = {program: name for name, row in ENGINES.rows.items() for program in row.starter.programs}
shell_text = st.text(alphabet="ab=-1 \t\r\n\\'\"$`#|&;<>(){}[]!*~é", max_size=60)
launch_words = st.lists(
    st.sampled_from(
        ["sglang", "serve", "python3", "-m", "-um", "sglang.launch_server", "export", "env", "-i", "-u", "A=1", "--tp"]
    )
    | st.sampled_from([";", ">", "-c", "bash", "$A"])
    | st.text(max_size=8),
    max_size=12,
)


def launch(text: str) -> Launch:
    return ENGINES.launch(text)


def attempt(text: str) -> Launch | InputError:
    try:
        return launch(text)
    except InputError as error:
        return error


def problem(text: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        launch(text)
    return caught.value.message, caught.value.fix


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  a\tb  ", ["a", "b"]),
        ("a 'b c' \"d e\" f\\ g", ["a", "b c", "d e", "f g"]),
        ("--name='a b'\"c\"d", ["--name=a bcd"]),
        ("''", [""]),
        ('"a\\"b\\\\c\\n"', ['a"b\\c\\n']),
        ("'a\\b'", ["a\\b"]),
        ("a \\\n  b", ["a", "b"]),
        ("a \\\r\n  b\r\n", ["a", "b"]),
        ("a \\ \t\n  b", ["a", "b"]),
        ("a\\  \nb", ["a", "b"]),
        ("a\\\nb", ["ab"]),
        ('"a\\\nb"', ["ab"]),
        ("a \\", ["a"]),
        ("a # b 'c\nd", ["a", ";", "d"]),
        ("a#b", ["a#b"]),
        ("\n\n a \n\n\n b \n", ["a", ";", "b"]),
        ("a>b 2>&1|c&&d&", ["a", ">", "b", "2>&", "1", "|", "c", "&&", "d", "&"]),
        ("a8>b", ["a8", ">", "b"]),
        ("'>' \\;", [">", ";"]),
        ("$(nproc --all) ${A:-b c} `d e` $F", ["$(nproc --all)", "${A:-b c}", "`d e`", "$F"]),
        ('"$(a "b")"', ['$(a "b")']),
        ("A=(1 2) b", ["A=(1 2)", "b"]),
    ],
)
def test_words_are_those_a_shell_sees(text: str, words: list[str]) -> None:
    assert split_command(text) == words


@given(st.text(alphabet="ab \t'\"\\", max_size=30))
def test_quotes_and_backslashes_are_read_as_by_shlex(text: str) -> None:
    """Without operators, comments and new lines the standard library's POSIX splitter is the reference."""
    assume(not re.search(r"\\[ \t]*$", text))
    try:
        words = shlex.split(text)
    except ValueError:
        with pytest.raises(InputError):
            split_command(text)
    else:
        assert split_command(text) == words


@pytest.mark.parametrize("text", ["$A", "a${B}", '"$(c)"', "`d`", '"e`f`"', "$1", "$[1]", "A=(1)", "'$a'$b"])
def test_a_word_the_shell_expands_is_unresolved(text: str) -> None:
    (word,) = split_command(text)
    assert is_unresolved(word)


@pytest.mark.parametrize("text", ["'$A'", "\\$A", '"\\$A"', "a$", '"a$ b"', "'`a`'", "^a$", "$%"])
def test_a_quoted_or_lone_dollar_stands_for_itself(text: str) -> None:
    (word,) = split_command(text)
    assert not is_unresolved(word)


@pytest.mark.parametrize("word", ["$A", "${A}", "$(A)", "`a`", "--tp=$TP"])
def test_in_an_argument_list_no_quotes_are_left_to_tell(word: str) -> None:
    """Manifests hold lists: ``$(VAR)`` there is Kubernetes' to expand."""
    assert is_unresolved(word)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a 'b c", "no closing ' for \"'b c\""),
        ('a "b c', "no closing \" for '\"b c'"),
        ("a `b", "no closing ` for '`b'"),
        ("a $(b", "no closing ) for '(b'"),
        ("a ${b", "no closing } for '{b'"),
        ("a(b", "no closing ) for '(b'"),
        ('"' + "x" * 90, 'no closing " for \'"' + "x" * 36 + "...'"),
    ],
)
def test_what_is_never_closed_is_named(text: str, message: str) -> None:
    assert problem(text) == (message, "close it, or quote it")


def test_a_text_has_a_longest_length() -> None:
    assert split_command("a" * LONGEST_SCRIPT) == ["a" * LONGEST_SCRIPT]
    assert len(split_command("a " * (LONGEST_SCRIPT // 2))) == LONGEST_SCRIPT // 2
    assert problem("a" * (LONGEST_SCRIPT + 1))[0] == "a script of 262,145 characters is longer than 262,144"


@pytest.mark.parametrize(
    "piece", ["\\ ", "'a' ", "$a", "$(a)", '"', "\\\n", "\n", "(", "8", "a=", ">", "`", "\\" + " " * 99]
)
def test_hostile_texts_are_read_in_time(piece: str, steps: Callable[[Callable[[], object]], int]) -> None:
    """At most twenty calls a character."""
    attempt(piece * (LONGEST_SCRIPT // len(piece)))
    assert steps(lambda: attempt(piece * (20_000 // len(piece)))) < 20 * 20_000


def test_a_launch_with_everything_in_front() -> None:
    text = """
    #!/bin/bash
    # the prefill worker
    unset http_proxy
    export SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1 NCCL_DEBUG="WARN"
    cd /opt/sglang && ulimit -n 65536
    CUDA_VISIBLE_DEVICES=0,1 sudo -E -u llm nohup numactl -N 0 --membind=0 \\
      /usr/bin/python3.11 -u -X dev -m sglang.launch_server --model-path 'a b' \\
        --tp 8 2>&1 | tee "$LOG" &
    echo started
    """
    read = launch(text)
    assert (read.engine, read.program, read.words) == ("sglang", SERVER, ("--model-path", "a b", "--tp", "8"))
    assert read.variables == {
        "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1",
        "NCCL_DEBUG": "WARN",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }


@pytest.mark.parametrize(
    ("start", "program"),
    [
        ("python -m sglang.launch_server", SERVER),
        ("python3 -m sglang.launch_server", SERVER),
        ("/usr/bin/python3.11 -u -m sglang.launch_server", SERVER),
        ("python3 -um sglang.launch_server", SERVER),
        ("python -msglang.launch_server", SERVER),
        ("python -W ignore -m sglang.launch_server", SERVER),
        ("sglang serve", ("sglang", "serve")),
        ("/opt/venv/bin/sglang serve", ("sglang", "serve")),
        ("$ sglang serve", ("sglang", "serve")),
        ("exec -a server sglang serve", ("sglang", "serve")),
        ("time -p sglang serve", ("sglang", "serve")),
        ("nice -n 5 stdbuf -oL setsid sglang serve", ("sglang", "serve")),
        ("python3 -m dynamo.sglang", ("python", "-m", "dynamo.sglang")),
        ("vllm serve", ("vllm", "serve")),
        ("python -m vllm.entrypoints.openai.api_server", ("python", "-m", "vllm.entrypoints.openai.api_server")),
        ("python3 -m dynamo.vllm", ("python", "-m", "dynamo.vllm")),
        ("", ()),
    ],
)
def test_the_words_that_start_an_engine(start: str, program: tuple[str, ...]) -> None:
    read = launch(f"{start} --model m --tp 2")
    assert (read.variables, read.program, read.words) == ({}, program, ("--model", "m", "--tp", "2"))
    assert read.engine == PROGRAMS.get(program, "")


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("A=1 B= C=x=y sglang serve", {"A": "1", "B": "", "C": "x=y"}),
        ("env A=1 B='2 3' sglang serve", {"A": "1", "B": "2 3"}),
        ("A=1 env -i B=2 sglang serve", {"B": "2"}),
        ("A=1 B=2 env -u A --unset=B C=3 sglang serve", {"C": "3"}),
        ("export A=1 B=2\nexport B=3; sglang serve", {"A": "1", "B": "3"}),
        ("export A=1 && B=2 sglang serve", {"A": "1", "B": "2"}),
        ("export A=1; env -u A sglang serve", {}),
        ("export A=1; env -i sglang serve", {}),
        ("A=1\nsglang serve", {}),
        ("A=1 true; sglang serve", {}),
        ("sglang serve; export A=1", {}),
        ("exec env A=1 sglang serve", {"A": "1"}),
        ("A=1 --tp 8", {"A": "1"}),
    ],
)
def test_the_environment_is_what_the_line_sets(text: str, env: dict[str, str]) -> None:
    """A variable reaches the engine from its own command, or from an ``export`` before it."""
    assert launch(text).variables == env


@pytest.mark.parametrize("word", ["$TP", "${TP#a}", "$(nproc)", "`nproc`", '"${ARGS[@]}"', "x$TP"])
def test_a_value_the_shell_decides_stays_marked(word: str) -> None:
    """Whether it matters is for the engine's side to say."""
    flag, value = launch(f"sglang serve --tp {word}").words
    assert (flag, str(value)) == ("--tp", word.strip('"'))
    assert is_unresolved(value)


@pytest.mark.parametrize("text", ["A=$B sglang serve", "export A=$B; sglang serve"])
def test_so_does_one_in_the_environment(text: str) -> None:
    assert is_unresolved(launch(text).variables["A"])


def test_a_program_the_shell_decides_is_named() -> None:
    assert problem("$SERVER --tp 8") == ("'$SERVER' is a value the shell decides", "give it literally")
    assert launch("$PYTHON -m sglang.launch_server --tp 8").words == ("--tp", "8")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("M=a; sglang serve $M", ("a",)),
        ("export M=a\nsglang serve ${M}/b", ("a/b",)),
        ("M=a; N=$M/b; sglang serve $N", ("a/b",)),
        ('M=a; sglang serve "$M"', ("a",)),
        ("M=a; M=b; sglang serve $M", ("b",)),
        ("M=a; sglang serve '$M'", ("$M",)),
        ("M=a sglang serve $M", ("$M",)),
        ("M='a b'; sglang serve $M", ("a", "b")),
        ("M=a; sglang serve ${M:-b}", ("a",)),
        ("sglang serve ${M:-b}", ("b",)),
        ("M=a; sglang serve $M$N", ("$M$N",)),
    ],
)
def test_a_variable_has_the_value_that_the_text_gave_it(text: str, words: Any) -> None:
    assert launch(text).words == words


def test_a_quoted_dollar_passes() -> None:
    assert launch("sglang serve --regex '^a$' --key 'pa$$word' -e \\$x").words[1::2] == ("^a$", "pa$$word", "$x")


@pytest.mark.parametrize("text", ["cd $HOME && sglang serve m", "sglang serve m > $LOG", "sglang serve m | tee `date`"])
def test_what_does_not_reach_the_engine_may_be_unresolved(text: str) -> None:
    assert launch(text).words == ("m",)


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("", "there is no launch command", f"begin with {KNOWN}"),
        ("export A=1", "there is no launch command", f"begin with {KNOWN}"),
        ("docker run --gpus all img", "'docker run --gpus' starts no engine known here", f"begin with {KNOWN}"),
        ("python serve.py --tp 8", "'python serve.py --tp' starts no engine known here", f"begin with {KNOWN}"),
        ("python -m", "'python -m' starts no engine known here", f"begin with {KNOWN}"),
        ("sglang generate", "'sglang generate' starts no engine known here", f"begin with {KNOWN}"),
        ("sglang serve a; sglang serve b", "2 launch commands are given", "give one of them"),
        ("sglang serve m\n  --tp 8", "'--tp' starts a command of its own", "end the line before it with a backslash"),
    ],
)
def test_what_is_no_launch_is_said_word_by_word(text: str, message: str, fix: str) -> None:
    assert problem(text) == (message, fix)


def test_an_argument_list_is_read_as_it_is() -> None:
    """In a list nothing is left to split: ``;`` and ``>`` are words like any other."""
    words = ["python3", "-m", "sglang.launch_server", "--served-model-name", "a;b", ";", ">"]
    read = ENGINES.launch(words)
    assert (read.variables, read.program, read.words) == ({}, SERVER, ("--served-model-name", "a;b", ";", ">"))


@pytest.mark.parametrize("wrapper", ["env -C /x", "numactl -N 0", "sudo -u me", "exec -a x", "srun -n 1", "nohup", "$"])
def test_what_stands_before_a_launcher_is_no_part_of_it(wrapper: str) -> None:
    assert launch(f"{wrapper} --long=x -q sglang serve m").words == ("m",)


@given(shell_text | st.text())
def test_any_text_gives_words_or_an_input_error(text: str) -> None:
    try:
        words = split_command(text)
    except InputError:
        return
    assert all(isinstance(word, str) for word in words)


@given(shell_text | shell_text.map("sglang serve m ".__add__) | st.text())
def test_any_text_launches_or_is_an_input_error(text: str) -> None:
    read = attempt(text)
    if isinstance(read, InputError):
        assert len(read.message) < 200 and "\n" not in read.message + read.fix
    else:
        assert read.program in (*PROGRAMS, ())


@given(launch_words)
def test_any_words_launch_or_are_an_input_error(words: list[Any]) -> None:
    try:
        read = ENGINES.launch(words)
    except InputError:
        return
    assert all(isinstance(word, str) for word in (*read.words, *read.variables, *read.variables.values()))


@pytest.mark.parametrize(("program", "engine"), PROGRAMS.items())
def test_a_pasted_line_starts_the_engine_of_its_program(program: tuple[str, ...], engine: str) -> None:
    line = " ".join(program) + " --model kimi-k3"
    assert launch(line).engine == launch(f"cd /srv && {line} \\\n  --port 1").engine == engine


SGLANG = "python3 -m sglang.launch_server --model-path M --tp 4"
OWN = "lmsysorg/sglang:v0.5.12"
RELEASES = {
    "a script on its stdin": (f"docker run --rm {OWN} bash -s <<'EOF'\n{SGLANG}\nEOF\n", "0.5.12"),
    "a script through a pipe": (f"cat <<EOF | docker run -i {OWN} bash\n{SGLANG}\nEOF\n", "0.5.12"),
    "a script written before": (
        f"cat >/tmp/run.sh <<EOF\n{SGLANG}\nEOF\ndocker run -v /tmp:/w {OWN} bash /w/run.sh\n",
        "0.5.12",
    ),
    "a script written by tee": (f"tee run.sh <<EOF\n{SGLANG}\nEOF\ndocker run {OWN} ./run.sh\n", "0.5.12"),
    "a script that no container runs": (f"cat >run.sh <<EOF\n{SGLANG}\nEOF\ndocker run {OWN} nvidia-smi\n", None),
    "Apptainer": (f"apptainer exec --nv -B /a:/b docker://{OWN} {SGLANG}", "0.5.12"),
    "Apptainer's shell": (f"apptainer exec docker://{OWN} bash -c '{SGLANG}'", "0.5.12"),
    "Singularity's image": ("singularity run --nv docker://vllm/vllm-openai:v0.24.0 --model M", "0.24.0"),
    "a pulled image": (f"apptainer exec --nv /sif/sglang_v0.5.12.sif {SGLANG}", "0.5.12"),
    "Slurm": (f"srun --container-image={OWN} {SGLANG}", "0.5.12"),
    "Slurm's shell": (f"srun --container-image {OWN} bash -c '{SGLANG}'", "0.5.12"),
    "uvx --with": ("uvx --with vllm==0.24.0 vllm serve M", "0.24.0"),
    "uvx at": ("uvx vllm@0.24.0 serve M", "0.24.0"),
    "uv run": ("uv run --with='vllm[audio]==0.24.0' vllm serve M", "0.24.0"),
    "pip": ("pip install -U vllm==0.24.0 && vllm serve M", "0.24.0"),
    "uv pip": (f"uv pip install 'sglang[all]==0.5.12.post1'\n{SGLANG}", "0.5.12"),
    "pip in an image": (
        "docker run --entrypoint bash vllm/vllm-openai:v0.30.0 -c 'pip install vllm==0.24.0 && vllm serve M'",
        "0.24.0",
    ),
    "pip beside an image": ("pip install vllm==0.24.0\ndocker run vllm/vllm-openai:v0.30.0 --model M", "0.30.0"),
    "a bound": ("pip install 'vllm>=0.24.0' && vllm serve M", None),
    "another package": ("uvx --with torch==2.9.0 vllm serve M", None),
}


@pytest.mark.parametrize("name", RELEASES)
def test_the_release_of_a_launch_is_that_of_where_it_runs(name: str) -> None:
    text, release = RELEASES[name]
    started = launch(text)
    assert ENGINES.release(started) == release
    assert not started.variables and len(started.words) in (1, 2, 4)


def test_a_script_written_before_has_the_mounts_and_variables_of_its_container() -> None:
    text = f"cat >run.sh <<EOF\n{SGLANG}\nEOF\ndocker run --gpus 4 -e A=1 {OWN} bash run.sh\n"
    started = launch(text)
    assert (started.image, started.gpus, started.variables) == (OWN, "4", {"A": "1"})


def test_an_installed_release_without_rules_is_said() -> None:
    assert "vLLM 0.1.0 is older than the releases known here" in ENGINES.assumed(
        launch("pip install vllm==0.1.0 && vllm serve M")
    )
