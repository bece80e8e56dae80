"""Which context checkpoints does a prompt leave in a slot, and from which token does the next one go on?

    a prompt of N tokens is cut at N - 4 - ubatch and at N - 4, beside where batches end; a checkpoint is of the tokens
    before a piece that ends less than a ubatch before N: at N - 4 - ubatch and N - 4 of a long prompt

Without messages: of a chat the start of the last user message is one more. A slot keeps ``--ctx-checkpoints``; when it
is full those go that a prompt before left within ``--checkpoint-min-step`` of an earlier one, then the oldest. A prompt
that agrees with what a slot holds for n tokens goes on at the last checkpoint of at most n tokens, and anew without
one. Units: tokens. Source: llama.cpp tools/server/server-context.cpp create_checkpoint, update_slots (b11434).
"""

from typing import NamedTuple

MIN_STEP = 8192
"""Tokens between checkpoints of different prompts, --checkpoint-min-step by default."""
TAIL = 4
"""Tokens at the end of a prompt that are computed by themselves."""


class ContextCheckpoint(NamedTuple):
    """A checkpoint: the tokens before it, and the number of the prompt that left it."""

    tokens: int
    prompt: int


class ServerSlot(NamedTuple):
    """What a slot holds: its checkpoints, oldest first, how many prompts it has served, and the tokens of the last one
    with those of its answer that were fed back.
    """

    checkpoints: tuple[ContextCheckpoint, ...] = ()
    prompts: int = 0
    held: int = 0

    def resumed(self, agreed: int, prompt: int) -> int:
        """Tokens that are not computed again of a prompt that agrees with the slot for ``agreed`` of its tokens.

        ``prompt`` tokens in all; one that goes on with all that is held, and is longer, needs no checkpoint.
        """
        if agreed == self.held < prompt:
            return agreed
        usable = [each.tokens for each in self.checkpoints if each.tokens <= min(agreed, prompt - 1)]
        return max(usable, default=0)


def served(
    slot: ServerSlot,
    prompt: int,
    start: int,
    *,
    batch: int,
    ubatch: int,
    limit: int,
    min_step: int = MIN_STEP,
    answer: int = 1,
) -> tuple[ServerSlot, tuple[int, ...]]:
    """The slot after a prompt that is computed from ``start``, and the tokens of each checkpoint that it leaves.

    The last token of an ``answer`` is not fed back.
    """
    number = slot.prompts
    held = [each for each in slot.checkpoints if each.tokens <= start + 1]
    made: list[int] = []
    cuts = sorted({prompt - min(batch, offset) for offset in (TAIL + ubatch, TAIL)})
    at = start
    while at < prompt and limit:
        end = min([at + batch, prompt, *(cut for cut in cuts if cut > at)])
        if at > 0 and prompt < end + ubatch:
            held = _with_room(held, number, limit, min_step)
            held = [each for each in held if each.tokens != at] + [ContextCheckpoint(at, number)]
            made.append(at)
        at = end
    return ServerSlot(tuple(held), number + 1, prompt + max(answer - 1, 0)), tuple(made)


def _with_room(held: list[ContextCheckpoint], prompt: int, limit: int, min_step: int) -> list[ContextCheckpoint]:
    """Those that stay where one more is to have room."""
    kept, last, number = list[ContextCheckpoint](), -1, len(held)
    for each in held:
        crowded = number + 1 >= limit and each.prompt != prompt and last >= 0 and each.tokens <= last + min_step
        if crowded:
            number -= 1
            continue
        kept.append(each)
        last = each.tokens
    return kept[max(0, len(kept) - limit + 1) :]
