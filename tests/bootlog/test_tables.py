"""Tables and sentences that people write of a boot: a column is a boot, a label beside a figure makes it one."""

from __future__ import annotations

import io
from typing import Any

from hybridcalc.bootlog.boots import figure_list, figures
from hybridcalc.bootlog.grammars import assemble
from hybridcalc.bootlog.reader import scan


def boots(text: str) -> list[dict[str, Any]]:
    return [figures(boot) for boot in assemble(scan(io.BytesIO(text.encode()))).boots]


def table(*rows: str) -> str:
    columns = rows[0].count("|") - 1
    return "\n".join([rows[0], "|---" * columns + "|", *rows[1:], ""])


def test_a_column_is_a_boot() -> None:
    rows = ("| mamba cache | 28 slots | **143** slots |", "| KV pool | 137,408 tok | 715 136 tok |")
    text = table("| | before | after |", *rows, "| max running requests | 5 | 16 (as asked for) |")
    assert boots(text) == [
        {"max_mamba_cache_size": 28, "max_running_requests": 5, "max_total_num_tokens": 137_408},
        {"max_mamba_cache_size": 143, "max_running_requests": 16, "max_total_num_tokens": 715_136},
    ]


def test_sizes_and_counts_of_llama_cpp() -> None:
    """1 024 MiB over 2 x 32 x 1,024 cells, as the label says."""
    text = table(
        "| Component | Size |",
        "| KV cache (32 K cells, 8 layers, 2/2 seqs) | 1 024 MiB |",
        "| Recurrent state | 50.25 MiB |",
    )
    assert boots(text) == [{"kv_mib": 1024.0, "kv_cells": 32_768, "kv_layers": 8, "rs_mib": 50.25}]


def test_what_is_told_is_marked() -> None:
    text = table("| | a |", "| mamba cache | 28 slots |", "| KV pool | 137,408 tokens |")
    [boot] = assemble(scan(io.BytesIO(text.encode()))).boots
    assert {figure.told for figure in figure_list(boot)} == {True}


def test_one_row_and_other_tables_are_none() -> None:
    assert boots(table("| | a |", "| KV pool | 137,408 tokens |")) == []
    assert boots(table("| flag | meaning |", "| --tp | ranks |", "| mamba cache | where states live |")) == []
    assert boots("| mamba cache | 28 slots |\n| KV pool | 137,408 tokens |\n") == []  # no rule under a heading


def test_sentences_with_labels() -> None:
    text = (
        "It has `max_mamba_cache_size=8, conv 0.01 GB + ssm 0.30 GB`, "
        "which caps `max_running_requests` to 1 at 5 state-slots.\n"
    )
    assert boots(text) == [
        {"max_mamba_cache_size": 8, "conv_gib": 0.01, "ssm_gib": 0.3, "max_running_requests": 1, "slots_per_request": 5}
    ]
    assert boots("set max_mamba_cache_size=8 and see\n") == []


def test_labels_may_head_the_columns() -> None:
    text = table(
        "| g | fraction | KV tokens | max_mamba_cache_size |",
        "| 4 | 0.88 | 52,032 | 9 |",
        "| 16 | 0.88 | - | 2 (fatal) |",
    )
    assert boots(text) == [{"max_total_num_tokens": 52_032, "max_mamba_cache_size": 9}, {"max_mamba_cache_size": 2}]
    text = table(
        "| `gpu-memory-utilization` | KV | tokens |", "| 0.50 | 35.45 GiB | 1,114,865 |", "| **0.6** | 46.98 GiB | 1 |"
    )
    assert boots(text) == [
        {"gpu_memory_utilization": 0.5, "available_kv_gib": 35.45, "gpu_kv_cache_tokens": 1_114_865},
        {"gpu_memory_utilization": 0.6, "available_kv_gib": 46.98, "gpu_kv_cache_tokens": 1},
    ]


def test_differences_and_what_was_reckoned_are_no_boots() -> None:
    rows = ("| Model weights | 33 GiB | 32 GiB | -1 GiB |", "| Recurrent state | 75 MiB | 301.50 MiB | 4x |")
    text = table("| | Computed | Measured | Delta |", *rows)
    assert boots(text) == [{"weights_buffer_mib": 32 * 1024.0, "rs_mib": 301.5}]


def test_a_table_that_quotes_an_engines_lines_is_read_once() -> None:
    text = table(
        "| | Measured |",
        "| Model weights | `Vulkan0 model buffer size = 34280.86 MiB` = 33.48 GiB |",
        "| Recurrent state | `Vulkan0 RS buffer size = 301.50 MiB` |",
    )
    assert boots(text) == [{"weights_buffer_mib": 34280.86, "rs_buffer_mib": 301.5}]


def test_a_table_behind_a_refusal_is_of_other_boots() -> None:
    refused = "max_running_requests is capped to 0 by the mamba state cache (max_mamba_cache_size=2, 5 state slots "
    refused += "per request)\n\n"
    text = refused + table("| KV tokens | max_mamba_cache_size |", "| 86,528 | 11 |")
    assert [one["max_mamba_cache_size"] for one in boots(text)] == [2, 11]


