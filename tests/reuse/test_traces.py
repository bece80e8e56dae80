"""Recorded requests: every form a line may have, streamed, and what is refused with file and line."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hybridcalc.errors import InputError
from hybridcalc.formulas import Strategy
from hybridcalc.reuse import forms, reading, traces
from hybridcalc.reuse.sglang import sglang_policy
from hybridcalc.reuse.simulation import Setup, simulate
from hybridcalc.reuse.traces import read_trace
from hybridcalc.reuse.workloads import parse_workload

DATA = Path(__file__).parent.parent / "data" / "traces"
HASHED = [
    {"timestamp": 0, "input_length": 1300, "output_length": 40, "hash_ids": [1, 2, 3]},
    {"timestamp": 1, "input_length": 1536, "output_length": 7, "hash_ids": [1, 2, 9]},
    {"timestamp": 2, "input_length": 1300, "output_length": 1, "hash_ids": [1, 2, 3]},
]


def written(tmp_path: Path, lines: Sequence[Any] | str, name: str = "trace.jsonl") -> str:
    path = tmp_path / name
    text = lines if isinstance(lines, str) else "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_block_hashes_are_runs_of_512_tokens(tmp_path: Path) -> None:
    first, second, third = read_trace(written(tmp_path, HASHED)).stream()
    assert (first.ids[:3], first.ends, first.prompt) == ((1, 2, 3), (512, 1024, 1300, 1340), 1300)
    assert (second.ends, second.prompt) == ((512, 1024, 1536, 1543), 1536)
    assert third.ids[:3] == first.ids[:3]
    assert third.ids[3] != first.ids[3]


def test_what_hashes_share_is_reused(tmp_path: Path) -> None:
    """The second shares 1,024 tokens and finds no state there; the third is the first again: 1,280 on the grid."""
    outcome = simulate(read_trace(written(tmp_path, HASHED)), Setup(sglang_policy(), 16))
    assert (outcome.requests, outcome.hits, outcome.hit_tokens) == (3, 1, 1280)


def test_token_ids_agree_token_by_token(tmp_path: Path) -> None:
    lines = [
        {"prompt_token_ids": list(range(200)), "output_token_ids": [900] * 100},
        {"token_ids": [*range(200), *[900] * 80, 7], "output_length": 3},
    ]
    first, second = read_trace(written(tmp_path, lines)).stream()
    assert (first.prompt, first.ends[-1], second.prompt, second.ends[-1]) == (200, 300, 281, 284)
    cache = Setup(sglang_policy(track_interval=64), 8).cache()
    assert [cache.serve(first), cache.serve(second)] == [0, 256]
    assert sorted(node.depth for node in cache.states) == [192, 256]


def test_conversations_are_a_request_for_each_answer(tmp_path: Path) -> None:
    talk = [
        {"from": "human", "value": "x" * 400},
        {"from": "gpt", "value": "y" * 41},
        {"from": "human", "tokens": 30},
        {"from": "gpt", "tokens": 5},
    ]
    first, second = read_trace(written(tmp_path, [{"id": "a", "conversations": talk}])).stream()
    assert (first.prompt, first.ends[-1]) == (100, 111)
    assert (second.prompt, second.ends[-1]) == (141, 146)
    assert second.ids[:2] == first.ids


def test_conversations_take_turns_and_only_some_are_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two open, the second turn of the first comes before anything of the third."""
    monkeypatch.setattr(traces, "OPEN_CONVERSATIONS", 2)
    talk = [{"from": "human", "tokens": 9}, {"from": "gpt", "tokens": 5}] * 2
    stream = list(read_trace(written(tmp_path, [{"conversations": talk}] * 3)).stream())
    starts = [request.ids[0] for request in stream]
    assert len(stream) == 6
    assert starts[0] == starts[2] != starts[1]


