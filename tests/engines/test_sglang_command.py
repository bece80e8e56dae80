"""SGLang launch commands -> model and ServerArgs: real-looking lines, every flag, and what is refused word for word."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.engines.ask import read_command
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.flags import FLAG_FILES, FLAGS, OTHER_FLAGS, from_words
from hybridcalc.errors import InputError
from hybridcalc.shell import ASKS
from hybridcalc.shell.flags import Flag

from_command = partial(read_command, "sglang")

ELSEWHERE = {"env", "engine_version", "draft_kv_bytes_per_token", "max_draft_tokens", "platform", "draft_layers",
             "gpu_memory_mib", "gpu_capability", "uncounted", "names"}  # fmt: skip
SETTLED = {"speculative_num_draft_tokens"}
SPELLINGS = [(flag, spelling) for flag in FLAGS for spelling in flag.spellings]


def sample(flag: Flag) -> tuple[list[str], object]:
    """Words that give a flag a value other than its default, and that value."""
    if flag.kind == "flag":
        return [], True
    if flag.kind == "str":
        text = flag.choices[-1] if flag.choices else "trtllm"
        return [text], text.upper() if flag.field == "speculative_algorithm" else text
    if flag.kind == "float":
        return ["0.25"], 0.25
    return ["37"], 37


def problem(arguments: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        from_command(f"sglang serve m {arguments}")
    return caught.value.message, caught.value.fix


def args(arguments: str) -> ServerArgs:
    read: ServerArgs
    model, read = from_command(f"sglang serve m {arguments}")
    assert model == "m"
    return read


def test_a_script_with_everything() -> None:
    """A worker's script: variables in front, continued lines, quotes, = forms, an old name, flags no plan needs."""
    model, read = from_command(
        """
        export SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK=1
        SGLANG_MAMBA_CONV_DTYPE="float32" python3 -u -m sglang.launch_server \\
          --model-path "moonshotai/Kimi-K3" --served-model-name kimi kimi-k3 \\
          --trust-remote-code --host 0.0.0.0 --port=30000 \\
          --tensor-parallel-size 8 --dp-size=8 --enable-dp-attention \\
          --kv-cache-dtype fp8_e4m3 --page-size 64 --mem-fraction-static .85 \\
          --mamba-scheduler-strategy extra_buffer --mamba-full-memory-ratio 3.2 \\
          --max-running-requests 256 --chunked-prefill-size -1 --context-length 128Ki \\
          --json-model-override-args '{"rope_scaling": {"factor": 4}}' \\
          --speculative-algorithm eagle --speculative-num-draft-tokens 4 \\
          --model-loader-extra-config='{"enable_multithread_load": true}' 2>&1 | tee server.log
        """
    )
    assert model == "moonshotai/Kimi-K3"
    assert read == ServerArgs(
        tp_size=8,
        dp_size=8,
        enable_dp_attention=True,
        kv_cache_dtype="fp8_e4m3",
        page_size=64,
        mem_fraction_static=0.85,
        mamba_radix_cache_strategy="extra_buffer",
        mamba_full_memory_ratio=3.2,
        max_running_requests=256,
        chunked_prefill_size=-1,
        context_length=131_072,
        speculative_algorithm="EAGLE",
        speculative_num_draft_tokens=4,
        env={"SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK": "1", "SGLANG_MAMBA_CONV_DTYPE": "float32"},
    )


@pytest.mark.parametrize(
    ("text", "model"),
    [
        ("sglang serve a/b --tp 8", "a/b"),
        ("sglang serve --model-path a/b --tp 8", "a/b"),
        ("python -m sglang.launch_server --model a/b --tp 8", "a/b"),
        ("python -m dynamo.sglang --model-path=a/b --tp 8 --dyn-tool-call-parser kimi --endpoint dyn://a.b.c", "a/b"),
        ("--model-path a/b --tp 8", "a/b"),
        ("sglang serve a --model-path a/b --tp 8", "a/b"),
        ("sglang serve --tp 8", None),
    ],
)
def test_where_the_model_stands(text: str, model: str | None) -> None:
    assert from_command(text) == (model, ServerArgs(tp_size=8))


