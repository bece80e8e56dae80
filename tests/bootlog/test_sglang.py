"""SGLang's two allocation lines: what published logs print comes out to the digit, and nothing else comes out."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from published_boot import pools, read

from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.reader import read_log

LOGS = Path(__file__).parent.parent / "data" / "bootlogs"
EXPECTED = json.loads((LOGS / "expected.json").read_text())
KEYS = {
    "max_mamba_cache_size": "slots", "conv_gib": "conv", "ssm_gib": "ssm",
    "intermediate_ssm_gib": "intermediate_ssm", "intermediate_conv_gib": "intermediate_conv",
    "kv_tokens": "tokens", "kv_dtype": "dtype", "k_gib": "k", "v_gib": "v", "kv_gib": "kv",
}  # fmt: skip


def records(text: str) -> list[Record]:
    found: list[Record] = read(text.encode())
    return found


def figures(record: Record) -> dict[str, object]:
    """What a record says, under the keys of expected.json; what it leaves out is absent."""
    said: dict[str, object] = {}
    for key, name in KEYS.items():
        figure = record.get(name)
        if isinstance(figure, Printed):
            assert figure.unit_bytes == 2**30, "SGLang prints GB and means GiB"
            assert figure.decimals == len(figure.text.split(".")[1])
        if figure is not None:
            said[key] = figure.text if isinstance(figure, Printed) else figure
    return said | ({"rank": record.rank} if record.rank else {}) | {"line": record.line}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_published_log_yields_its_figures_and_nothing_else(name: str) -> None:
    """Every pool, in the order of the file, digit for digit, with its rank and its line; no pool that is not there."""
    assert [figures(record) for record in pools(read_log(LOGS / name))] == EXPECTED[name]


def test_the_logs_are_there() -> None:
    assert set(EXPECTED) <= {path.name for path in LOGS.glob("sgl-*.log")}


def test_a_printed_figure_is_the_interval_that_rounds_to_it() -> None:
    """13.04 GiB stands for everything from 13.035 up to, but not including, 13.045 GiB."""
    low, high = Printed("13.04", 2**30, 2).interval
    assert (low, high) == (Fraction(13035, 1000) * 2**30, Fraction(13045, 1000) * 2**30)
    assert low <= 258 * 54_263_808 < high
    assert Printed("13.04", 2**30, 2).value == Fraction(1304, 100) * 2**30


def test_a_printed_zero_has_no_negative_sizes() -> None:
    """0.00 GB is a state below 5 MiB, as a short convolution's SSM part is."""
    assert Printed("0.00", 2**30, 2).interval == (Fraction(0), Fraction(5, 1000) * 2**30)