def test_a_json_array_is_read_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_READ", 7)
    assert len(list(read_trace(written(tmp_path, "\n " + json.dumps(HASHED, indent=1) + "\n")).stream())) == 3


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('{"hash_ids": [1], "input_length": 5}\n{oops\n', ":2: this is not JSON"),
        ("[1]", ":1: a request is a JSON object"),
        ('{"a": 1}', ":1: neither hash_ids, token ids, texts, conversations nor lengths"),
        ('\n\n{"hash_ids": [], "input_length": 5}', ":3: hash_ids is no list with something in it"),
        ('{"hash_ids": [1, 2], "input_length": 512}', ":1: 2 hashes of 512 tokens are more than input_length 512"),
        ('{"hash_ids": [[1]], "input_length": 5}', ":1: hash_ids holds something else than numbers and strings"),
        ('{"hash_ids": [1], "input_length": -5}', ":1: input_length -5 is no usable number of tokens"),
        ('{"hash_ids": [1], "input_length": true}', ":1: input_length True is no usable number of tokens"),
        ('{"token_ids": [1], "output_length": 1e9}', ":1: output_length 1000000000.0 is no usable number of tokens"),
        ('{"conversations": [3]}', ":1: a turn of a conversation is an object"),
        ('[{"hash_ids": [1], "input_length": 5},\n {"hash', ":2: this is not JSON, or it is cut off"),
        (
            '[{"hash_ids": [1]}]\n[{"hash_ids": [1]}, {"hash_ids": [1]}]',
            ":2: something stands behind the end of the array",
        ),
        ('[{"hash_ids": [1]}] garbage', ":1: something stands behind the end of the array"),
        ('[{"hash_ids": [1]}\n{"hash_ids": [1]}]', ":2: this is not JSON: '{' where a comma or ] belongs"),
        ('[{"hash_ids": [1]},\n,{"hash_ids": [1]}]', ":2: this is not JSON: Expecting value"),
        ('[{"hash_ids": [1]},]', ":1: this is not JSON"),
        ('[,{"hash_ids": [1]}]', ":1: this is not JSON: Expecting value"),
        ('[{"hash_ids": [1]}', ":1: this is not JSON: it is cut off: a comma or ] belongs"),
        ('[{"hash_ids": [1]}, {"hash_ids": [1 2], "more": [' + "1," * 50 + "1]}]", ":1: this is not JSON: Expect"),
        ('{\n "hash_ids": [1]\n}', ":1: this is not JSON: Expecting property name"),
        ('{"hash_ids": [1], "hash_ids": [2]}', ":1: this is not JSON: 'hash_ids' is there twice"),
        ('[{"hash_ids": [1], "hash_ids": [2]}]', ":1: this is not JSON: 'hash_ids' is there twice"),
        ('{"hash_ids": [true, 1]}', ":1: hash_ids holds something else than numbers and strings"),
        ('{"token_ids": [1], "output_token_ids": 3}', ":1: output_token_ids is no list"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ("", ": no request in it"),
    ],
)
def test_what_cannot_be_read_is_named_with_file_and_line(tmp_path: Path, lines: str, message: str) -> None:
    path = written(tmp_path, lines)
    with pytest.raises(InputError) as refused:
        list(read_trace(path).stream())
    assert message in refused.value.message
    assert "trace.jsonl" in refused.value.message


def test_long_lines_are_refused_before_they_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LARGEST_OBJECT", 1000)
    monkeypatch.setattr(reading, "_READ", 100)
    for text in ("{" + " " * 2000, "[{" + " " * 2000, '[{"hash_ids": [' + "1," * 700 + "1]}]"):
        with pytest.raises(InputError, match="more than 1,000 characters"):
            read_trace(written(tmp_path, text))


def test_arrays_are_read_in_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Any) -> None:
    """Many small objects, and one that is a million tokens long: each time more is read, twice as much."""
    monkeypatch.setattr(reading, "_READ", 1_000)
    reads, more = 0, reading._Text.more

    def counted(self: Any) -> Any:
        nonlocal reads
        reads += 1
        return more(self)

    monkeypatch.setattr(reading._Text, "more", counted)
    many = read_trace(written(tmp_path, "[" + ",".join(['{"hash_ids":[1]}'] * 5_000) + "]", "many.json"))
    long = read_trace(written(tmp_path, '[{"token_ids":[' + "7," * 1_000_000 + "7]}]", "long.json"))
    assert sum(1 for _ in many.stream()) == 5_000
    assert steps(lambda: list(many.stream())) < 100 * 5_000
    reads = 0
    assert [request.prompt for request in long.stream()] == [1_000_001]
    assert reads < 20


