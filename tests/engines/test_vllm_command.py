"""vLLM launch commands -> model and EngineArgs: real-looking lines, every flag, and what is refused word for word."""

import dataclasses
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from hybridcalc.engines.ask import read_command
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.flags import FLAG_FILES, FLAGS, OTHER_FLAGS, from_words
from hybridcalc.errors import InputError
from hybridcalc.shell import ASKS
from hybridcalc.shell.flags import Flag

from_command = partial(read_command, "vllm")

ELSEWHERE = {"env", "engine_version", "gpu_capability", "gpu_memory_gib", "draft_layers", "rocm", "command_line",
             "uncounted", "names"}  # fmt: skip
JOINED = {"model", "method", "num_speculative_tokens", "speculative_config"}
LOWERED = {"mamba_backend", "gdn_prefill_backend", "kda_prefill_backend"}
SPELLINGS = [(flag, spelling) for flag in FLAGS for spelling in flag.spellings]


def args(arguments: str) -> EngineArgs:
    read: EngineArgs
    model, read = from_command(f"vllm serve m {arguments}")
    assert model == "m"
    return read


def problem(arguments: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        from_command(f"vllm serve m {arguments}")
    return caught.value.message, caught.value.fix


def sample(flag: Flag) -> tuple[list[str], object]:
    """Words that give a flag a value other than its default, and that value."""
    if flag.kind == "switch":
        return [], True
    if flag.kind == "json":
        return ['{"num_speculative_tokens": 3}'], {"num_speculative_tokens": 3}
    if flag.kind == "str":
        text = flag.choices[-1] if flag.choices else "flashinfer"
        return [text], {"float32": "float32"}.get(text, text)
    return (["0.25"], 0.25) if flag.kind == "float" else (["37"], 37)


def test_a_script_with_everything() -> None:
    """A worker's script: a variable in front, continued lines, quotes, = forms, dotted names, flags no plan needs."""
    model, read = from_command(
        """
        export VLLM_SSM_CONV_STATE_LAYOUT=DS
        VLLM_USE_V2_MODEL_RUNNER="0" vllm serve "nvidia/Nemotron-H-8B" --served-model-name nemo \\
          --trust-remote-code --host 0.0.0.0 --port=8000 -tp 2 -dcp 2 --dtype=half \\
          --max_model_len 128K --max-num-batched-tokens 8k --kv-cache-dtype fp8 --gpu-memory-utilization .9 \\
          --enable-prefix-caching --no-enable-chunked-prefill --mamba-ssm-cache-dtype bfloat16 \\
          --speculative-config.method ngram --speculative_config.num_speculative_tokens=3 \\
          --limit-mm-per-prompt '{"image": 2}' --compilation-config '{"cudagraph_mode": "PIECEWISE"}' \\
          --block-size 32 --max-num-seqs 64 2>&1 | tee server.log
        """
    )
    assert model == "nvidia/Nemotron-H-8B"
    assert read == EngineArgs(
        tensor_parallel_size=2,
        decode_context_parallel_size=2,
        dtype="float16",
        max_model_len=131_072,
        max_num_batched_tokens=8000,
        kv_cache_dtype="fp8",
        gpu_memory_utilization=0.9,
        enable_prefix_caching=True,
        enable_chunked_prefill=False,
        mamba_ssm_cache_dtype="bfloat16",
        block_size=32,
        max_num_seqs=64,
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        compilation_config={"cudagraph_mode": "PIECEWISE"},
        env={"VLLM_SSM_CONV_STATE_LAYOUT": "DS", "VLLM_USE_V2_MODEL_RUNNER": "0"},
    )
    assert (read.num_speculative_tokens, read.full_graphs) == (3, False)


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("vllm serve a/b -tp 8", "a/b"),
        ("vllm serve --model a/b -tp 8", "a/b"),
        ("python -m vllm.entrypoints.openai.api_server --model a/b -tp 8", "a/b"),
        ("python3.12 -m vllm.entrypoints.openai.api_server --model=a/b -tp 8", "a/b"),
        ("python -m dynamo.vllm --model=a/b -tp 8", "a/b"),
        ("--model a/b -tp=8", "a/b"),
        ("vllm serve -tp 8", None),
    ],
)
def test_where_the_model_stands(text: str, model: str | None) -> None:
    assert from_command(text) == (model, EngineArgs(tensor_parallel_size=8))


def test_engine_args_reads_a_command_too() -> None:
    assert EngineArgs.from_command("A=1 vllm serve m -tp 8") == EngineArgs(tensor_parallel_size=8, env={"A": "1"})