def test_a_figure_without_decimals_is_half_a_unit_wide() -> None:
    assert Printed("13", 2**30, 0).interval == (Fraction(25, 2) * 2**30, Fraction(27, 2) * 2**30)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB ",
            {"max_mamba_cache_size": 257, "conv_gib": "0.46", "ssm_gib": "13.04"},
        ),
        ("max_mamba_cache_size: 37", {"max_mamba_cache_size": 37}),
        ("max_mamba_cache_size: 128, conv_state 0.04GB", {"max_mamba_cache_size": 128, "conv_gib": "0.04"}),
        (
            "Mamba Cache is allocated. conv_state size: 0.46 GB, ssm_state size: 13.04 GiB",
            {"conv_gib": "0.46", "ssm_gib": "13.04"},
        ),
        (
            "- `conv_state size: 0.56 GB`\n- `ssm_state size: 23.70 GB`\n- `max_mamba_cache_size: 336`",
            {"max_mamba_cache_size": 336, "conv_gib": "0.56", "ssm_gib": "23.70"},
        ),
        (
            "| max_mamba_cache_size | 336 |\n| conv_state size | 0.56 GB |\n| ssm_state size | 23.70 GB |",
            {"max_mamba_cache_size": 336, "conv_gib": "0.56", "ssm_gib": "23.70"},
        ),
        (
            "max_mamba_cache_size: 85,292, conv_state size: 1,923.05GB",
            {"max_mamba_cache_size": 85_292, "conv_gib": "1923.05"},
        ),
        ("KV Cache is allocated. K size: 21.12 GB, V size: 21.12 GB.", {"k_gib": "21.12", "v_gib": "21.12"}),
        ("SWA KV Cache is allocated. #tokens: 10, KV size: 2.50 GB", {"kv_tokens": 10, "kv_gib": "2.50"}),
        ("#tokens: 240,128, K 1.37 GB, V 1.37 GB", {"kv_tokens": 240_128, "k_gib": "1.37", "v_gib": "1.37"}),
        (
            "Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 65536, KV size: 0.84 GB, "
            "avail mem=9.10 GB",
            {"kv_tokens": 65_536, "kv_dtype": "bfloat16", "kv_gib": "0.84"},
        ),
        (
            "KV Cache is allocated. dtype: torch.float4_e2m1fn_x2, #tokens: 612620, K size: 26.29 GB, V size: 26.29 GB",
            {"kv_tokens": 612_620, "kv_dtype": "float4_e2m1fn_x2", "k_gib": "26.29", "v_gib": "26.29"},
        ),
        ("KV Cache is allocated. dtype: torch.bfloat16, #tokens: 65536", {"kv_tokens": 65_536, "kv_dtype": "bfloat16"}),
        (
            "状态池 max_mamba_cache_size\uff1a128\uff0cconv_state 0.04GB\uff0c够用",
            {"max_mamba_cache_size": 128, "conv_gib": "0.04"},
        ),
    ],
)
def test_a_line_in_any_of_its_forms_is_read(line: str, said: dict[str, object]) -> None:
    """Old and new versions, hand-shortened, reordered, as a list and as a table: one record each."""
    assert [figures(record) for record in records(line)] == [said | {"line": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "max_running_requests is capped to 200 by the mamba state cache (max_mamba_cache_size=1000, 5 state slots)",
        "Not enough GPU memory. Computed max_mamba_cache_size=-72 (total_rest_memory=-21.21 GB)",
        "max_mamba_cache_size: -72",
        "server_args=ServerArgs(max_mamba_cache_size=None, page_size=1)",
        '{"max_mamba_cache_size": 64, "page_size": 64}',
        "python -m sglang.launch_server --max-mamba-cache-size 64",
        "KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 273408, K size: 4.18 GB, V size: 4.18 GB",
        "[2026-08-13 DP0 TP1] KV Cache VA upper bound. KV size: 999.00 GB",
        'no "KV Cache is allocated" line and no "Mamba Cache is allocated" line',
        'f"Mamba Cache is allocated. max_mamba_cache_size: {size}, conv_state size: {conv / GB:.2f}GB, "\n'
        'f"ssm_state size: {ssm / GB:.2f}GB "',
        'f"KV Cache is allocated. dtype: "\nf"torch.float8_e4m3fn, #tokens: 1, K size: {gb / 2:.2f} GB"',
        '"Post-capture KV sizing: KV cache allocated. dtype: %s, #tokens: %d, KV size: %.2f GB"',
        "Mamba Cache is allocated. max_mamba_cache_size: ..., conv_state size: ..., ssm_state size: ...",
        "KV Cache is allocated. dtype: …, #tokens: N, K size: X GB, V size: Y GB",
        "#tokens: 4096",
        "#tokens: 273K, K size: big",
        "the ssm_state 4.59 GB of a pool and K 1.37 GB, V 1.37 GB besides",
        "Allocating kv hierarchical KV host pool: 3035904 tokens, 40.41 GB host memory",
        "Prefill batch, #new-seq: 1, #new-token: 8, mamba usage: 0.02",
        "ssm_state size: 1\ufffd3.04GB",
        "max_mamba_cache_size: 25\ufffd7, rest",
        "max_mamba_cache_size: 2.5, rest",
        "conv_state size: 0,46GB",
        "ssm_state size: 13.04",
    ],
)
def test_what_is_no_allocation_is_not_reported(text: str) -> None:
    """Limits, refusals, settings, reservations, source code, templates, prose and damaged figures: no record."""
    assert records(text) == []


def test_an_elided_figure_is_unknown_not_zero() -> None:
    [state, kv] = records(
        "Mamba Cache is allocated. max_mamba_cache_size: 20, conv_state ... ssm_state ...\n"
        "KV Cache is allocated. dtype: ... #tokens: ..., K size: 7.63 GB, V ..."
    )
    assert (state.kind, state.figures) == ("state_pool", (("slots", 20),))
    assert (kv.kind, kv.figures) == ("kv_pool", (("k", Printed("7.63", 2**30, 2)),))