def test_what_one_object_holds_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forms, "MOST_RUNS", 9)
    monkeypatch.setattr(forms, "MOST_TURNS", 3)
    for item, message in (
        ({"token_ids": [1] * 10}, "token_ids holds 10; at most 9 are simulated"),
        ({"conversations": [{"from": "gpt"}] * 4}, "a conversation of 4 turns; at most 3 are simulated"),
    ):
        with pytest.raises(InputError, match=message):
            read_trace(written(tmp_path, [item]))


def test_a_packed_trace_is_read_as_it_is_and_one_that_is_cut_is_refused(tmp_path: Path) -> None:
    plain = written(tmp_path, HASHED * 50)
    packed = tmp_path / "trace.jsonl.gz"
    packed.write_bytes(gzip.compress(Path(plain).read_bytes()))
    assert len(list(read_trace(str(packed)).stream())) == 150
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(InputError, match="cannot be read to its end"):
        list(read_trace(str(packed)).stream())


def test_what_is_no_regular_file_is_said_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for name in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(InputError, match="is no regular file: a trace is read more than once"):
            read_trace(str(name))


def test_an_answer_may_be_empty_and_a_turn_in_parts(tmp_path: Path) -> None:
    (request,) = read_trace(written(tmp_path, [{"token_ids": [1, 2], "output_token_ids": []}])).stream()
    assert (request.prompt, request.ends) == (2, (1, 2))
    talk = [
        {"role": "user", "content": [{"type": "text", "text": "x" * 40}, "y" * 40, {"type": "image_url"}]},
        {"role": "assistant", "content": "z" * 8},
    ]
    (request,) = read_trace(written(tmp_path, [{"conversations": talk}])).stream()
    assert (request.prompt, request.ends[-1]) == (20, 22)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputError, match="is no trace: no such file"):
        read_trace("no/such.jsonl")


@pytest.mark.parametrize(
    ("name", "prompts", "totals"),
    [
        ("mooncake.jsonl", [1300, 1536, 1800], [1340, 1543, 1812]),
        ("qwen-bailian.jsonl", [70, 40, 130], [96, 49, 162]),
        ("azure-2024.csv", [2162, 2399, 76], [2167, 2405, 91]),
        ("burstgpt-1.csv", [472, 1087, 417], [490, 1317, 693]),
        ("burstgpt-3.csv", [906, 36, 1400, 300, 200], [1352, 36, 1461, 320, 261]),
        ("sharegpt.json", [9, 2, 29], [25, 8, 33]),
        ("sglang-bench.jsonl", [1000, 700, 500], [1060, 750, 540]),
        ("vllm-bench.json", [512, 388], [560, 436]),
        ("vllm-custom.jsonl", [32, 32], [72, 62]),
        ("vllm-multi-turn.json", [4, 11], [7, 15]),
        ("openai-batch.jsonl", [107, 107], [107, 107]),
        ("sglang-agents.json", [7382, 8489, 9400, 1200], [7602, 8709, 9620, 1420]),
    ],
)
def test_published_forms_are_read(name: str, prompts: list[int], totals: list[int]) -> None:
    """Small files in the forms in which traces are published and benchmarks write theirs."""
    requests = list(read_trace(str(DATA / name)).stream())
    assert sorted(request.prompt for request in requests) == sorted(prompts)
    assert sorted(request.ends[-1] for request in requests) == sorted(totals)


@pytest.mark.parametrize(
    ("name", "shared"),
    [
        ("mooncake.jsonl", [0, 1024, 1536]),
        ("qwen-bailian.jsonl", [0, 32, 64]),
        ("azure-2024.csv", [0, 0, 0]),
        ("burstgpt-3.csv", [0, 0, 1351, 0, 0]),
        ("vllm-custom.jsonl", [0, 16]),
        ("vllm-multi-turn.json", [0, 6]),
        ("openai-batch.jsonl", [0, 100]),
        ("sglang-agents.json", [0, 0, 7601, 8708]),
    ],
)
def test_what_published_forms_share_is_found(name: str, shared: list[int]) -> None:
    """Tokens of each prompt that requests before it have brought; the last of an answer is never fed back."""
    cache = Setup(sglang_policy(Strategy.NO_BUFFER), 64).cache()
    found = []
    for ids, ends, prompt, *_ in read_trace(str(DATA / name)).stream():
        found.append(cache.tree.match(ids, ends, prompt - 1)[0].depth)
        cache.pass_through(ids, ends, prompt)
    assert found == shared


