"""Where does the memory go, and what of it does the engine not charge?

One line a buffer, of one rank of the first pipeline stage. Charged is what the solver takes off the rest; allocated is
what the buffers take. They part where the engine prices dense windows and keeps overlapping ones, prices D and keeps
the adaptive maximum, pads KV by a page, or does not price a pool at all.
"""

from hybridcalc.engines.sglang.allocation import Allocation, dense_windows
from hybridcalc.engines.sglang.config import OWN_DRAFT_CELL, ServerArgs
from hybridcalc.engines.sglang.families import family_rule
from hybridcalc.engines.sglang.kv import KvCell, draft_layers
from hybridcalc.engines.sglang.planner import Prepared, Sizing
from hybridcalc.steps import BudgetLine


def budget_lines(ready: Prepared, sizing: Sizing, pools: Allocation) -> tuple[BudgetLine, ...]:
    """Every buffer that takes or is charged memory, the largest pools first."""
    lines = [_states(ready, sizing, pools), *_drafts(ready, sizing, pools), *_rings(ready, sizing, pools)]
    lines += [_kv(ready, sizing, pools), *_draft_kv(ready, sizing)]
    if pools.int8 is not None:
        why = f"{pools.int8.slots:,} + 1 slots of {pools.int8.per_slot:,} B, out of the headroom"
        lines.append(BudgetLine("int8 checkpoints", "state", 0, pools.int8.bytes, why))
    if pools.ple_conv:
        lines.append(BudgetLine("per-layer-embedding convolutions", "state", 0, pools.ple_conv, "one set a state slot"))
    entries = pools.request_table // 4 // pools.request_rows
    why = f"{pools.request_rows:,} rows x {entries:,} entries, int32"
    lines.append(BudgetLine("request table", "other", 0, pools.request_table, why))
    return tuple(line for line in lines if line.charged_bytes or line.allocated_bytes)


def uncharged_bytes(lines: tuple[BudgetLine, ...]) -> int:
    """Bytes the buffers take beyond what was charged for them, line by line: one's surplus does not pay another."""
    return sum(max(0, line.allocated_bytes - line.charged_bytes) for line in lines)


def _states(ready: Prepared, sizing: Sizing, pools: Allocation) -> BudgetLine:
    rings = _ring_charge(ready, sizing)
    allocated = pools.conv_state + pools.ssm_state
    padding = " + 1 that pads" if ready.rules.padding_slot_charged else ", and 1 uncharged that pads"
    why = f"{pools.pool_slots:,} slots{padding}, {ready.stage_slot_bytes:,} B each"
    if pools.raised_from is not None:
        why += f"; raised from {pools.raised_from:,} for requests held ahead"
    return BudgetLine("state pool", "state", sizing.state.charged_bytes - rings, allocated, why)


def _drafts(ready: Prepared, sizing: Sizing, pools: Allocation) -> list[BudgetLine]:
    allocated = pools.intermediate_ssm + pools.intermediate_conv
    args = ready.args
    if not allocated and not sizing.state.draft_bytes:
        return []
    why = f"{pools.request_rows:,} rows x {args.most_draft_tokens} draft tokens"
    if args.most_draft_tokens > args.draft_tokens:
        why += f" (priced for {args.draft_tokens})"
    if not dense_windows(ready.model, args):
        why += "; convolution windows overlap"
    if ready.replay_active:
        why = f"convolution windows alone, {why}: ReplaySSM keeps no draft states"
    return [BudgetLine("draft states", "scratch", sizing.state.draft_bytes, allocated, why)]


def _rings(ready: Prepared, sizing: Sizing, pools: Allocation) -> list[BudgetLine]:
    charged = _ring_charge(ready, sizing)
    if not charged and not pools.ring_bytes:
        return []
    per_slot = family_rule(ready.model).kimi_pool or ready.args.enable_linear_replayssm
    per = "slot of the pool" if per_slot else "running request"
    why = f"{ready.args.linear_replayssm_cache_len} steps for each {per}"
    return [BudgetLine("ReplaySSM rings", "scratch", charged, pools.ring_bytes, why)]


def _ring_charge(ready: Prepared, sizing: Sizing) -> int:
    """Ring bytes inside the charge of the state pool."""
    if not ready.replay_active:
        return 0
    rows = sizing.state.charged_bytes - (sizing.state.slots + 1) * ready.stage_slot_bytes
    return max(0, rows)


def _kv(ready: Prepared, sizing: Sizing, pools: Allocation) -> BudgetLine:
    cell = ready.cells[0]
    charged = int(sizing.tokens * (cell.price - cell.draft_bytes))
    allocated = sum(pools.kv) if pools.kv else charged
    page = ready.args.tokens_per_page
    why = f"{sizing.tokens:,} tokens + a page of {page}, {cell.target_bytes:,} B each"
    if pools.kv and cell.dtype == "fp4_mx_block16" and allocated > charged + page * cell.target_bytes:
        why += "; priced as fp4, kept in a plain pool"
    return BudgetLine("KV pool", "kv", charged, allocated, why)


def draft_row_bytes(cell: KvCell, args: ServerArgs) -> int:
    """Bytes a token of a sequence takes in the draft model's KV on one rank."""
    return cell.draft_bytes // args.dcp_size if args.speculative_algorithm in OWN_DRAFT_CELL else cell.draft_bytes


def _draft_kv(ready: Prepared, sizing: Sizing) -> list[BudgetLine]:
    """The draft model's KV: rows for the tokens of all context-parallel ranks."""
    cell, args = ready.cells[0], ready.args
    if not cell.draft_bytes:
        return []
    charged = sizing.tokens * cell.draft_bytes
    per_row = draft_row_bytes(cell, args)
    rows = (sizing.tokens + args.tokens_per_page) * args.dcp_size
    layers = draft_layers(ready.model, args)
    why = f"{layers} layers x {rows:,} rows" if layers else f"{rows:,} rows of {per_row:,} B"
    return [BudgetLine("draft KV", "kv", charged, rows * per_row, why)]
