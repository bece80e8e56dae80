"""Room that SGLang 0.5.10 to 0.5.16 keep for prefill captured in pieces, on an H100 of 81,559 MiB, by hand.

reserved = 512 + 1.5 x 8,192 + 128 + 2 x 256 = 13,440 MiB; 58 sizes of 8 MiB, or 1,536 for MLA; 4,096 for drafts.
"""

from __future__ import annotations

from typing import Any

import pytest

from hybridcalc import load_model
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.fraction import settle_fraction

H100_MIB = 81_559
DRAFTS = {"speculative_algorithm": "NEXTN", "speculative_num_draft_tokens": 4}


@pytest.mark.parametrize(
    ("release", "model", "given", "reserved"),
    [
        ("0.5.10", "nemotron-3-nano-30b-a3b", {}, 13_440 + 464),
        ("0.5.10", "nemotron-3-nano-30b-a3b", DRAFTS, 13_440 + 4096),
        ("0.5.11", "nemotron-3-nano-30b-a3b", DRAFTS, 13_440 + 464 + 4096),
        ("0.5.13", "kimi-linear-48b-a3b", {}, 13_440 + 1536),
        ("0.5.14", "kimi-linear-48b-a3b", {}, 13_440 + 1536),
        ("0.5.15", "kimi-linear-48b-a3b", {}, 13_440),
        ("0.5.15", "qwen3.5-27b", {}, 13_440),
        ("0.5.16", "qwen3.5-27b", {}, 13_440 + 464),
        ("0.5.15", "qwen3-next-80b-a3b", {}, 13_440 + 464),
        ("0.5.13", "qwen3-next-80b-a3b", {}, 13_440),
        ("0.5.13", "ling-2.6-flash", {}, 13_440),
        ("0.5.13", "qwen3.5-27b", {}, 13_440),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"enable_hierarchical_cache": True}, 13_440),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"disaggregation_mode": "prefill"}, 13_440),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"moe_a2a_backend": "deepep"}, 13_440),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"cpu_offload_gb": 1}, 13_440),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"disable_prefill_cuda_graph": True}, 13_440),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"pp_size": 2}, 13_440 + 128),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"enable_dp_attention": True}, 13_440 + 3 * 256),
        ("0.5.12", "nemotron-3-nano-30b-a3b", {"speculative_algorithm": "NGRAM"}, 13_440 + 464),
        ("0.5.13", "nemotron-3-nano-30b-a3b", {"speculative_algorithm": "STANDALONE"}, 13_440 + 464 + 6144),
    ],
)
def test_pieces_are_kept_room_for_where_a_release_captures_them(
    release: str, model: str, given: dict[str, Any], reserved: float
) -> None:
    """Pieces to 0.5.14, breakable graphs then, of images from 0.5.16: server_args.py of those releases."""
    settled = settle_fraction(load_model(model), ServerArgs(engine_version=release, **given), H100_MIB)
    assert settled.reserved_mib == reserved