def test_a_table_of_contexts_and_concurrency_is_of_vllm() -> None:
    """Beside a pool of tokens, in lines; what stands behind a length is no part of it."""
    lines = ("| 8,192 | 260,006 | 31.74\u00d7 |", "| 262,144, fp8 KV | 1,853,358 | 7.07x |")
    assert boots(table("| context/req | KV pool | max concurrency |", *lines)) == [
        {"gpu_kv_cache_tokens": 260_006, "max_model_len": 8192, "max_concurrency": 31.74},
        {"gpu_kv_cache_tokens": 1_853_358, "max_model_len": 262_144, "max_concurrency": 7.07},
    ]


def test_an_engines_own_word_makes_a_table_alone() -> None:
    text = table("| | `max_total_num_tokens` | free |", "| before | 1,741 | 46.9 GB |", "| after | 349,377 | 17.0 GB |")
    assert boots(text) == [{"max_total_num_tokens": 1741}, {"max_total_num_tokens": 349_377}]
    assert boots(text.replace("max_total_num_tokens", "tokens")) == []


def test_lines_of_boxes_part_cells_too() -> None:
    text = table("| KV tokens | max_mamba_cache_size |", "| 52,032 | 9 |")
    drawn = text.replace("|---|---|", "\u251c\u2500\u2500\u2500\u253c\u2500\u2500\u2500\u2524").replace("|", "\u2502")
    assert boots(drawn) == boots(text) == [{"max_total_num_tokens": 52_032, "max_mamba_cache_size": 9}]


def test_line_ends_of_windows_part_rows_too() -> None:
    text = table("| fraction | KV tokens | mamba slots |", "| 0.88 | 52,032 | 9 |")
    assert boots(text.replace("\n", "\r\n")) == boots(text) != []


def test_of_two_readings_that_with_more_figures_counts() -> None:
    """Weights and a KV cache are rows of vLLM's tables too, cells and sequences of llama.cpp's alone."""
    rows = ("| Model weights | 20.3 GiB |", "| KV cache (96 K cells, 10 layers, 2/2 seqs) | 3 840 MiB |")
    [found] = boots(table("| Component | Size |", *rows))
    assert (found["kv_cells"], found["kv_layers"]) == (98_304, 10) and "available_kv_gib" not in found


def test_a_cell_may_say_several_things_and_a_context_is_a_length_alone() -> None:
    rows = ("| GPU KV cache | 389,084 tokens (1.48x at 262,144 per request) |", "| decode, short context | 169 tok/s |")
    assert boots(table("| | |", *rows)) == [
        {"gpu_kv_cache_tokens": 389_084, "max_concurrency": 1.48, "max_model_len": 262_144}
    ]


def test_of_equal_readings_that_of_the_engine_that_is_named_counts() -> None:
    text = table("| dtype | weights | KV tokens |", "| FP8 | 28.77 GiB | 1,619,600 |")
    assert boots(f"vLLM\n\n{text}") == [{"weights_gib": 28.77, "gpu_kv_cache_tokens": 1_619_600}]
    assert boots(f"SGLang\n\n{text}") == [{"weights_gib": 28.77, "max_total_num_tokens": 1_619_600}]


def test_a_head_that_counts_slots_is_of_its_column() -> None:
    text = table("| | default | 14 slots (`ratio 0.3`) |", "| max_total_num_tokens | 137,408 | 715,136 |")
    assert boots(text) == [
        {"max_total_num_tokens": 137_408},
        {"max_mamba_cache_size": 14, "max_total_num_tokens": 715_136},
    ]
    alone = table(
        "| | 14 slots (`ratio 0.3`) | 29 slots (`ratio 0.9`) |", "| conversation 1 again | 1.558 s | 0.362 s |"
    )
    assert boots(alone) == [{"max_mamba_cache_size": 14}, {"max_mamba_cache_size": 29}]
    assert boots(alone.replace("`ratio", "`port")) == []


def test_a_blank_line_between_all_rows() -> None:
    text = table("| setting | mamba slots | KV tokens |", "| 0.9 | 51 | 400,000 |", "| 0.5 | 30 | 700,000 |")
    [first, second] = assemble(scan(io.BytesIO(text.replace("\n", "\n\n").encode()))).boots
    assert [figures(first), figures(second)] == boots(text)
    assert (first.line, second.line) == (5, 7)


def test_about_so_much_is_marked() -> None:
    text = table("| setting | value |", "| KV tokens | ~1,619,600 |", "| mamba slots | 309 |")
    [boot] = assemble(scan(io.BytesIO(text.encode()))).boots
    [tokens, slots] = [record.figures[0][1] for record in boot.statements]
    assert (f"{tokens:,}", f"{slots:,}", tokens) == ("~1,619,600", "309", 1_619_600)


def test_slots_behind_a_size_and_limits_that_are_reported() -> None:
    text = (
        "(`ssm_state size: 15.67 GB`, 309 slots), leaving `max_total_num_tokens=63744`\nmax_running_requests 35 -> 48\n"
    )
    assert boots(text) == [
        {"max_mamba_cache_size": 309, "ssm_gib": 15.67, "max_total_num_tokens": 63_744, "max_running_requests": 48}
    ]
    assert boots("`--max-mamba-cache-size 40`: SGLang reports `max_running_requests=8`\n") == [
        {"max_running_requests": 8}
    ]
    assert boots("try --max-mamba-cache-size 40\n") == []