def test_lengths_alone_are_said_to_share_nothing() -> None:
    assert "records lengths alone" in read_trace(str(DATA / "azure-2024.csv")).note
    assert "is taken to begin with all it said before" in read_trace(str(DATA / "burstgpt-3.csv")).note
    assert read_trace(str(DATA / "mooncake.jsonl")).note == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024,5\n", ":2: 2 columns; the header has 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024,x,5\n", ":2: contexttokens x is no usable number of tokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2024,-3,5\n", ":2: contexttokens -3 is no usable number"),
        ("time,size\n1,2\n", ":2: neither hash_ids, token ids, texts, conversations nor lengths"),
        ("garbage\n", ":1: neither JSON nor the header of a CSV file"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", ": no request in it"),
        ('{"input_lens": [1, 2], "output_lens": [1]}', ":1: output_lens and input_lens are not equally many"),
        ('{"prompt": 3}', ":1: prompt is no text"),
        ('{"body": 3}', ":1: body is no object"),
        ('{"conversations": [[{"prompt_tokens": 0}]]}', ":1: prompt_tokens 0 is no usable number of tokens"),
        ('{"chat_id": 1, "hash_ids": [1], "input_length": 40, "block_size": "x"}', ":1: block_size x is no usable"),
    ],
)
def test_what_is_wrong_with_a_published_form_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError) as refused:
        list(read_trace(written(tmp_path, text)).stream())
    assert message in refused.value.message


def test_sessions_remembered_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two sessions one is remembered: the other begins anew."""
    monkeypatch.setattr(traces, "OPEN_SESSIONS", 1)
    rows = "".join(f"{at},{name},{tokens},10\n" for at, (name, tokens) in enumerate([("a", 50), ("b", 60), ("a", 90)]))
    stream = list(read_trace(written(tmp_path, "t,session_id,input_tokens,output_tokens\n" + rows)).stream())
    assert [len(request.ids) for request in stream] == [2, 2, 2]


def test_a_sample_is_the_beginning(tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path, HASHED * 50))
    assert list(traces.sample(workload, 7).stream()) == list(workload.stream())[:7]
    assert traces.sample(workload, 7).description.endswith("; the first 7 requests")
    assert traces.sample(parse_workload("cyclic:prefixes=5"), 7).requests == 7
    assert traces.sample(parse_workload("cyclic:prefixes=5"), 70).requests == 20


def test_memory_does_not_follow_the_length_of_a_trace(tmp_path: Path) -> None:
    """Four times the lines: what is held at most while it is read and simulated grows by less than a quarter."""

    def most(lines: int) -> int:
        path = tmp_path / f"{lines}.jsonl"
        with path.open("w", encoding="utf-8") as stream:
            for at in range(lines):
                talk = at * 7919 % 1000
                row = {"input_length": 2000, "output_length": 50, "hash_ids": [talk * 10 + part for part in range(4)]}
                stream.write(json.dumps(row) + "\n")
        workload, setup = read_trace(str(path)), Setup(sglang_policy(), 300)
        tracemalloc.start()
        simulate(workload, setup)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert most(24_000) < 1.25 * most(6_000)


def test_a_prompt_written_out_may_be_one_long_field(tmp_path: Path) -> None:
    """Python's csv takes 128 KiB a field; a prompt of a long context is longer."""
    path = tmp_path / "long.csv"
    path.write_text("prompt,output_tokens\n" + f'"{"word " * 60_000}",9\n' * 2, encoding="utf-8")
    found = list(read_trace(str(path)).stream())
    assert len(found) == 2 and found[0].prompt > 50_000