def test_server_args_reads_a_command_too() -> None:
    assert ServerArgs.from_command("A=1 sglang serve m --tp 8") == ServerArgs(tp_size=8, env={"A": "1"})


def test_absent_flags_keep_the_engine_defaults() -> None:
    """``disable_overlap_schedule`` stays None: start-up may then turn overlap off by itself."""
    read = args("")
    assert read == ServerArgs()
    assert read.disable_overlap_schedule is None and args("--disable-overlap-schedule").disable_overlap_schedule is True


@pytest.mark.parametrize(("flag", "spelling"), SPELLINGS, ids=[spelling for _, spelling in SPELLINGS])
def test_every_flag_sets_its_field_by_every_spelling(flag: Flag, spelling: str) -> None:
    value, expected = sample(flag)
    forms = [[spelling, *value]] + ([[f"{spelling}={value[0]}"]] if value else [])
    for words in forms:
        model, read = from_words(words, {})
        if flag.field == "model_path":
            assert model == expected
        elif "block-size" in spelling:
            assert read.speculative_num_draft_tokens is None  # DFLASH and DSPARK alone read it
        else:
            assert getattr(read, flag.field) == expected != getattr(ServerArgs(), flag.field)


def test_every_field_has_a_flag() -> None:
    fields = {field.name for field in dataclasses.fields(ServerArgs)}
    assert {flag.field for flag in FLAGS} == fields - ELSEWHERE | {"model_path"}


def test_the_two_lists_of_names_do_not_meet() -> None:
    spellings = [spelling for _, spelling in SPELLINGS]
    assert len(set(spellings)) == len(spellings)
    assert not OTHER_FLAGS & {*spellings, *FLAG_FILES}


@pytest.mark.parametrize("name", sorted(OTHER_FLAGS - ASKS))
def test_flags_of_the_engine_that_no_plan_needs_are_passed_over(name: str) -> None:
    """However close their names are: --linear-attn-prefill-backend is no misspelt --linear-attn-decode-backend."""
    assert args(f"{name} value --tp 2 {name}=value {name} --dp 3 {name}") == ServerArgs(tp_size=2, dp_size=3)


@pytest.mark.parametrize(
    "arguments",
    [
        "--served-model-name a b c",
        "--cuda-graph-bs 1 2 4 8",
        "--lora-paths a=b c=d",
        "--stop-at -1 -0.5 -.5",
        "--chat-template '- a b'",
        "--chat-template -",
        "--trust-remote-code stray",
        "--not-known-to-anybody 1",
        "--dyn-reasoning-parser kimi",
        "--disagg-config-key prefill",
    ],
)
def test_their_values_go_with_them(arguments: str) -> None:
    assert args(f"--tp 2 {arguments} --dp 3") == ServerArgs(tp_size=2, dp_size=3)
    assert args(f"--tp 2 --dp 3 {arguments}") == ServerArgs(tp_size=2, dp_size=3)


@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        ("--tp 8 --tp-size=4 --tensor-parallel-size 2", "tp_size", 2),
        ("--max-mamba 400", "max_mamba_cache_size", 400),
        ("--mem=0.8", "mem_fraction_static", 0.8),
        ("--disable-overlap", "disable_overlap_schedule", True),
        ("--enable-hierarchical", "enable_hierarchical_cache", True),
        ("--enable-linear-replayssm", "enable_linear_replayssm_spec", False),
        ("--chunked-prefill-size -1", "chunked_prefill_size", -1),
        ("--mamba-max-states-per-path=-1", "mamba_max_states_per_path", -1),
        ("--mamba-full-memory-ratio 1e1", "mamba_full_memory_ratio", 10.0),
        ("--context-length 8k", "context_length", 8_000),
        ("--context-length 8Ki", "context_length", 8_192),
        ("--max-total-tokens 1.5M", "max_total_tokens", 1_500_000),
        ("--max-total-tokens 1.0005k", "max_total_tokens", 1_000),
        ("--max-prefill-tokens 1Mi", "max_prefill_tokens", 2**20),
        ("--max-total-tokens 2G", "max_total_tokens", 2 * 10**9),
        ("--max-total-tokens 1Gi", "max_total_tokens", 2**30),
        ("--max-total-tokens 0.01T", "max_total_tokens", 10**10),
        ("--max-total-tokens 1Ti", "max_total_tokens", 2**40),
        ("--attention-backend fa3 --page-size 1", "attention_backend", "fa3"),
    ],
)
def test_values_are_read_as_argparse_and_the_engine_read_them(arguments: str, field: str, value: float | str) -> None:
    assert getattr(args(arguments), field) == value


