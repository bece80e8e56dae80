"""Which grammars does a log go through, and which literals do their lines always hold?

`POOLS` reads SGLang's two pool lines alone, `EVERYTHING` every line known here. An engine's lines are added in its own
table (sglang.py, vllm.py, llamacpp.py); what belongs to no engine is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from hybridcalc.bootlog import llamacpp, sglang, sglang_pools, vllm
from hybridcalc.bootlog.forms import Form, Grammar
from hybridcalc.bootlog.records import Found

_COMMON = (
    Form("oom", "CUDA out of memory.", (("tried", "Tried to allocate {size}"),), 200),
    Form("oom", "HIP out of memory.", (("tried", "Tried to allocate {size}"),), 200),
    Form("oom", "NPU out of memory.", (("tried", "Tried to allocate {size}"),), 200),
    Form("oom", "XPU out of memory.", (("tried", "Tried to allocate {size}"),), 200),
)


class Grammars(NamedTuple):
    """What to look for: ``needles``, literals of which every line keeps one; ``find`` reads plain text."""

    needles: tuple[bytes, ...]
    find: tuple[Callable[[bytes], Iterator[Found]], ...]
    samples: tuple[bytes, ...] = ()
    """Literals of lines that a running server repeats without end: a few of them are read in every stretch."""


_STATEMENTS = Grammar(
    {"sglang": sglang.FORMS, "vllm": vllm.FORMS, "llama.cpp": llamacpp.FORMS, "": _COMMON}, sglang.ELSEWHERE
)
POOLS = Grammars(sglang_pools.ANCHORS, (sglang_pools.find,))
EVERYTHING = Grammars(
    tuple(dict.fromkeys((*sglang.NEEDLES, *vllm.NEEDLES, *llamacpp.NEEDLES))),
    (sglang_pools.find, _STATEMENTS.find),
    (b"#queue-req", b"Avg prompt throughput"),
)
