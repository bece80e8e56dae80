"""Toy's command line."""

from typing import Any

from hybridcalc.shell.flags import Flag, FlagTable
from toy import ToyArgs

FLAGS = (
    Flag("model", ("--model",), "str"),
    Flag("max_requests", ("--max-requests",), "int", 1, 4096),
    Flag("block", ("--block",), "int", 1, 4096),
)
ELSEWHERE: tuple[Flag, ...] = ()
TABLE = FlagTable("Toy", FLAGS, (), (), read_tokens=lambda text: int(text) if text.isdecimal() else None, multiples="")


def from_words(words: Any, env: Any, *, unknown: Any = None) -> Any:
    """MODEL and arguments of the words after ``toy serve``."""
    given = TABLE.read(words, unknown=unknown)
    fields = {flag.field: given[flag.spellings[0]] for flag in FLAGS[1:] if flag.spellings[0] in given}
    return given.get("--model", given.get("")), ToyArgs(**fields, env=dict(env))