def test_attention_workers_by_the_newer_flag() -> None:
    """--attn-dp-size N is --dp-size N --enable-dp-attention (SGLang arg_groups/parallel_hook.py, 0.5.23)."""
    assert args("--tp 8 --attn-dp-size 4") == args("--tp 8 --dp-size 4 --enable-dp-attention")
    assert args("--tp 8 --dp 2 --attn-dp-size 1") == ServerArgs(tp_size=8, dp_size=2)
    assert problem("--attn-dp-size 4 --dp-size 2") == (
        "--dp-size 2 beside --attn-dp-size 4: SGLang takes one of them",
        "leave out --dp-size",
    )


@pytest.mark.parametrize(
    ("arguments", "drafts"),
    [
        ("--speculative-algorithm DFLASH --speculative-dflash-block-size 16", 16),
        ("--speculative-algorithm dspark --speculative-dspark-block-size 7", 8),
        ("--speculative-algorithm DSPARK --speculative-dspark-block-size 7 --speculative-num-draft-tokens 8", 8),
        ("--speculative-algorithm EAGLE --speculative-dspark-block-size 7", None),
        ("--speculative-algorithm EAGLE --speculative-dspark-block-size 7 --speculative-num-draft-tokens 4", 4),
    ],
)
def test_block_sizes_are_draft_tokens(arguments: str, drafts: int | None) -> None:
    """DFLASH's block is D, DSPARK's D - 1 (SGLang arg_groups/speculative_hook.py, 0.5.23)."""
    assert args(arguments).speculative_num_draft_tokens == drafts


def test_a_block_size_that_contradicts_the_draft_tokens_is_refused() -> None:
    flags = "--speculative-algorithm DSPARK --speculative-dspark-block-size 7 --speculative-num-draft-tokens 7"
    assert problem(flags) == (
        "--speculative-dspark-block-size 7 makes 8 draft tokens, not 7",
        "leave out one of the two flags",
    )


@pytest.mark.parametrize(
    ("arguments", "prefill", "decode"),
    [
        ("--dsa-prefill-backend trtllm", "trtllm", None),
        ("--dsa-decode-backend tilelang --nsa-prefill-backend fa3", "fa3", "tilelang"),
    ],
)
def test_each_side_has_its_sparse_attention_backend(arguments: str, prefill: str | None, decode: str | None) -> None:
    """The engine's own two fields, and the names they had before."""
    found = args(arguments)
    assert (found.dsa_prefill_backend, found.dsa_decode_backend) == (prefill, decode)


