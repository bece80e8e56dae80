"""How long must an attention block be so that one page of it holds a whole recurrent state, and what does that cost?

    block    = alignment * ceil(state / (alignment * kv))     tokens; a page of block * kv bytes then covers the state
    padding  = (page - state) / state                         what each state wastes of its page, relative to the state
    blocks   = ceil(tokens / block)                           blocks a request of that length takes in one layer
    reused   = shared // block * block                        tokens of a shared prefix that whole blocks can serve

state: bytes of one layer's state; kv: bytes one attention layer keeps per token. vLLM puts both caches on pages of one
size, so the smaller of the two is inflated; its alignment is the attention kernel's block, or that and the chunk size
where every block keeps a state. Source: vLLM platforms/interface.py; the hybrid-SSM chapter (C5 to C7).
"""

from fractions import Fraction
from math import isqrt


def aligned_block(state_bytes: int, kv_bytes_per_token: int, alignment: int) -> int:
    """Tokens of the smallest block, a multiple of ``alignment``, whose page holds the state."""
    return alignment * -(-state_bytes // (alignment * kv_bytes_per_token))


def padding_share(state_bytes: int, page_bytes: int) -> Fraction:
    """Share of a page wasted, relative to the state in it. Without unit; 0 is an exact fit."""
    return Fraction(page_bytes - state_bytes, state_bytes)


def blocks_for(tokens: int, block: int) -> int:
    """Blocks that ``tokens`` take; the last one may be part empty."""
    return -(-tokens // block)


def reused_tokens(shared_tokens: int, block: int) -> int:
    """Tokens of a shared prefix that come from the cache: only whole blocks do."""
    return shared_tokens // block * block


def divisors(number: int) -> list[int]:
    """Every divisor of a positive whole number, ascending: the units that a block can be cut into."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})