def test_absent_flags_keep_the_engine_defaults() -> None:
    """0.92 of the memory, no block size, prefix caching left to the model."""
    read = args("")
    assert read == EngineArgs()
    assert (read.utilization, read.block_size, read.enable_prefix_caching) == (0.92, None, None)


@pytest.mark.parametrize(("flag", "spelling"), SPELLINGS, ids=[spelling for _, spelling in SPELLINGS])
def test_every_flag_sets_its_field_by_every_spelling(flag: Flag, spelling: str) -> None:
    """With a space and with =, with dashes and with underscores."""
    value, expected = sample(flag)
    under = spelling[:2] + spelling[2:].replace("-", "_")
    forms = [[name, *value] for name in (spelling, under)] + ([[f"{spelling}={value[0]}"]] if value else [])
    for words in forms:
        model, read = from_words(words, {})
        if flag.field == "model":
            assert model == expected
        elif flag.field == "method":
            assert read.speculative_method == expected
        else:
            assert getattr(read, flag.field) == expected != getattr(EngineArgs(), flag.field)


SWITCHES = [(flag, name) for flag, name in SPELLINGS if flag.kind == "switch" and name.startswith("--")]


@pytest.mark.parametrize(("flag", "spelling"), SWITCHES, ids=[spelling for _, spelling in SWITCHES])
def test_every_switch_has_a_no_form(flag: Flag, spelling: str) -> None:
    """The last of both wins."""
    off = "--no-" + spelling.removeprefix("--")
    for words, expected in (
        ([off], False),
        ([spelling, off], False),
        ([off, spelling], True),
        ([off.replace("-", "_").replace("__", "--", 1)], False),
    ):
        assert getattr(from_words(words, {})[1], flag.field) is expected


def test_every_field_has_a_flag() -> None:
    fields = {field.name for field in dataclasses.fields(EngineArgs)}
    assert {flag.field for flag in FLAGS} == fields - ELSEWHERE | {"model", "method"}


def test_the_two_lists_of_names_do_not_meet() -> None:
    spellings = [spelling for _, spelling in SPELLINGS]
    assert len(set(spellings)) == len(spellings)
    assert not OTHER_FLAGS & {*spellings, *FLAG_FILES}


@pytest.mark.parametrize("name", sorted(OTHER_FLAGS - ASKS))
def test_flags_of_the_engine_that_no_plan_needs_are_passed_over(name: str) -> None:
    """However close their names are, and with whatever stands behind them."""
    read = args(f"{name} value -tp 2 {name}=value {name} -dp 3 {name}")
    assert read == EngineArgs(tensor_parallel_size=2, data_parallel_size=3)


@pytest.mark.parametrize(
    "arguments",
    [
        "--served-model-name a b c",
        '--reasoning-config \'{"publisher": "zmq"}\'',
        "--limit-mm-per-prompt.image 3",
        "--allowed-origins '[\"*\"]'",
        "--no-trust-remote-code",
        "--not-known-to-anybody 1",
        "--kernel-config.enable_x=true",
    ],
)
def test_their_values_go_with_them(arguments: str) -> None:
    for line in (f"-tp 2 {arguments} -dp 3", f"-tp 2 -dp 3 {arguments}"):
        assert args(line) == EngineArgs(tensor_parallel_size=2, data_parallel_size=3)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ("-tp 8 --tensor-parallel-size=4 --tensor_parallel_size 2", "tensor_parallel_size", 2),
        ("--max-model-len 1k", "max_model_len", 1_000),
        ("--max-model-len 1K", "max_model_len", 1_024),
        ("--max-model-len 1m", "max_model_len", 1_000_000),
        ("--max-model-len 1M", "max_model_len", 1_048_576),
        ("--max-model-len 25.6k", "max_model_len", 25_600),
        ("--max-model-len -1", "max_model_len", -1),
        ("--max-model-len auto", "max_model_len", -1),
        ("--max-num-batched-tokens 8K", "max_num_batched_tokens", 8_192),
        ("--kv-cache-memory-bytes 40G", "kv_cache_memory_bytes", 40 * 2**30),
        ("--kv-cache-memory-bytes 40g", "kv_cache_memory_bytes", 40 * 10**9),
        ("--dtype half", "dtype", "float16"),
        ("--dtype float", "dtype", "float32"),
        ("--max-num-seqs=7", "max_num_seqs", 7),
        ("--mamba-backend FlashInfer", "mamba_backend", "flashinfer"),
        ("--gdn-prefill-backend TRITON", "gdn_prefill_backend", "triton"),
        ("--device-memory-utilization 0.5", "gpu_memory_utilization", 0.5),
        ("--prefix-cache-retention-interval 0", "prefix_cache_retention_interval", 0),
        ("--mamba-cache-m align", "mamba_cache_mode", "align"),
        ("--no-enable-prefix", "enable_prefix_caching", False),
        ("--no-enable-chunked", "enable_chunked_prefill", False),
        ("--disable-prefix-caching", "enable_prefix_caching", False),
    ],
)
def test_values_are_read_as_argparse_and_the_engine_read_them(arguments: str, field: str, value: float | str) -> None:
    """human_readable_int: a small letter is decimal, a capital is binary (vLLM engine/arg_utils.py)."""
    assert getattr(args(arguments), field) == value