@pytest.mark.parametrize(
    ("arguments", "message", "fix"),
    [
        ("--max-mamba-cache-sise 8", "--max-mamba-cache-sise is not a flag of SGLang", "write --max-mamba-cache-size"),
        ("--mem_fraction_static=.8", "--mem_fraction_static is not a flag of SGLang", "write --mem-fraction-static"),
        ("--disable-radixcache", "--disable-radixcache is not a flag of SGLang", "write --disable-radix-cache"),
        ("-tp 8", "-tp is not a flag of SGLang", "write --tp"),
        ("\u2013tp 8", "'\u2013tp' begins with a typographic dash", "write --tp"),
        ("\u2014tp-size=8", "'\u2014tp-size=8' begins with a typographic dash", "write --tp-size=8"),
        (
            "--speculative-num 4",
            "--speculative-num could be --speculative-num-draft-tokens, --speculative-num-steps",
            "write the flag in full",
        ),
        (
            "--enable-dp",
            "--enable-dp could be --enable-dp-attention, --enable-dp-attention-local-control-broadcast, "
            "--enable-dp-lm-head",
            "write the flag in full",
        ),
        (
            "--max",
            "--max could be --max-ep-size, --max-loaded-loras, --max-lora-chunk-size, ...",
            "write the flag in full",
        ),
        ("--tp", "--tp has no value", "write --tp and a whole number from 1 to 4,096"),
        ("--tp --dp 2", "--tp has no value", "write --tp and a whole number from 1 to 4,096"),
        ("--kv-cache-dtype", "--kv-cache-dtype has no value", "write --kv-cache-dtype and a name"),
        ("--tp=", "--tp '' is not a whole number from 1 to 4,096", ""),
        ("--tp eight", "--tp 'eight' is not a whole number from 1 to 4,096", ""),
        ("--tp 0", "--tp '0' is not a whole number from 1 to 4,096", ""),
        ("--tp -8", "--tp '-8' is not a whole number from 1 to 4,096", ""),
        ("--tp 8.0", "--tp '8.0' is not a whole number from 1 to 4,096", ""),
        (f"--tp {'9' * 99}", f"--tp '{'9' * 37}...' is not a whole number from 1 to 4,096", ""),
        ("--page-size 8k", "--page-size '8k' is not a whole number from 1 to 1,048,576", ""),
        (
            "--context-length 8K",
            "--context-length '8K' is not a whole number from 1 to 1,099,511,627,776 (8k is 8,000, 8Ki is 8,192)",
            "",
        ),
        (
            "--mamba-full-memory-ratio nan",
            "--mamba-full-memory-ratio 'nan' is not a number above 0 and at most 1,000,000",
            "",
        ),
        ("--mem-fraction-static 85", "--mem-fraction-static '85' is not a number above 0 and at most 1", ""),
        (
            "--mamba-scheduler-strategy lazy",
            "--mamba-scheduler-strategy 'lazy' is not one of auto, no_buffer, extra_buffer, extra_buffer_lazy",
            "",
        ),
        ("--mamba-ssm-dtype fp32", "--mamba-ssm-dtype 'fp32' is not one of float32, bfloat16, float16", ""),
        ("--kv-cache-dtype ''", "--kv-cache-dtype '' is not a name", ""),
        (
            "--disable-radix-cache=true",
            "--disable-radix-cache takes no value, but has 'true'",
            "write --disable-radix-cache alone",
        ),
        (
            "--disable-radix-cache true",
            "'true' after --disable-radix-cache belongs to no flag",
            "leave it out, or name its flag",
        ),
        ("--tp 8 8", "'8' after --tp belongs to no flag", "leave it out, or name its flag"),
        ("other", "'other' belongs to no flag", "leave it out, or name its flag"),
        ("-- --tp 8", "-- stands alone: SGLang takes nothing but flags", "leave it out"),
        ("--config engine.yaml", "--config names a file of flags, which is not read", "give its flags in its place"),
        ("--tp $TP", "'$TP' is a value the shell decides", "give it literally"),
        ("--tp=$TP", "'$TP' is a value the shell decides", "give it literally"),
        ("$MODEL", "'$MODEL' is a value the shell decides", "give it literally"),
        ("--port 1 $ARGS $MORE", "'$MORE' is a value the shell decides", "give it literally"),
        (
            "SGLANG_MAMBA_CONV_DTYPE=$X --tp 8",
            "'SGLANG_MAMBA_CONV_DTYPE=$X' is a value the shell decides",
            "give it literally",
        ),
        ("--tp '$TP'", "--tp '$TP' is not a whole number from 1 to 4,096", ""),
    ],
)
def test_what_is_wrong_is_said_word_by_word(arguments: str, message: str, fix: str) -> None:
    assert problem(arguments) == (message, fix)


def test_what_has_no_effect_on_memory_may_be_decided_by_the_shell() -> None:
    """Ports, hosts and variables that no plan reads."""
    model, args = from_command("PYTHONPATH=$HOME sglang serve m --host $HOST --port ${PORT:-1} --tp 8")
    assert (model, args.tp_size, args.env) == ("m", 8, {})


def test_flags_that_no_release_has_are_collected() -> None:
    """The engine would refuse them; a plan passes them over, and says so."""
    unknown: list[str] = []
    assert from_words(["m", "--totally-new", "1", "--tp", "8", "--port", "1"], {}, unknown=unknown)[1].tp_size == 8
    assert unknown == ["--totally-new"]


