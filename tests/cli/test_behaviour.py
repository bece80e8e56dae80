"""How the command line behaves: errors in one or two lines, exit codes, pipes, colour, width, start-up."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import process, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridcalc import __version__
from hybridcalc.errors import ModelNotFound

BAD = {
    "unknown model": (("ratio", "kimi-k4", "-L", "9216"),
                      "error: no model 'kimi-k4'\n"
                      "       nearest: kimi-k3, kimi-linear-48b-a3b; or give a config.json or its folder\n"),
    "no length": (("ratio", "kimi-k3"),
                  "error: ratio needs the tokens a request holds\n       add -L TOKENS, for example -L 8k\n"),
    "neither model nor log": (("ratio", "-L", "8k"),
                              "error: ratio needs a MODEL or a boot log\n"
                              "       name a preset (`hybridcalc models`) or add --log FILE\n"),
    "negative length": (("ratio", "kimi-k3", "-L", "-5"),
                        "error: -L: '-5' is not a token count\n       write 9216, 8k (8,192) or 1M (1,048,576)\n"),
    "huge length": (("ratio", "kimi-k3", "-L", "9" * 30),
                    f"error: -L: '{'9' * 30}' is not a usable token count\n"
                    "       whole tokens from 1 to 1,099,511,627,776\n"),
    "bad size": (("ratio", "kimi-k3", "-L", "8k", "--rest", "lots"),
                 "error: --rest: 'lots' is not a size\n"
                 "       write 80GiB (2**30), 80GB (10**9), 143771MiB or plain bytes\n"),
    "bad dtype": (("ratio", "kimi-k3", "-L", "8k", "--mamba-ssm-dtype", "int4"),
                  "error: --mamba-ssm-dtype: 'int4' is not a dtype known here\n"
                  "       write one of float32, bfloat16, float16, fp8_e4m3, fp8_e5m2, int8\n"),
    "missing log": (("ratio", "--log", "no/such.log", "-L", "8k"), "error: no/such.log: no such file\n"),
    "missing config": (("ratio", "no/such.json", "-L", "8k"), "error: no/such.json: no such file\n"),
    "D without an algorithm": (("ratio", "kimi-k3", "-L", "8k", "--speculative-num-draft-tokens", "4"),
                               "error: --speculative-num-draft-tokens has no effect alone\n"
                               "       add --speculative-algorithm NAME\n"),
    "unknown command": (("ration",), "error: no command 'ration'\n       did you mean `hybridcalc ratio`?\n"),
    "no value": (("log", "boot.txt", "--expect"),
                 "error: option '--expect' requires an argument.\n       see `hybridcalc log --help`\n"),
    "no command like it": (("xyzzy",), "error: no command 'xyzzy'\n       see `hybridcalc --help`\n"),
    "no KV to balance": (("ratio", "falcon-mamba-7b", "-L", "8k"),
                         "error: falcon-mamba-7b has no attention layer: "
                         "there is no growing KV to balance the state against\n"
                         "       its concurrency is K // S: see `hybridcalc slots`\n"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "text"), BAD.values(), ids=BAD)
def test_bad_input_is_one_or_two_lines_and_exit_2(arguments: tuple[str, ...], text: str) -> None:
    """What, where, why, and what to write instead: word by word."""
    ran = run(*arguments)
    assert (ran.err, ran.out, ran.code) == (text, "", 2)


def test_flags_the_engine_refuses_are_exit_1() -> None:
    """The question is clear and the answer is no."""
    ran = run("ratio", "kimi-k3", "-L", "8k", "--strategy", "extra_buffer_lazy", "--disable-overlap-schedule")
    assert ran.code == 1
    assert ran.err == (
        "error: extra_buffer_lazy needs the overlap scheduler\n"
        "       drop --disable-overlap-schedule, or write --mamba-radix-cache-strategy extra_buffer\n"
    )
    ran = run("ratio", "kimi-k3", "--tp", "5", "-L", "9216")
    assert ran.code == 1
    assert ran.err == (
        "error: --tp 5 does not divide 96 KDA heads\n       write --tp 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48 or 96\n"
    )


CONTENTS = {
    "empty": b"", "not json": b"{", "array": b"[1]", "number": b"1e999", "nan": b'{"model_type": NaN}',
    "binary": bytes(range(256)) * 64, "deep": b"[" * 100_000, "utf-16": "{}".encode("utf-16"),
    "huge number": b'{"model_type": "mamba2", "num_heads": ' + b"9" * 5000 + b"}",
}  # fmt: skip


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("name", ["config.json", "preset.yaml"])
def test_files_that_are_no_model_are_refused(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    ran = run("ratio", str(path), "-L", "8k")
    assert (ran.code, ran.out) == (2, "")
    assert 1 <= len(ran.err.splitlines()) <= 2
    assert ran.err.startswith("error: ")
    assert "defect" not in ran.err


def test_an_enormous_config_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as stream:
        stream.truncate(2**40)
    ran = run("ratio", str(path), "-L", "8k")
    assert ran.code == 2
    assert "larger than 8 MiB" in ran.err


words = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
flags = st.sampled_from([
    "-L", "--tp", "--rest", "--kv-cache-dtype", "--strategy", "--env", "--engine-version", "-C", "--json", "--log",
    "--page-size", "kimi-k3", "8k", "9216", "--dp", "--enable-dp-attention", "--dcp",
])  # fmt: skip


@given(st.lists(flags | words, max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_command_line_ends_in_a_defect(arguments: list[str]) -> None:
    """Whatever is typed after `ratio`: an answer, or an error that is not ours."""
    ran = run("ratio", *[word for word in arguments if word != "-"])
    assert ran.code in (0, 1, 2)
    assert "this is a defect" not in ran.err
    assert "Traceback" not in ran.err
    assert len(ran.err.splitlines()) <= 2


def test_json_is_one_document_with_its_schema() -> None:
    ran = run("ratio", "kimi-k3", "-L", "8k", "--json")
    assert json.loads(ran.out)["schema"] == "hybridcalc.ratio/2"
    assert ran.err == ""


def test_a_closed_pipe_ends_quietly() -> None:
    """As `hybridcalc models | head -1` does: nothing on stderr."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "hybridcalc", "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None and writer.stderr is not None
    writer.stdout.readline()
    writer.stdout.close()
    writer.wait()
    assert writer.stderr.read() == b""
    writer.stderr.close()


