"""Reports that people published, shortened: the launch beside the log, two starts, tables, what a start died of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import LogAnswer, Question, diagnose_log

DATA = Path(__file__).resolve().parent.parent / "data"


def read(name: str, requests: int | None = None, length: int | None = None) -> LogAnswer:
    """The answer for a report, asked for so many requests of a length."""
    workload = Workload(((length, 1),) if length else (), requests)
    return diagnose_log(DATA / "cases" / "public" / name, Question(workload=workload))


def only(name: str, requests: int | None = None, length: int | None = None) -> Any:
    """The one boot of a report."""
    [boot] = read(name, requests, length).boots
    return boot


def said(boot: Any) -> str:
    """All that is said of a boot."""
    rows = "\n".join(" ".join(row) for row in boot.rows)
    return "\n".join([boot.headline, boot.meaning, rows, *(f"{one.message}; {one.fix}" for one in boot.findings)])


def test_what_ik_llama_keeps_beside_kv_is_a_state_of_each_sequence() -> None:
    """251.25 MiB are 4 states of 62.81: it keeps no copies to roll back to, and -np 4 stands above the log."""
    boot = only("ik-four-sequences.md", requests=4)
    assert (boot.model_guess, boot.derived.state_copies, boot.derived.requests) == ("qwen3.5-35b-a3b", 1, 4)
    assert "4 requests fit 4 slots" in boot.meaning
    assert "states of 4 sequences 4 x 62.81 MiB = 251.25 MiB" in said(boot)


def test_sequences_of_ik_llama_follow_from_its_states_where_no_launch_says_them(tmp_path: Path) -> None:
    text = (DATA / "cases" / "public" / "ik-four-sequences.md").read_text().replace("-np 4\n", "")
    (tmp_path / "log").write_text(text)
    [boot] = diagnose_log(tmp_path / "log", Question(workload=Workload((), 4))).boots
    assert boot.derived.requests == 4


def test_a_cache_behind_a_load_that_failed_is_another_load() -> None:
    first, second, third = read("two-failed-loads.md").boots
    assert "1088" not in said(first) and "495.00 MiB of device 0: the compute buffer" in first.meaning
    assert second.meaning == "out of memory on 598.50 MiB: the states"
    assert third.boot.started is not False


def test_a_second_cache_of_the_same_layers_holds_each_token_too() -> None:
    """An indexer's keys beside K and V are no draft's; the columns of a per-layer embedding are part of the state."""
    boot = only("index-cache.md")
    assert boot.model_guess == "qwen3.8-flash-next"
    assert boot.derived.kv_bytes_per_cell == 33 * 1024
    assert boot.constants.exact[:3] == ("qwen3.8-flash-next", 118_038_528, 24_576)
    assert "33.00 KiB of KV a token: 24.00 KiB + 9.00 KiB" in boot.meaning and "draft" not in said(boot)


def test_the_page_of_a_command_whose_page_the_tokens_are_not_of_is_not_used() -> None:
    """1,226,984 tokens are no pages of 64: 8,064 B a token with a page of 1."""
    boot = only("command-of-another-start.md")
    assert boot.constants.exact[:3] == ("ling-3.0-flash", 75_980_800, 8_064)
    assert not [one for one in boot.findings if one.rule == "HC107"]


def test_a_load_that_failed_is_not_asked_to_hold_more() -> None:
    boot = only("states-did-not-fit.log", requests=64, length=32_768)
    [asked] = [one for one in boot.findings if one.rule == "HC155"]
    assert (asked.message, asked.fix) == ("64 requests are wanted: the load does not start with 4", "")
    assert boot.derived.requests is None and boot.model_guess == "qwen3.5-9b"


def test_the_first_cell_of_a_row_is_no_service() -> None:
    """``| **off** | 1568 |`` begins like a line of docker compose; what a refusal needs is said without what it has."""
    refused, *rows = read("refused-and-table.md").boots
    assert refused.meaning == "one request of 262,144 tokens does not fit: 8.18 GiB are needed"
    read_of = [(row.boot.count("kv_size", "tokens"), str(row.boot.size("available", "available"))) for row in rows]
    assert read_of == [(30_427, "1.29"), (73_728, "3.88"), (75_548, "4.00")]


def test_a_refusal_with_memory_for_slots_is_of_the_draft_states() -> None:
    boot = only("drafts-leave-no-slots.md")
    [refused] = [one for one in boot.findings if one.severity == "error"]
    assert "2.30 GiB are left for both pools of slots of 146.81 MiB: 7 would fit without draft states" in boot.meaning
    assert refused.fix.startswith("fewer --speculative-num-draft-tokens")


def test_checkpoints_without_their_tokens_have_positions() -> None:
    boot = only("ik-checkpoints.log")
    assert boot.derived.checkpoint_bytes_per_token == 8
    assert "up to 500 a slot are kept, 30.69 GiB of host memory" in said(boot)


def test_a_buffer_of_states_is_of_the_sequences_of_the_context() -> None:
    """Without the total's line: 100.50 MiB of n_seq_max = 2. The file's name has its maker in front of the model."""
    boot = only("two-slots-unified.md")
    assert (boot.model_guess, boot.derived.state_bytes_per_sequence) == ("qwen3.5-9b", 50.25 * 2**20)


def recorded(number: int, *lost: int) -> str:
    """A recorded log of a target with its draft, without the lines that are lost."""
    lines = (DATA / "bootlogs" / f"sgl-{number:03}.log").read_text().splitlines(keepends=True)
    return "".join(line for place, line in enumerate(lines, 1) if place not in lost)


def boot_of(path: Path, text: str) -> Any:
    path.write_text(text)
    [boot] = diagnose_log(path, Question()).boots
    return boot


def test_a_pool_behind_the_end_of_the_pools_is_the_drafts(tmp_path: Path) -> None:
    lost = boot_of(tmp_path / "log", recorded(42, 3)).to_dict()["figures"]
    assert "k_gib" not in lost and lost["draft_k_gib"] == 3.39
    late = boot_of(tmp_path / "log", recorded(42, 4)).to_dict()["figures"]
    assert "mem_pool_end_avail_gib" not in late


def test_one_pool_of_two_models_may_be_either_ones(tmp_path: Path) -> None:
    boot = boot_of(tmp_path / "log", recorded(44, 4))
    assert "a draft model is loaded (line 2) and one KV pool is printed (line 4): it may be the draft's" in said(boot)
    assert "may be the draft's" not in said(boot_of(tmp_path / "log", recorded(44)))


def test_weights_and_the_printed_dtype_of_kv_rule_models_out() -> None:
    """168.89 GiB on a rank are no Granite's of 32 billion parameters, and KV in bf16 is no fp8 page's."""
    boot = only("weights-rule-out.log")
    assert boot.candidates == () and "none of the known models has these pages" in said(boot)
    assert "granite" not in said(boot)


def test_the_dtype_of_kv_that_a_kernel_prints_is_the_only_one_tried() -> None:
    boot = only("weights-rule-out.log").boot
    assert boot.word("kv_dtype", "dtype") == "bfloat16"


def test_a_code_span_says_no_release() -> None:
    """Its end, and the comma behind it, are its author's: whether the engine's line goes on is not known."""
    assert [only(name).version for name in ("code-spans.md", "code-spans-listed.md")] == [None, None]


def test_two_releases_are_each_of_the_refusal_below_them() -> None:
    boots = read("two-releases.md", requests=64).boots
    assert [boot.version for boot in boots] == ["0.28.0", "0.23.1"]
    asked = [[one.message for one in boot.findings if one.rule == "HC155"] for boot in boots]
    assert asked[0] == ["64 requests are wanted: each needs a block, and there are 969"]
    assert {one.severity for one in read("two-releases.md", requests=200).boots[1].findings if one.rule == "HC155"} == {
        "warning"
    }


def test_a_build_between_releases_is_called_as_its_author_does() -> None:
    boot = only("build-by-its-author.md")
    assert boot.headline.startswith("vLLM 0.28.1rc1.dev580, by the rules of 0.31.0, as told, glm-5.3-flash on TP8")
    assert "the log is" not in said(boot)


def test_drafts_that_are_asked_for_and_not_said_leave_the_groups_open() -> None:
    boot = only("unsaid-draft.nix")
    assert "groups" not in said(boot)
    assert "layers of a draft model, of which no line tells, share the blocks; --command says which drafts" in said(
        boot
    )


def test_the_memory_that_the_cache_uses_stands_for_what_was_available() -> None:
    assert "line 1 8.64 GiB for KV and states of one GPU" in said(only("cache-in-use.log"))


def test_the_file_of_a_launch_stands_behind_its_own_flag(tmp_path: Path) -> None:
    """``-m`` begins ``--mmproj`` and ends ``--model`` without its letters: neither is a file."""
    text = (DATA / "cases" / "public" / "two-slots-unified.md").read_text()
    line = "llama-server --mmproj /m/mmproj.gguf --model /m/Qwen3.5-9B-Q4_K_M.gguf --parallel 2 -md draft.gguf"
    boot = boot_of(tmp_path / "log", text.replace("llama-server.exe -m Qwen_Qwen3.5-9B-Q4_K_M.gguf", line))
    assert boot.boot.word("arguments", "file") == "/m/Qwen3.5-9B-Q4_K_M.gguf"
    assert boot.boot.count("arguments", "n_seq_max") == 2
