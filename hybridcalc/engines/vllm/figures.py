"""The figures of a vLLM start-up for a workload: blocks a request holds, what runs at once, where the memory goes.

`Figures` only derives: what to make of them (findings, suggestions) builds upon it, and `server_plan.Plan` joins both.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Rest, Workload
from hybridcalc.engines.answer import SharedFigures, Slot
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.configuration import ASSUMED_LENGTH, longest_of
from hybridcalc.engines.vllm.pages import DRAFT, EMBEDDED, FULL, STATES, WHOLE, blocks_held, longest_length
from hybridcalc.engines.vllm.planner import Prepared, Sizing, log_lines, prepare, usable_bytes
from hybridcalc.findings import BudgetLine


class Running(NamedTuple):
    """What runs at once: ``fits`` by blocks, ``requests`` by blocks and max_num_seqs, and what binds: "blocks", "limit"
    or, where requests are longer than max_model_len and none is served, "context".

    ``blocks_each`` is what a request of the workload holds, on average; ``idle_percent`` the share of the blocks that
    no request of the workload can use.
    """

    fits: int
    requests: int
    binding: str
    blocks_each: Fraction
    idle_percent: float


class Figures(SharedFigures):
    """What vLLM does with ``args`` and the memory for ``model``: figures per GPU.

    ``low`` and ``high`` bound the sizing over an uncertain memory; equal to ``sizing`` where it is known.
    """

    def __init__(
        self, ready: Prepared, sizing: Sizing, low: Sizing, high: Sizing, rest: Rest, workload: Workload
    ) -> None:
        self.ready, self.sizing, self.low, self.high = ready, sizing, low, high
        self.rest, self.workload = rest, workload
        self.model, self.args = ready.model, ready.args

    @property
    def available_bytes(self) -> int:
        """Memory for the cache on one GPU."""
        return self.sizing.available_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included."""
        return self.sizing.blocks

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: block 0 is never handed out."""
        return max(0, self.sizing.blocks - 1)

    @property
    def attn_block_size(self) -> int:
        """Tokens of an attention block."""
        return self.ready.pages.block

    @property
    def padded_page_bytes(self) -> int | None:
        """Page that every layer takes of a block; None where the state fills it, or there is none."""
        return self.ready.pages.padded

    @property
    def padding_pct(self) -> float:
        """Padding of a state, percent of the state."""
        return float(self.ready.settled.get("padding_pct", 0.0))

    @property
    def group_sizes(self) -> list[int]:
        """Layers of each group, on the stage with the largest blocks; two caches of a layer are two."""
        return [group.names for group in self.ready.groups]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block: a page in every layer slot."""
        return self.ready.bytes_per_block

    @property
    def blocks_per_request(self) -> int:
        """Blocks of a request of max_model_len."""
        return self.sizing.per_request

    @property
    def max_model_len(self) -> int:
        """The length served."""
        return self.sizing.length

    @property
    def max_concurrency(self) -> float:
        """Requests of max_model_len that the engine says fit."""
        return self.sizing.concurrency

    @property
    def kv_cache_size_tokens(self) -> int:
        """The token figure that the engine prints."""
        return self.sizing.tokens

    @cached_property
    def fixed_blocks(self) -> int:
        """Blocks a request holds before its length counts: those of its states, and the tail of an index."""
        held = self.ready.held
        if held.mode == "all":
            return sum(held.drafts for group in self.ready.groups if group.kind in STATES)
        return sum(blocks_held(group, 1, held) for group in self.ready.groups if group.kind in WHOLE)

    @property
    def fixed_bytes_per_request(self) -> int:
        """Bytes of the fixed blocks."""
        return self.fixed_blocks * self.bytes_per_block

    @property
    def marginal_bytes_per_token(self) -> Fraction:
        """Bytes each further token takes on a GPU, in whole blocks of all groups that grow."""
        return self.ready.bytes_per_token

    @cached_property
    def running(self) -> Running:
        """What runs at once of the workload, or of requests of max_model_len where none is given."""
        return running(self.ready, self.sizing, self.workload)

    @property
    def concurrency(self) -> int:
        """Requests of the workload that run at once."""
        return self.running.requests

    @property
    def binding(self) -> str:
        """What caps them: "blocks", "limit" (max_num_seqs) or "context" (max_model_len)."""
        return self.running.binding

    @property
    def most_seqs(self) -> int:
        """The largest max_num_seqs that starts: one block a sequence under full CUDA graphs; 0 for no bound."""
        return self.sizing.blocks if self.ready.seqs_checked else 0

    @cached_property
    def longest_model_len(self) -> int:
        """The longest max_model_len that starts on this memory, within the model's own limit."""
        usable = usable_bytes(self.ready, self.sizing.available_bytes)
        longest = max(longest_of(self.model) or ASSUMED_LENGTH, self.ready.length)
        return longest_length(self.ready, usable, longest)

    @cached_property
    def budget(self) -> tuple[BudgetLine, ...]:
        """Where the blocks go once the workload runs; adds up to the pool."""
        return budget(self)

    @property
    def workers(self) -> int:
        """Replicas of the whole deployment."""
        return self.args.data_parallel_size

    @property
    def requests_at_ends(self) -> tuple[int, int]:
        """The least and the most of them over an interval of memory; 0 for an end that does not start."""
        ends = (self.low, self.high)
        least, most = (running(self.ready, end, self.workload).requests if end.blocks else 0 for end in ends)
        return least * self.workers, most * self.workers

    @property
    def slot(self) -> Slot:
        """What the state of one sequence takes in all layers of a GPU, before it is padded to pages."""
        return self.ready.slot

    @property
    def kv_bytes_by_stage(self) -> list[int]:
        """Bytes of a token in all attention layers of each stage, drafts included, before blocks are filled."""
        ready = self.ready
        pages, block = ready.pages, ready.pages.block
        token = -(-pages.attention_page // block) + -(-pages.index_bytes // block) if block else 0
        held = {FULL: token, DRAFT: pages.draft_bytes}
        return [sum(group.layers * held.get(group.kind, 0) for group in own) for own in ready.stages]

    @property
    def slots_per_request(self) -> int | None:
        """Blocks of one state group that a request holds; None in mode all, where they grow with its length."""
        if self.ready.held.mode == "all":
            return None
        return next((blocks_held(g, 1, self.ready.held) for g in self.ready.groups if g.recurrent), 0)

    @property
    def slots_reason(self) -> str:
        """Why they are that many."""
        held, ready = self.ready.held, self.ready
        if not ready.state:
            return "no recurrent layer"
        own = {"none": "1 state", "align": "2 states", "all": "a state a block"}[held.mode]
        more = [
            f"{count} {what}" for count, what in ((held.drafts, "drafts"), (held.checkpoints, "checkpoint")) if count
        ]
        return f"mode {held.mode}: {' + '.join([own, *more])}"

    @property
    def ratio(self) -> None:
        """VLLM keeps states and KV in one pool: nothing splits the memory."""

    @property
    def tokens(self) -> int:
        """The token figure that the engine prints."""
        return self.kv_cache_size_tokens

    @property
    def sequence_tokens(self) -> int:
        """Tokens of sequences that the blocks hold, where every release prints the same: before 0.20.1 one group's
        share is printed.
        """
        return int(self.sizing.blocks / self.sizing.per_request * self.sizing.length)

    @property
    def idle_percent(self) -> float | None:
        """The share of the blocks that no request can use; None without a length."""
        return self.running.idle_percent if self.workload.lengths else None

    @property
    def log_lines(self) -> list[str]:
        """The lines about caches that the boot will print."""
        return log_lines(self.ready, self.sizing)


class Unsized(Figures):
    """The part of a plan that memory does not change: there is no sizing, and no figure that follows from one."""

    available_bytes = 2**50
    """Memory without end: whether other flags would start is asked of everything but memory."""

    def __init__(self, ready: Prepared, workload: Workload) -> None:
        self.ready, self.model, self.args = ready, ready.model, ready.args
        self.workload = workload

    @property
    def max_model_len(self) -> int:
        """The length served, where it is not fitted to the memory."""
        return self.ready.length

    @property
    def longest_model_len(self) -> int:
        """Not known without memory."""
        return 0


def unsized(model: Architecture, args: EngineArgs, workload: Workload) -> Unsized:
    """The figures of a launch without memory. Raises Refusal for what does not start, whatever the memory."""
    return Unsized(prepare(model, args), workload)


def _free(blocks: int) -> str:
    return f"{blocks:,} block{'' if blocks == 1 else 's'} that no further request fills"


def running(ready: Prepared, sizing: Sizing, workload: Workload) -> Running:
    """What a sizing admits of a workload: usable blocks over the mean that a request holds, and max_num_seqs."""
    lengths = workload.lengths or ((sizing.length, 1),)
    requests = sum(count for _, count in lengths)
    held = sum(ready.blocks_at(tokens) * count for tokens, count in lengths)
    each, usable = Fraction(held, requests), max(0, sizing.blocks - 1)
    if workload.longest > sizing.length:
        return Running(0, 0, "context", each, 0.0)
    fits = int(usable // each)
    limit = ready.args.seqs
    idle = 0.0 if fits <= limit or not usable else float(100 * (1 - limit * each / usable))
    return Running(fits, min(fits, limit), "limit" if limit < fits else "blocks", each, idle)


def budget(plan: Figures) -> tuple[BudgetLine, ...]:
    """One line a use of the pool: states, their padding, KV, slots no layer fills, what idles, and the null block."""
    ready, count, per_block = plan.ready, plan.running.requests, plan.bytes_per_block
    lengths = plan.workload.lengths or ((plan.sizing.length, 1),)
    requests = sum(number for _, number in lengths)
    states = padding = kv = short = held = 0  # all of them over ``requests``
    for group in ready.groups:
        blocks = sum(blocks_held(group, tokens, ready.held) * n for tokens, n in lengths) * count
        held += blocks
        short += blocks * (per_block - group.bytes)
        if group.kind in STATES:
            own = ready.embedded_bytes if group.kind == EMBEDDED else ready.state_bytes
            states += blocks * group.layers * own
            padding += blocks * group.layers * (group.page - own)
        else:
            kv += blocks * group.bytes
    free = plan.usable_blocks * requests - held
    lines = [
        ("states", "state", states, f"{count:,} requests x {plan.fixed_blocks or 'growing'} blocks of states"),
        ("state padding", "scratch", padding, f"{plan.padding_pct:.2f} % of a state, to fill its page"),
        ("KV", "kv", kv, f"whole blocks of {plan.attn_block_size:,} tokens"),
        ("empty layer slots", "other", short, f"groups of fewer than {max(plan.group_sizes)} layers"),
        ("free blocks", "other", free * per_block, _free(free // requests)),
        ("null block", "other", per_block * requests, "block 0 is never handed out"),
    ]
    return tuple(line for line in _whole_bytes(lines, requests) if line.allocated_bytes)


def _whole_bytes(lines: list[tuple[str, str, int, str]], over: int) -> Iterator[BudgetLine]:
    """Lines, of sizes ``over`` so many requests, in whole bytes whose sum is that of the parts: requests of several
    lengths hold fractions on average.
    """
    total = told = 0
    for name, kind, size, why in lines:
        total += size
        whole = total // over - told
        told += whole
        yield BudgetLine(name, kind, whole, whole, why)