def test_another_engine_is_named() -> None:
    with pytest.raises(InputError) as caught:
        from_command("vllm serve m")
    assert caught.value.message == "vllm serve starts vllm, not SGLang"
    assert caught.value.fix == "give a command of python -m sglang.launch_server or sglang serve"


def test_unknown_flags_have_an_end(steps: Callable[..., Any]) -> None:
    """Each is compared with every name there is: of a hostile text of them a hundred are, and each name once."""

    def unknown(many: int) -> None:
        with pytest.raises(InputError, match=r"^more than 100 flags are unknown to SGLang\n"):
            from_words([f"--{number:040b}" for number in range(many)], {})

    assert steps(lambda: unknown(10_000)) < 100 * 10_000 + 2 * steps(lambda: unknown(101))
    assert steps(lambda: from_words(["--no-such-flag"] * 10_000 + ["--" + "x" * 200_000], {})) < 100 * 10_000


def test_importing_it_loads_no_splitter_and_no_matcher() -> None:
    script = (
        "import sys, hybridcalc.engines.sglang.flags; print(*(m for m in ('difflib', 'shlex') if m in sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


def valid(flag: Flag) -> st.SearchStrategy[tuple[Flag, list[str], object]]:
    values: st.SearchStrategy[tuple[str, Any]]
    if flag.kind in ("int", "tokens"):
        values = st.integers(flag.least, flag.most).map(lambda value: (str(value), value))
    elif flag.kind == "float":
        values = st.floats(flag.least, flag.most, exclude_min=True).map(lambda value: (repr(value), value))
    elif flag.kind == "str":
        values = st.sampled_from(flag.choices or ("a", "b/c", "d e")).map(lambda value: (value, value))
    else:
        return st.sampled_from(flag.spellings).map(lambda spelling: (flag, [spelling], True))
    return st.tuples(st.sampled_from(flag.spellings), values, st.booleans()).map(
        lambda drawn: (flag, [f"{drawn[0]}={drawn[1][0]}"] if drawn[2] else [drawn[0], drawn[1][0]], drawn[1][1])
    )


PLAIN = [flag for flag in FLAGS if flag.field not in {*SETTLED, "speculative_algorithm", "dp_size"}]


@given(st.lists(st.sampled_from(PLAIN).flatmap(valid), max_size=12))
def test_any_order_of_valid_flags_is_read_back(drawn: list[Any]) -> None:
    """The last of repeated flags wins, whichever way each is spelt."""
    expected = {flag.field: value for flag, _, value in drawn}
    model, read = from_words([word for _, words, _ in drawn for word in words], {})
    assert model == expected.pop("model_path", None)
    assert read == ServerArgs(**expected)


words = st.lists(
    st.sampled_from(
        [*(spelling for _, spelling in SPELLINGS), "--help", "--port", "--", "-", "-1", "8", "0.5", "8k", ""]
    )
    | st.sampled_from([spelling for _, spelling in SPELLINGS]).flatmap(
        lambda spelling: st.integers(2, len(spelling)).map(lambda end: spelling[:end])
    )
    | st.text(max_size=12).map("--tp=".__add__)
    | st.text(alphabet="-=tpdzemru0189.kKi$ é\u2013\n", max_size=10)
    | st.text(max_size=10),
    max_size=10,
)


@given(words, st.dictionaries(st.text(), st.text(), max_size=2))
def test_any_words_give_arguments_or_an_input_error(drawn: list[str], env: dict[str, str]) -> None:
    try:
        read = from_words(drawn, env)[1]
    except InputError as error:
        said = error.message + error.fix
    else:
        said = ""
        assert read.env == env
    assert "\n" not in said and len(said) < 400


@given(st.text() | words.map(" ".join).map("sglang serve m ".__add__) | st.text().map("sglang serve m ".__add__))
def test_any_text_gives_arguments_or_an_input_error(text: str) -> None:
    try:
        _, read = from_command(text)
    except InputError:
        return
    assert isinstance(read, ServerArgs)
