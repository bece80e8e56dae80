"""What the figures of a vLLM boot come to: from which one on a note is made, and what stands in the answer without."""

from __future__ import annotations

import pytest
from diagnosed import diagnosed

from hybridcalc.deployment import Workload

CAPACITY = "GPU KV cache size: {:,} tokens\nMaximum concurrency for {:,} tokens per request: {}x\n"
PADDED = "Setting attention block size to 544 tokens to ensure\nPadding mamba page size by {}% to ensure\n"
GRAPHS = "CUDA graph pool memory: {} GiB (actual), {} GiB (estimated)\n"


@pytest.mark.parametrize(
    ("tokens", "mean", "groups", "note"),
    [
        (10_000, "concurrency x max_model_len", None, ""),
        (10_006, "concurrency x max_model_len", None, ""),
        (9_994, "concurrency x max_model_len", None, ""),
        (10_007, "one group's share", 1.0, ""),
        (9_993, "one group's share", 1.0, ""),
        (9_524, "one group's share", 1.05, ""),
        (9_523, "one group's share", 1.05, "1.1"),
        (10_526, "one group's share", 0.95, ""),
        (10_527, "one group's share", 0.95, "0.9"),
        (2_500, "one group's share", 4.0, "4.0"),
        (1, "one group's share", 10_000.0, "10000.0"),
    ],
)
def test_tokens_are_the_capacity_or_one_groups_share_of_it(
    tokens: int, mean: str, groups: float | None, note: str
) -> None:
    """10.00 requests of 1,000 are 9,995 to 10,005 tokens, and one more or less; a group's share differs by 5 %. What is
    printed as the capacity is it, whatever the product of rounded figures.
    """
    found = diagnosed(CAPACITY.format(tokens, 1000, "10.00"))
    derived = found.derived
    assert (derived.tokens_mean, derived.groups_seen) == (mean, groups)
    assert derived.capacity_tokens == ((tokens, tokens) if groups is None else (9995, 10_005))
    told = [(one.rule, one.message) for one in found.findings]
    share = f"the {tokens:,} tokens are one group's share of the blocks: requests of 1,000 tokens hold 10,000 together"
    assert told == ([("HC140", f"{share}, {note} times as many")] if note else [])
    together = tokens if groups is None else 10_000
    assert found.meaning == f"10.00 requests of 1,000 tokens at once; {together:,} tokens together"
    assert [tuple(row) for row in found.rows] == [
        ("line 1", f"{tokens:,} tokens", "as printed, 10.00 requests of 1,000")
    ]


def test_the_capacity_of_a_model_with_states_is_not_that_of_short_requests() -> None:
    told = {
        one.rule: one.message for one in diagnosed(PADDED.format("0.50") + CAPACITY.format(990, 99, "10.00")).findings
    }
    assert told["HC140"] == (
        "the 990 tokens are 10.00 requests of 99: of shorter requests they are fewer, since each holds its states"
    )


@pytest.mark.parametrize(("padding", "much"), [("0.00", False), ("9.99", False), ("10.00", True), ("31.50", True)])
def test_pages_padded_by_a_tenth_are_padded_much(padding: str, much: bool) -> None:
    found = diagnosed(PADDED.format(padding))
    assert [(one.message, one.fix) for one in found.findings if one.rule == "HC141"] == (
        [(f"state pages are padded by {padding} %", "another tp or KV dtype changes the padding")] if much else []
    )
    assert [tuple(row) for row in found.rows] == [("line 1", "544 tokens a block", f"states padded by {padding} %")]
    assert found.meaning == "blocks of 544 tokens; the log ends before the cache was sized"
    assert [one.message for one in found.findings if one.rule == "HC107"] == [
        "none of the known models has these pages at TP 1 to 16 without draft tokens"
    ]
    alone = diagnosed(PADDED.partition("\n")[2].format(padding))
    assert alone.meaning == f"state pages padded by {padding} %" and not alone.rows


@pytest.mark.parametrize(("actual", "estimate", "idle"), [("1.00", "3.00", ""), ("1.00", "3.01", "2.01")])
def test_graphs_that_leave_more_than_two_gib_idle(actual: str, estimate: str, idle: str) -> None:
    told = [(one.rule, one.message) for one in diagnosed(GRAPHS.format(actual, estimate)).findings]
    said = f"graphs took {actual} of {estimate} GiB estimated: {idle} GiB idle"
    assert told == ([("HC142", said)] if idle else [])


