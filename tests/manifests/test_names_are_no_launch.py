"""A command that only speaks of an engine starts none; what it starts by another name is read."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from hybridcalc.checks.judge import judge
from hybridcalc.checks.settings import Settings
from hybridcalc.cli.plan_inputs import question
from hybridcalc.errors import InputError
from hybridcalc.manifests.find import read_file


def started(folder: Path, name: str, text: str) -> list[str]:
    """The words of every launch of a file."""
    (folder / name).write_text(text)
    contents = read_file(str(folder / name), {})
    assert contents.troubles == ()
    return [" ".join(one.words) for one in contents.deployments]


@pytest.mark.parametrize(
    "line",
    [
        'command -v llama-server || die "llama-server not found at $EXE"',
        'fail "vllm serve --max-model-len is too large"',
        "cmake --build build --target llama-server -j",
        "make llama-server",
        "systemctl restart llama-server",
        "docker rm -f llama-server",
        "docker compose up -d llama-server --wait",
        "install -m 755 build/bin/llama-server /usr/local/bin/llama-server",
        "wait_for llama-server 8080",
        "timeout 5 llama-server --version",
        "vllm serve --help=all | grep log",
        "kubectl rollout restart deploy/llama-server",
        'ln -sf "$SRC/build/bin/llama-server" "$BIN/llama-server"',
        'hdr "llama-server (launchd: $LABEL)"',
        'ok "llama-server built and linked"',
        'skip "llama-server present at $BIN"',
        'ready "vllm serve is up"',
        "docker manifest create vllm/vllm-openai:v1 vllm/vllm-openai:$TAG-x86_64 vllm/vllm-openai:$TAG-arm64 --amend",
        "docker buildx imagetools create -t vllm/vllm-openai:v1 vllm/vllm-openai:$TAG-x86_64",
        "docker network create vllm/vllm-openai",
    ],
)
def test_a_name_among_other_words_starts_nothing(tmp_path: Path, line: str) -> None:
    assert started(tmp_path, "a.sh", f"{line}\n") == []


@pytest.mark.parametrize(
    "line",
    [
        "sudo -u llama llama-server -m m.gguf -c 8",
        "numactl -N 0 llama-server -m m.gguf -c 8",
        'exec llama-server "$@" -m m.gguf -c 8',
        'run_logged "llama-server -m m.gguf -c 8"',
        "docker exec node llama-server -m m.gguf -c 8",
    ],
)
def test_words_before_a_program_may_run_it(tmp_path: Path, line: str) -> None:
    (found,) = started(tmp_path, "a.sh", f"{line}\n")
    assert found.endswith("-m m.gguf -c 8")


def test_powershell_tells_messages_and_services_from_launches(tmp_path: Path) -> None:
    text = (
        "param([string]$Path = 'C:\\llama\\llama-server.exe')\n"
        'if (-not (Test-Path $Path)) { throw "llama-server not found at $Path" }\n'
        "Get-Process llama-server -ErrorAction SilentlyContinue | Stop-Process\n"
        "& cmake.exe --build build --target llama-server *> build.log\n"
        "& $Path -m C:\\m\\a.gguf -c 8\n"
        "Start-Process -FilePath llama-server.exe -ArgumentList '-m','b.gguf','-c','9'\n"
    )
    assert started(tmp_path, "a.ps1", text) == ["-m C:\\m\\a.gguf -c 8", "-m b.gguf -c 9"]


def test_programs_of_windows_are_read(tmp_path: Path) -> None:
    text = (
        '"C:\\Program Files\\llama\\llama-server.exe" -m "D:\\AI Models\\a.gguf" -c 8\n'
        "taskkill /IM llama-server.exe /F\nif not exist llama-server.exe echo llama-server.exe -m none\n"
    )
    assert started(tmp_path, "a.bat", text) == ["-m D:\\AI Models\\a.gguf -c 8"]


@pytest.mark.parametrize(
    "path",
    [
        "/hub/models--Qwen--Qwen3.6-27B/snapshots/6d3b1a0c",
        "~/.cache/huggingface/hub/models--Qwen--Qwen3.6-27B",
        "C:\\models\\Qwen3.6-27B",
    ],
)
def test_a_path_names_its_model_as_caches_and_windows_write_it(tmp_path: Path, path: str) -> None:
    (tmp_path / "a.sh").write_text(f"vllm serve '{path}' --max-num-seqs 4\n")
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    checked = judge(one, Settings())
    assert (checked.model_preset, checked.opened) == ("qwen3.6-27b", ())


def test_a_value_that_a_variable_leaves_empty_is_unresolved(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text('M="${M:-}"\nvllm serve --model "$M" --max-num-seqs ""\n')
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    checked = judge(one, Settings())
    assert [(item.text, item.flag) for item in checked.opened] == [("$M", "--model")]
    assert ["--max-num-seqs ''" in item.finding.message for item in checked.findings] == [True]


@pytest.mark.parametrize("written", ["--max-num-seqs=${S:-}", '"--max-num-seqs=$S"', "--max-num-seqs=${1:-}"])
def test_a_value_behind_an_equals_sign_that_is_left_empty_is_unresolved(tmp_path: Path, written: str) -> None:
    (tmp_path / "a.sh").write_text(f'S="${{S:-}}"\nvllm serve nemotron-h-8b {written}\n')
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    checked = judge(one, Settings())
    value = written.strip('"').partition("=")[2]
    assert [(item.text, item.flag) for item in checked.opened] == [(value, "--max-num-seqs")]
    assert [item.finding.rule for item in checked.findings if item.finding.rule == "HC071"] == []


def test_a_value_below_zero_is_refused_once(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text("vllm serve nemotron-h-8b -tp 2 --max-num-seqs -1\n")
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    found = [item.finding.message for item in judge(one, Settings()).findings if item.finding.rule == "HC071"]
    assert len(found) == 1 and "--max-num-seqs '-1'" in found[0]


def test_blanks_behind_a_backslash_end_the_command(tmp_path: Path) -> None:
    """The flags of the next line belong to none; carriage returns and Dockerfiles forgive it."""
    text = "vllm serve nemotron-h-8b --max-num-seqs 4 \\{}\n  --max-model-len 8192\n"
    (tmp_path / "a.sh").write_text(text.format("  "))
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    assert [str(word) for word in one.words] == ["nemotron-h-8b", "--max-num-seqs", "4"]
    (found,) = [item for item in judge(one, Settings()).findings if item.finding.rule == "HC080"]
    assert (found.line, "blanks follow the backslash of line 1" in found.finding.message) == (2, True)
    for name, whole in (("b.sh", text.format("\r")), ("Dockerfile", f"FROM x\nCMD {text.format('  ')}")):
        assert started(tmp_path, name, whole) == ["nemotron-h-8b --max-num-seqs 4 --max-model-len 8192"]


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ('Environment="OPTS=--max-num-seqs 4 --enforce-eager"', "m --max-num-seqs 4 --enforce-eager"),
        ("Environment='OPTS=--max-num-seqs 4' \"B=1 2\"", "m --max-num-seqs 4"),
        ('Environment=B=1 OPTS="--max-num-seqs 4"', "m --max-num-seqs 4"),
        (r'Environment="OPTS=--x \"a\""', 'm --x "a"'),
    ],
)
def test_quotes_hold_an_assignment_of_a_unit_together(tmp_path: Path, declared: str, words: str) -> None:
    text = f"[Service]\n{declared}\nExecStart=/usr/bin/vllm serve m $OPTS\n"
    assert started(tmp_path, "a.service", text) == [words]


def test_flags_of_a_release_older_than_all_are_not_called_unknown(tmp_path: Path) -> None:
    """They may be gone since; the range that is known is said."""
    for tag, rules in (("v0.6.3", []), ("v0.33.0", ["HC071"])):
        (tmp_path / "a.sh").write_text(f"docker run vllm/vllm-openai:{tag} --model nemotron-h-8b --swap-space=4\n")
        (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
        checked = judge(one, Settings())
        assert [item.finding.rule for item in checked.findings] == rules
        assert ("older than the releases known here, 0.18.0 to" in checked.assumed_release) == (not rules)
        with pytest.raises(InputError, match="is older than the releases") if not rules else nullcontext():
            question([], ["docker", "run", f"vllm/vllm-openai:{tag}", "--model", "m"], {}, [], None, {})


@pytest.mark.parametrize(
    "text",
    [
        'S="$HOME/llama.cpp/build/bin/llama-server"\n"$S" -m ~/m/Qwen3.6-27B-Q4_K_M.gguf -c 8\n',
        'B="$DIR/bin"\nM="$MODELS/Qwen3.6-27B-Q4_K_M.gguf"\n$B/llama-server -m "$M" -c 8\n',
        "$PY -m vllm.entrypoints.openai.api_server --model $MODELS/Qwen3.6-27B --max-num-seqs 4\n",
        'M="${M:-$HOME/Qwen3.6-27B-Q4_K_M.gguf}"\nllama-server -m "$M" -c 8\n',
        'M=\'$X\\Qwen3.6-27B-Q4_K_M.gguf\'\nN="$X\\\\Qwen3.6-27B-Q4_K_M.gguf"\nllama-server -m "$N" -c 8\n',
    ],
)
def test_the_end_of_a_path_names_a_program_and_a_model(tmp_path: Path, text: str) -> None:
    """Where it begins comes from outside, and bears on nothing."""
    (tmp_path / "a.sh").write_text(text)
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    checked = judge(one, Settings())
    assert (checked.model_preset, checked.opened) == ("qwen3.6-27b", ())


def test_a_path_whose_end_names_no_model_is_unresolved(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text('vllm serve "$MODELS/current" --max-num-seqs 4\n')
    (one,) = read_file(str(tmp_path / "a.sh"), {}).deployments
    (opened,) = judge(one, Settings()).opened
    assert (opened.text, opened.why) == ("$MODELS/current", "no preset has the name of this path's last part")


def test_an_image_that_a_variable_names_stands_before_its_program(tmp_path: Path) -> None:
    """Other words that nobody knows are options of the runtime."""
    text = 'docker run --gpus 2 $OPTS "$IMAGE" python3 -m sglang.launch_server --model-path m --tp 2\n'
    assert started(tmp_path, "a.sh", text) == ["--model-path m --tp 2"]
    assert started(tmp_path, "c.sh", "docker run --name vllm $IMAGE\n") == []
    assert started(tmp_path, "b.sh", "docker run $OPTS vllm/vllm-openai --model m\n") == ["--model m"]


def test_a_program_with_flags_that_an_engine_has_too_is_none(tmp_path: Path) -> None:
    """In the Dockerfile that a service builds, where nothing names an engine."""
    (tmp_path / "Dockerfile").write_text('FROM x\nCMD ["gunicorn", "-b", "a", "--threads", "4", "--timeout", "9"]\n')
    text = "services:\n  a:\n    build: .\n    environment: {A: llama-server}\n    env_file: x\n"
    assert started(tmp_path, "compose.yaml", text) == []
    text = "services:\n  a: {image: x, command: [gunicorn, --threads, '4', --timeout, '9']} # llama-server\n"
    assert started(tmp_path, "compose.yaml", text) == []
    text = "services:\n  a: {image: x, command: [-m, a.gguf, --threads, '4', --timeout, '9']} # llama-server\n"
    assert started(tmp_path, "compose.yaml", text) == ["-m a.gguf --threads 4 --timeout 9"]


@pytest.mark.parametrize("field", ["labels: {app: llama-server}", "selector: {matchLabels: {app: llama-server}}"])
def test_a_label_starts_nothing(tmp_path: Path, field: str) -> None:
    text = f"kind: Service\nmetadata: {{name: s}}\nspec:\n  {field}\n  run: llama-server -m m.gguf -c 8\n"
    assert started(tmp_path, "a.yaml", text) == ["-m m.gguf -c 8"]


def test_a_text_in_quotes_is_a_value_to_powershell_unless_it_is_called(tmp_path: Path) -> None:
    text = "$name = if ($x) { 'whisper' } else { 'llama-server' }\n& 'llama-server' -m m.gguf -c 8\n"
    assert started(tmp_path, "a.ps1", text) == ["-m m.gguf -c 8"]


def test_a_variable_named_for_an_image_is_one_behind_options_nobody_knows(tmp_path: Path) -> None:
    text = (
        "if ask; then IMAGE=a; else IMAGE=b; fi\n"
        'docker run ${TOKEN:+-e "TOKEN=$TOKEN"} -e A=1 --entrypoint vllm "$IMAGE" serve org/m --max-num-seqs 4\n'
    )
    assert started(tmp_path, "a.sh", text) == ["org/m --max-num-seqs 4"]