def test_an_answer_that_cannot_be_written_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "hybridcalc", "slots", "--json"], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ran.returncode == 2
    assert ran.stderr == b"error: no space left on device\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("ratio", "kimi-k3", "--tp", "8", "-L", "9216", "--rest", "28.55GiB", "--explain"),
        ("slots",),
        ("models",),
        ("replayssm", "kimi-k3", "--tp", "8", "--slots", "120"),
        ("crossover", "kimi-k3", "--baseline", "deepseek-v3"),
        ("models", "show", "nemotron-3-ultra-550b-a55b"),
        (),
        ("ratio", "--help"),
    ],
)
def test_text_fits_80_columns_without_colour_when_piped(arguments: tuple[str, ...]) -> None:
    """No terminal: no escape codes, no trailing blanks, 80 columns."""
    ran = run(*arguments)
    assert ran.code == 0
    assert "\x1b" not in ran.out
    assert all(len(line) <= 80 and line == line.rstrip() for line in ran.out.splitlines())


def test_no_color_wins_over_force_color() -> None:
    assert "\x1b" not in run("slots", NO_COLOR="1", FORCE_COLOR="1").out
    assert "\x1b" in run("slots", FORCE_COLOR="1").out


def test_help_is_shown_when_nothing_is_asked() -> None:
    ran = run()
    assert (ran.code, ran.err) == (0, "")
    assert "Usage: hybridcalc" in ran.out


def test_debug_lets_an_error_through_to_its_traceback() -> None:
    with pytest.raises(ModelNotFound):
        run("ratio", "kimi-k4", "-L", "8k", "--debug")


def test_model_names_complete_in_the_shell() -> None:
    """What bash asks for when `hybridcalc ratio kimi` is followed by a tab."""
    asked: dict[str, Any] = {
        "_HYBRIDCALC_COMPLETE": "complete_bash",
        "COMP_WORDS": "hybridcalc ratio kimi",
        "COMP_CWORD": "2",
    }
    assert process(**asked).out.split() == ["kimi-k3", "kimi-linear-48b-a3b"]


def test_version_names_the_engines_it_mirrors() -> None:
    assert run("--version").out == f"hybridcalc {__version__}, mirrors SGLang 0.5.23, vLLM 0.33.0, llama.cpp b11549\n"
