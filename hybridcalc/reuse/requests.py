"""What does a prefix cache see of a request? Its tokens, as runs that other requests may share.

A run is a stretch of tokens with a name (``ids``) and the token at which it ends (``ends``, counted from the start of
the request). Two requests agree on their leading runs of the same name, and no further: runs of different names differ
in their first token, and a run is not followed by one of its own name unless all of that name are equally long. A
system prompt is one run; a token of a recorded prompt is a run of its own. So a prompt of a
hundred thousand tokens costs no more here than its parts. Units: tokens.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple


class Request(NamedTuple):
    """One request: its runs (prompt, then answer), the tokens of its prompt, and the round of the workload it is in.

    ``ends`` grows strictly and its last entry is prompt and answer together; it may end with the prompt. ``preempted``
    is how many answer tokens were made when the request was taken off the GPU, once; 0: it never was.
    """

    ids: tuple[Hashable, ...]
    ends: tuple[int, ...]
    prompt: int
    round: int = 0
    preempted: int = 0


class BlockPool(NamedTuple):
    """vLLM's one pool: ``blocks`` for anybody, of which a state takes ``per_state``, one for each group of state
    layers, and a page of KV ``per_page``, one for each group of attention layers. Units: blocks.
    """

    blocks: int
    per_state: int
    per_page: int


class Workload(NamedTuple):
    """Requests that can be replayed: ``stream`` starts them anew, always the same. ``requests`` is None if unknown;
    ``preempts`` says whether any of them may be preempted, ``at_once`` how many may run at a time, since each of the
    others follows on the answer of one that does; None where none does, or it is not known. ``note``: what a record
    leaves out; ``asked``: a synthetic workload as it was written.
    """

    name: str
    stream: Callable[[], Iterable[Request]]
    requests: int | None
    rounds: int | None
    description: str
    preempts: bool = False
    at_once: int | None = None
    note: str = ""
    asked: str = ""
