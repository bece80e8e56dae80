"""How much may the text of one file grow to? Aliases, variables and arrays say in few characters what has many.

    A="a a a ..."; vllm serve x $A; vllm serve x $A; ...        args: *flags        value: "$(A)$(A)$(A)..."

Whatever copies, splits or visits something once more pays for it from the allowance of the file that is read; a file
that asks for more than an honest one could is refused. Memory and time are bounded so, however the growth is made.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from hybridcalc.errors import InputError

MOST_WORDS = 200_000
"""Words of commands, items of lists and variables that one file may come to, whatever its size."""
CHARACTERS_A_WORD = 8
"""Characters of a file for each of which it may come to a word more: those that stand in it are its own."""
MOST_CHARACTERS = 8 * 2**20
"""Characters of values in whose text a variable was replaced."""
MOST_VISITS = 1_000_000
"""Entries of merged mappings, environments and growing arrays that are gone through, each time counted."""
MOST_SCRIPTS = 2**20
"""Characters of texts in scripts that are scripts themselves."""

_left: ContextVar[list[int] | None] = ContextVar("left", default=None)


@contextmanager
def allowance(characters: int = 0) -> Iterator[None]:
    """What a file of so many characters may grow to, within; inside another allowance, that one counts."""
    if _left.get() is not None:
        yield
        return
    words = MOST_WORDS + characters // CHARACTERS_A_WORD
    token = _left.set([words, MOST_CHARACTERS, MOST_VISITS, MOST_SCRIPTS, words])
    try:
        yield
    finally:
        _left.reset(token)


def spend(words: int = 0, characters: int = 0, visits: int = 0, scripts: int = 0) -> None:
    """Take from the allowance. Raises InputError where nothing is left of it."""
    left = _left.get()
    if left is None:
        return
    left[0] -= words
    left[1] -= characters
    left[2] -= visits
    left[3] -= scripts
    if left[0] < 0:
        raise InputError(f"its words and arrays come to more than {left[4]:,} words")
    if left[1] < 0:
        raise InputError(f"its variables come to more than {MOST_CHARACTERS:,} characters")
    if left[2] < 0:
        raise InputError(f"its merged, shared and copied entries come to more than {MOST_VISITS:,}")
    if left[3] < 0:
        raise InputError(f"the scripts inside it come to more than {MOST_SCRIPTS:,} characters")
