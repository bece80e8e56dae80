"""Which grammars does a log go through, and which literals do their lines always hold?

`POOLS` reads SGLang's two pool lines alone, `EVERYTHING` every line known here. An engine's lines are added in its own
table (sglang.py, vllm.py, llamacpp.py); what belongs to no engine is here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from hybridcalc.bootlog import llamacpp, sglang, sglang_pools, vllm
from hybridcalc.bootlog.forms import Form, Grammar
from hybridcalc.bootlog.records import Found

_COMMON = (
    Form("oom", "CUDA out of memory.", (("tried", "Tried to allocate {size}"),), 200, bare=True),
    Form("oom", "HIP out of memory.", (("tried", "Tried to allocate {size}"),), 200, bare=True),
    Form("oom", "NPU out of memory.", (("tried", "Tried to allocate {size}"),), 200, bare=True),
    Form("oom", "XPU out of memory.", (("tried", "Tried to allocate {size}"),), 200, bare=True),
)


class Needle(NamedTuple):
    """A literal, and a letter of its lines that is rare in what a running server says (b"" where none is)."""

    literal: bytes
    rare: bytes = b""


class Grammars(NamedTuple):
    """What to look for: ``needles``, literals of which every line keeps one; ``find`` reads plain text."""

    needles: tuple[Needle, ...]
    find: tuple[Callable[[bytes], Iterator[Found]], ...]
    samples: tuple[bytes, ...] = ()
    """Literals of lines that a running server repeats without end: a few of them are read in every stretch."""
    fragments: re.Pattern[bytes] | None = None
    """Pieces of the lines' own words: they decide where a chunk holds so many needles that these must be somebody's
    prose. They begin with letters that prose begins few words with, which makes them quick to look for.
    """


_STATEMENTS = Grammar(
    {"sglang": sglang.FORMS, "vllm": vllm.FORMS, "llama.cpp": llamacpp.FORMS, "": _COMMON}, sglang.ELSEWHERE
)
POOLS = Grammars(tuple(Needle(literal) for literal in sglang_pools.ANCHORS), (sglang_pools.find,))
EVERYTHING = Grammars(
    (
        Needle(b"size", b"z"),
        Needle(b"GB", b"B"),
        Needle(b"iB", b"B"),
        Needle(b"Mamba", b"M"),
        Needle(b"memory", b"E"),
        Needle(b"is capped"),
        Needle(b"Not enough"),
    ),
    (sglang_pools.find, _STATEMENTS.find),
    (b"Decode batch", b"Prefill batch", b"Avg prompt throughput"),
    re.compile(
        rb"_state|_cache|_num_tokens|#tokens|V [Cc]ache|GB|GiB|MiB|MB|Mamba|Setting att|Padding m|Memory p|Load w"
        rb"|Capping|Maximum c|Not e|No a|CUDA|Loaded w|is capped"
    ),
)
"""Sizes with their units, "size", "memory" and "Mamba": every line that sizes memory holds one of them, or stands right
beside one that does; "memory" without a unit is a refusal, and stands behind the name of an exception. The clamp and
two refusals hold none and have their own. Logs of a few pages are read as a whole.
"""