def test_a_reservation_does_not_hide_the_allocation_after_it() -> None:
    """With post-capture sizing the address range is printed first and the real pool later."""
    [kv] = records(
        "[2026-10-05 TP0] KV Cache VA upper bound. dtype: torch.bfloat16, #tokens: 273408, KV size: 4.18 GB\n"
        "[2026-10-05 TP0] Post-capture KV sizing: KV cache allocated. dtype: torch.bfloat16, #tokens: 65536, "
        "KV size: 0.84 GB, avail mem=9.10 GB\n"
    )
    assert figures(kv) == {"kv_tokens": 65_536, "kv_dtype": "bfloat16", "kv_gib": "0.84", "rank": "TP0", "line": 2}


@pytest.mark.parametrize(
    ("before", "after", "rank"),
    [
        ("", "", ""),
        ("[2026-02-01 00:05:02] ", "", ""),
        ("[2026-02-01 00:05:02 TP0] ", "", "TP0"),
        ("[2026-02-01 00:05:02,123 PP1 TP3] ", "", "PP1 TP3"),
        ("[2026-02-01 00:05:02 DP1 TP0 EP0] ", "", "DP1 TP0 EP0"),
        ("[2026-.. DP1 TP0 EP0] ", "", "DP1 TP0 EP0"),
        ("[... TP12] ", "", "TP12"),
        ("[TP0..3] ", "", "TP0..3"),
        ("[TP0..TP3] ", "", "TP0..TP3"),
        ("[TP0]\n", "", "TP0"),
        ("[2026-02-01 00:05:02 TP0] INFO target ", "", "TP0"),
        ("", "   (TP0)", "TP0"),
        ("", " (TP1/TP2)", "TP1/TP2"),
        ("[2026-02-01 00:05:02 TP0] Load weight end. avail mem=9.26 GB\n", "", ""),
        ("[4, 1024, 128] ", " (257 slots)", ""),
    ],
)
def test_the_rank_is_the_one_printed_with_the_line(before: str, after: str, rank: str) -> None:
    """A prefix in brackets or a suffix in parentheses, never another line's."""
    [kv] = records(f"{before}KV Cache is allocated. #tokens: 333254, K size: 2.54 GB, V size: 2.54 GB{after}\n")
    assert kv.rank == rank


def test_each_rank_keeps_its_own_record_in_the_order_of_the_file() -> None:
    """Ranks may disagree, and KV may be printed before the states: nothing is merged or sorted."""
    text = (
        "[TP0] KV Cache is allocated. #tokens: 100, KV size: 1.00 GB\n"
        "[TP1] KV Cache is allocated. #tokens: 100, KV size: 1.00 GB\n"
        "[TP1] max_mamba_cache_size: 8\n[TP0] max_mamba_cache_size: 9\n"
    )
    found = [(one.kind, one.rank, one.line) for one in records(text)]
    assert found == [("kv_pool", "TP0", 1), ("kv_pool", "TP1", 2), ("state_pool", "TP1", 3), ("state_pool", "TP0", 4)]


def test_two_boots_and_a_draft_pool_stay_apart() -> None:
    """The draft's pool has the target's form; without a token count it must not take the target's."""
    target, draft = records(
        "KV Cache is allocated. dtype: fp8, #tokens: 270000, K size: 4.12 GB, V size: 4.12 GB\n"
        "KV Cache is allocated. ... K size: 1.29 GB, V size: 1.29 GB\n"
    )
    assert (target.count("tokens"), draft.count("tokens")) == (270_000, None)
    assert draft.size("k") == Printed("1.29", 2**30, 2)


def test_a_number_goes_on_behind_a_line_end_only_if_the_line_does() -> None:
    """25|7, conv_state is 257; 37 and then a line that opens with a digit is still 37."""
    assert [figures(one) for one in records("max_mamba_cache_size: 25\n7, conv_state size: 0.4\n6GB")] == [
        {"max_mamba_cache_size": 257, "conv_gib": "0.46", "line": 1}
    ]
    assert [figures(one) for one in records("max_mamba_cache_size: 37\n4 requests are running")] == [
        {"max_mamba_cache_size": 37, "line": 1}
    ]


def test_mebibytes_keep_their_unit() -> None:
    [state] = records("max_mamba_cache_size: 8, conv_state size: 3.50MB, ssm_state size: 0.10GB")
    assert state.sizes("conv", "ssm") == [Printed("3.50", 2**20, 2), Printed("0.10", 2**30, 2)]
