"""A published boot of Kimi-K3, and how tests read it."""

import io
from collections.abc import Iterable

from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.reader import scan

STATE = "Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB "
KV = "KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1167552, KV size: 15.03 GB"
BOOT = [f"[2026-02-01 00:05:03 TP0] {STATE}", f"[2026-02-01 00:05:03 TP0] {KV}"]
"""The two lines of a published Kimi-K3 boot (TP8), as the engine prints them."""
FIGURES = [("257", "0.46", "13.04"), ("1167552", "float8_e4m3fn", "15.03")]


def pools(records: Iterable[Record]) -> list[Record]:
    """The pools among the records."""
    return [record for record in records if record.kind in ("state_pool", "kv_pool")]


def read(raw: bytes) -> list[Record]:
    return pools(scan(io.BytesIO(raw)))


def texts(record: Record) -> tuple[str, ...]:
    """What a record says, as text and without what it leaves out."""
    return tuple(one.text if isinstance(one, Printed) else str(one) for _, one in record.figures)


CHATTER = (
    b"[2026-03-14 04:59:11 TP0] Decode batch, #running-req: 20, #full token: 2326796, full token usage: 0.14, mamba "
    b"num: 20, mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 1174.06, #queue-req: 6, \n"
    b'[2026-03-14 04:59:11] INFO:     127.0.0.1:53122 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