@pytest.mark.parametrize(
    ("text", "meaning", "row"),
    [
        ("Model loading took 16.5557 GiB and 2.803817 seconds\n", "weights take 16.5557 GiB", None),
        ("Available KV cache memory: 3.00 GiB\n", "3.00 GiB for KV and states",
         ("line 1", "3.00 GiB", "for KV and states of one GPU")),
        ("GPU KV cache size: 5,000 tokens\n", "5,000 tokens", ("line 1", "5,000 tokens", "as printed")),
        ("Setting attention block size to 544 tokens to ensure\n",
         "blocks of 544 tokens; the log ends before the cache was sized",
         ("line 1", "544 tokens a block", "no padding line")),
        (GRAPHS.format("1.00", "2.00"), "no cache line in it", None),
    ],
)  # fmt: skip
def test_a_log_that_ends_early_is_told_by_the_last_figure_it_has(
    text: str, meaning: str, row: tuple[str, ...] | None
) -> None:
    found = diagnosed(text)
    assert found.meaning == meaning
    assert [tuple(one) for one in found.rows] == ([row] if row else [])


def test_engines_of_one_server_that_differ_are_said_to() -> None:
    line = "(EngineCore_DP{0} pid={0}) GPU KV cache size: {1:,} tokens\n"
    differ = diagnosed(line.format(0, 5000) + line.format(1, 5100))
    assert [(one.rule, one.message) for one in differ.findings] == [
        ("HC103", "engines differ in their tokens: 5000, 5100")
    ]
    assert not diagnosed(line.format(0, 5000) + line.format(1, 5000)).findings


def test_captured_batches_end_where_the_blocks_do() -> None:
    found = diagnosed(
        "Capping cudagraph capture sizes from max 512 to 90 to fit Mamba cache blocks (100 blocks available)"
    )
    assert [(one.rule, one.message, one.fix) for one in found.findings] == [
        (
            "HC143",
            "graphs reach batches of 90, not 512: there are 100 blocks",
            "more memory for the cache, or a lower --max-num-seqs",
        )
    ]


MORE = "more memory for the cache, or fp8 KV"


@pytest.mark.parametrize(
    ("concurrency", "wanted", "length", "said", "fix"),
    [
        ("10.00", 10, None, "10 requests of 1,000 tokens are wanted: 10 run at once", ""),
        ("10.00", 11, None, "11 requests of 1,000 tokens are wanted: 10 run at once",
         f"{MORE}, or a shorter --max-model-len"),
        ("10.99", 11, 999, "11 requests of 999 tokens are wanted: the blocks hold 10 at least; whether so many is not "
         "known without the model", "--model says which it is"),
        ("10.00", None, 1000, "", ""),
        ("10.00", None, 1001, "requests of 1,001 tokens are refused: max_model_len is 1,000", "--max-model-len 1001"),
    ],
)  # fmt: skip
def test_requests_are_held_against_the_printed_concurrency(
    concurrency: str, wanted: int | None, length: int | None, said: str, fix: str
) -> None:
    """Of the longest, where no model says more; a shorter max_model_len is a remedy where no length is asked for."""
    workload = Workload(((length, 1),) if length else (), wanted)
    found = diagnosed(CAPACITY.format(int(float(concurrency) * 1000), 1000, concurrency), workload=workload)
    told = [(one.message, one.fix) for one in found.findings]
    assert told == ([(said, fix)] if said else [])
    sure = "is not known" not in said
    assert [one.severity for one in found.findings] == ([("warning" if fix and sure else "note")] if said else [])


@pytest.mark.parametrize(("concurrency", "fit"), [("0.99", ""), ("1.00", "1 request"), ("2.99", "2 requests")])
def test_shorter_requests_are_at_least_as_many_as_the_longest(concurrency: str, fit: str) -> None:
    text = CAPACITY.format(int(float(concurrency) * 1000), 1000, concurrency)
    meaning = diagnosed(text, workload=Workload(((999, 1),))).meaning
    assert meaning.startswith(f"the blocks hold at least {fit} of 999 tokens; " if fit else f"{concurrency} requests")