@pytest.mark.parametrize(
    "arguments",
    [
        """--speculative-config '{"method": "mtp", "num_speculative_tokens": 3}'""",
        """-sc '{"method": "mtp", "num_speculative_tokens": 3}'""",
        "--speculative-config.method mtp --speculative-config.num_speculative_tokens 3",
        "--speculative_config.method=mtp --speculative-config.num_speculative_tokens=3",
        "-sc.method mtp -sc.num_speculative_tokens 3",
        "--spec-method mtp --spec-tokens 3",
        """--speculative-config '{"method": "mtp"}' --spec-tokens 3""",
    ],
)
def test_drafts_in_every_form(arguments: str) -> None:
    read = args(arguments)
    assert read.speculative_config == {"method": "mtp", "num_speculative_tokens": 3}
    assert (read.speculative_method, read.num_speculative_tokens) == ("mtp", 3)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ("--hf-overrides.text_config.num_hidden_layers 4", "hf_overrides", {"text_config": {"num_hidden_layers": 4}}),
        ("--hf-overrides.a.b x --hf-overrides.a.c 2.5", "hf_overrides", {"a": {"b": "x", "c": 2.5}}),
        ("--hf-overrides.a 1 --hf-overrides.a.b 2", "hf_overrides", {"a": {"b": 2}}),
        ("--additional-config.gdn_prefill_backend triton", "additional_config", {"gdn_prefill_backend": "triton"}),
        ("-cc.cudagraph_mode NONE", "compilation_config", {"cudagraph_mode": "NONE"}),
        ("-ac.x '[1, 2]'", "additional_config", {"x": [1, 2]}),
        ("-ac.x 8K", "additional_config", {"x": 8192}),
    ],
)
def test_dotted_names_fill_a_json_value(arguments: str, field: str, value: dict[str, Any]) -> None:
    assert getattr(args(arguments), field) == value


@pytest.mark.parametrize(
    ("arguments", "full"),
    [
        ("", True),
        ("--enforce-eager", False),
        ("--no-enforce-eager", True),
        ("-cc.cudagraph_mode PIECEWISE", False),
        ("-cc.cudagraph_mode FULL_DECODE_ONLY", True),
        ("-cc.cudagraph_mode none", False),
        ("-cc.level 3", True),
    ],
)
def test_full_graphs_unless_told_otherwise(arguments: str, full: bool) -> None:
    assert args(arguments).full_graphs is full


