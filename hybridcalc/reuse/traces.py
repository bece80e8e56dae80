"""Which requests did a server really get? Recorded requests as published, read as a stream.

    Mooncake, Qwen-Bailian      JSON lines with hash_ids            forms.py has every form
    Azure LLM, BurstGPT         CSV with lengths; BurstGPT's sessions go on from what they said
    ShareGPT                    JSON with conversations
    SGLang, vLLM benchmarks     their results with details, their data sets, batches of an OpenAI client

Conversations take turns: OPEN_CONVERSATIONS of them are open at a time. Of sessions the OPEN_SESSIONS used last are
remembered. What is in memory is one object, the open conversations and the sessions, however long the trace is.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

from hybridcalc.errors import InputError, quoted
from hybridcalc.reuse import forms
from hybridcalc.reuse.reading import LineOfFile, objects
from hybridcalc.reuse.requests import Request, Workload

OPEN_CONVERSATIONS, OPEN_SESSIONS = 64, 4096
LENGTHS_ALONE = "{} records lengths alone: no request shares a prefix with another, so nothing is reused"
SESSIONS_ALONE = "{} records lengths: a session's prompt is taken to begin with all it said before, where it is longer"


def read_trace(path: str) -> Workload:
    """The requests of a trace file, replayed from the file each time. Raises InputError for what cannot be read."""
    found = Path(path)
    try:
        if not found.exists():
            raise InputError(f"{quoted(path, 80)} is no trace: no such file", fix="write the name of a JSONL file")
        if not found.is_file():
            raise InputError(
                f"{quoted(path, 80)} is no regular file: a trace is read more than once", fix="write it to a file first"
            )
    except (OSError, ValueError):
        raise InputError(f"{quoted(path, 80)} is no file name") from None
    for _ in _requests(found):
        break
    else:
        raise InputError(f"{found}: no request in it", fix="a line is an object with hash_ids, token ids or turns")
    note = next((_note(item) for _, item in objects(found)), "")
    return Workload("trace", lambda: _requests(found), None, None, found.name, note=note.format(found.name))


def sample(workload: Workload, requests: int) -> Workload:
    """The first ``requests`` of a workload."""
    known = None if workload.requests is None else min(workload.requests, requests)
    if known is not None and known < requests:
        return workload
    return workload._replace(
        stream=lambda: islice(workload.stream(), requests),
        requests=known,
        description=f"{workload.description}; the first {requests:,} requests",
        asked="",
    )


def _note(item: dict[str, Any]) -> str:
    """What a form leaves out, with a place for the name of the file."""
    if any(name in item for name in ("conversations", *forms.HASHES, *forms.TOKENS, *forms.TEXTS)):
        return ""
    return SESSIONS_ALONE if any(name in item for name in forms.SESSIONS) else LENGTHS_ALONE


def _requests(path: Path) -> Iterator[Request]:
    private = count(-1, -1)
    talks: deque[Iterator[Request]] = deque()
    sessions = _Sessions(private)
    for place, item in objects(path):
        opened = _talks(place, item, private)
        for talk in opened or ():
            talks.append(talk)
            if len(talks) >= OPEN_CONVERSATIONS:
                yield from _next_turn(talks)
        if opened is None:
            yield from _one(place, item, private, sessions)
    while talks:
        yield from _next_turn(talks)


def _talks(place: LineOfFile, item: dict[str, Any], private: Iterator[int]) -> list[Iterator[Request]] | None:
    """The conversations of an object; None where it is none."""
    if "conversations" in item:
        said = item["conversations"]
        if isinstance(said, list) and said and isinstance(said[0], list):
            return [forms.agents(place, talk, private) for talk in said]
        return [forms.conversation(place, item, private)]
    if any(name in item for name in forms.TEXTS):
        return [forms.texts(place, item, private)]
    return None


def _one(place: LineOfFile, item: dict[str, Any], private: Iterator[int], sessions: "_Sessions") -> Iterator[Request]:
    """The request, or all that a benchmark's result lists. A prompt of no tokens is of a request that failed."""
    if any(name in item for name in forms.HASHES):
        yield forms.hashed(place, item, private)
    elif any(name in item for name in forms.TOKENS):
        yield forms.tokens(place, item, private)
    elif forms.LISTED in item:
        for prompt, answer in forms.lengths(place, item):
            if prompt:
                yield forms.goes_on(forms.NOTHING, prompt, answer, private)
    else:
        prompt, answer = forms.length(place, item)
        if prompt:
            yield sessions.request(next((item[name] for name in forms.SESSIONS if name in item), None), prompt, answer)


class _Sessions:
    """What the sessions used last have said."""

    def __init__(self, private: Iterator[int]) -> None:
        self.private = private
        self.said: OrderedDict[object, forms.Runs] = OrderedDict()

    def request(self, session: object, prompt: int, answer: int) -> Request:
        """The next request of a session; of one without a name, of a session of its own."""
        if not session:
            return forms.goes_on(forms.NOTHING, prompt, answer, self.private)
        name = str(session)
        request = forms.goes_on(self.said.pop(name, forms.NOTHING), prompt, answer, self.private)
        kept = len(request.ids) < forms.MOST_TURNS
        self.said[name] = (request.ids, request.ends) if kept else forms.NOTHING
        if len(self.said) > OPEN_SESSIONS:
            self.said.popitem(last=False)
        return request


def _next_turn(talks: deque[Iterator[Request]]) -> Iterator[Request]:
    """The next request of the conversation that has waited longest; it goes to the end, or away when it is over."""
    talk = talks.popleft()
    for request in talk:
        yield request
        talks.append(talk)
        return