TP = "a whole number from 1 to 4,096"


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ("--max-model-length 8", "--max-model-length is not a flag of vLLM", "write --max-model-len"),
        ("--max_num_seq_s 8", "--max-num-seq-s is not a flag of vLLM", "write --max-num-seqs"),
        ("--enable-prefix-cachng", "--enable-prefix-cachng is not a flag of vLLM", "write --enable-prefix-caching"),
        (
            "--no-enable-prefix-cachng",
            "--no-enable-prefix-cachng is not a flag of vLLM",
            "write --no-enable-prefix-caching",
        ),
        ("\u2013tp 8", "'\u2013tp' begins with a typographic dash", "write --tp"),
        (
            "--max-num 8",
            "--max-num could be --max-num-active-seqs, --max-num-batched-tokens, --max-num-partial-prefills, ...",
            "write the flag in full",
        ),
        ("-tp", "-tp has no value", f"write -tp and {TP}"),
        ("--kv-cache-dtype", "--kv-cache-dtype has no value", "write --kv-cache-dtype and a name"),
        ("-tp=", f"-tp '' is not {TP}", ""),
        ("-tp eight", f"-tp 'eight' is not {TP}", ""),
        ("-tp 0", f"-tp '0' is not {TP}", ""),
        ("--block-size 8k", "--block-size '8k' is not a whole number from 1 to 1,048,576", ""),
        (
            "--max-model-len 1.5K",
            "--max-model-len '1.5K' is not a whole number from -1 to 1,099,511,627,776 (8k is 8,000, 8K is 8,192)",
            "",
        ),
        (
            "--max-model-len 8Ki",
            "--max-model-len '8Ki' is not a whole number from -1 to 1,099,511,627,776 (8k is 8,000, 8K is 8,192)",
            "",
        ),
        ("--gpu-memory-utilization 92", "--gpu-memory-utilization '92' is not a number above 0 and at most 1", ""),
        ("--mamba-cache-mode lazy", "--mamba-cache-mode 'lazy' is not one of all, align, none", ""),
        (
            "--mamba-ssm-cache-dtype fp8",
            "--mamba-ssm-cache-dtype 'fp8' is not one of auto, float32, bfloat16, float16",
            "",
        ),
        ("--speculative-config mtp", '--speculative-config \'mtp\' is not a JSON object, as {"method": "mtp"}', ""),
        ("--speculative-config '[1]'", '--speculative-config \'[1]\' is not a JSON object, as {"method": "mtp"}', ""),
        (
            "--speculative-config.num_speculative_tokens many",
            "--speculative-config: num_speculative_tokens 'many' is not a whole number from 1 to 1,024",
            "",
        ),
        (
            "--speculative-config.num_speculative_tokens 0",
            "--speculative-config: num_speculative_tokens 0 is not a whole number from 1 to 1,024",
            "",
        ),
        (
            "--speculative-config.num_speculative_tokens true",
            "--speculative-config: num_speculative_tokens True is not a whole number from 1 to 1,024",
            "",
        ),
        ("--speculative-config.method", "'--speculative-config.method' has no value", "write it after the name"),
        ("--enforce-eager=true", "--enforce-eager takes no value, but has 'true'", "write --enforce-eager alone"),
        ("--enforce-eager true", "'true' after --enforce-eager belongs to no flag", "leave it out, or name its flag"),
        ("-tp 8 8", "'8' after -tp belongs to no flag", "leave it out, or name its flag"),
        ("-- -tp 8", "-- stands alone: vLLM takes nothing but flags", "leave it out"),
        ("--config engine.yaml", "--config names a file of flags, which is not read", "give its flags in its place"),
        ("-tp $TP", "'$TP' is a value the shell decides", "give it literally"),
        ("--speculative-config.method $M", "'$M' is a value the shell decides", "give it literally"),
        ("$MODEL", "'$MODEL' is a value the shell decides", "give it literally"),
        ("VLLM_KV_CACHE_LAYOUT=$X", "'VLLM_KV_CACHE_LAYOUT=$X' is a value the shell decides", "give it literally"),
    ],
)
def test_what_is_wrong_is_said_word_by_word(arguments: str, message: str, fix: str) -> None:
    if arguments.startswith("VLLM_"):
        with pytest.raises(InputError) as caught:
            from_command(f"{arguments} vllm serve m")
        assert (caught.value.message, caught.value.fix) == (message, fix)
    else:
        assert problem(arguments) == (message, fix)


def test_what_has_no_effect_on_memory_may_be_decided_by_the_shell() -> None:
    """Ports, hosts and variables that no plan reads."""
    model, read = from_command("HF_HOME=$HOME vllm serve m --host $HOST --port ${PORT:-1} -tp 8")
    assert (model, read) == ("m", EngineArgs(tensor_parallel_size=8))


def test_flags_that_no_release_has_are_collected() -> None:
    """The engine would refuse them; a plan passes them over, and says so."""
    unknown: list[str] = []
    words = ["m", "--totally-new", "1", "-tp", "8", "--port", "1"]
    assert from_words(words, {}, unknown=unknown)[1].tensor_parallel_size == 8
    assert unknown == ["--totally-new"]


def test_another_engine_is_named() -> None:
    with pytest.raises(InputError) as caught:
        from_command("sglang serve m")
    assert caught.value.message == "sglang serve starts sglang, not vLLM"
    assert caught.value.fix == "give a command of vllm serve or python -m vllm.entrypoints.openai.api_server"


def test_importing_it_loads_no_splitter_and_no_matcher() -> None:
    script = "import sys, hybridcalc.engines.vllm.flags; print(*(m for m in ('difflib', 'shlex') if m in sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


@pytest.mark.parametrize(
    ("unit", "bytes_of_one"),
    [("k", 10**3), ("m", 10**6), ("g", 10**9), ("t", 10**12), ("K", 2**10), ("M", 2**20), ("G", 2**30), ("T", 2**40)],
)
def test_a_unit_in_small_letters_is_decimal_and_in_large_ones_binary(unit: str, bytes_of_one: int) -> None:
    assert args(f"--kv-cache-memory-bytes 3{unit}").kv_cache_memory_bytes == 3 * bytes_of_one
