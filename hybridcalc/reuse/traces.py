"""Which requests did a server really get? Recorded requests, one JSON object a line, read as a stream.

    block hashes   {"hash_ids": [..], "input_length": n, "output_length": m}; a hash stands for "block_size" tokens
                   (512, as in Mooncake's traces) and for all before it: equal hashes, equal prefix
    token ids      {"prompt_token_ids": [..], "output_token_ids": [..]} (or "token_ids", "input_ids"; "output_length")
    conversations  {"conversations": [{"from": "human", "value": ".."}, ..]} as in ShareGPT; a turn may state its
                   "tokens", else a token is taken for four characters. Each answer of the model is one request

A file that is one JSON array of such objects is read as well, and either packed by gzip. Conversations take turns:
OPEN_CONVERSATIONS of them are open at a time. What is in memory is one object and the open conversations; nothing that
is read is run. Units: tokens.
"""

import gzip
import json
import re
import zlib
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hybridcalc.errors import InputError, quoted
from hybridcalc.reuse.requests import Request, Workload

HASH_BLOCK = 512
"""Tokens that a hash of Mooncake's traces stands for."""
OPEN_CONVERSATIONS = 64
CHARACTERS_PER_TOKEN = 4
LARGEST_OBJECT = 2**24
"""Characters of one object: 16 Mi, a prompt of two million tokens written out."""
MOST_RUNS = 2**21
"""Tokens, hashes or turns of one object."""
MOST_TURNS = 2000
"""Turns of a conversation: each answer is looked up through all that were before it."""
_READ = 2**20
_NEAR_THE_END = 16
"""Characters in which a number, a word or an escape may be cut off."""
_GZIP = b"\x1f\x8b"
_BLANK = re.compile(r"[ \t\r\n]*")
_PROMPTS, _ANSWERS = ("prompt_token_ids", "token_ids", "input_ids"), ("output_token_ids", "output_ids")
_LENGTHS = ("output_length", "output_tokens")
_FROM_MODEL = ("gpt", "assistant", "model", "chatgpt", "bard", "bing")


class _Place(NamedTuple):
    """Where an object was read, for messages."""

    path: str
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


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
    return Workload("trace", lambda: _requests(found), None, None, found.name)


def _requests(path: Path) -> Iterator[Request]:
    private = count(-1, -1)
    talks: deque[Iterator[Request]] = deque()
    for place, item in _objects(path):
        if "conversations" in item:
            talks.append(_conversation(place, item, private))
            if len(talks) >= OPEN_CONVERSATIONS:
                yield from _next_turn(talks)
        elif "hash_ids" in item or "block_hashes" in item:
            yield _hashed(place, item, private)
        else:
            yield _tokens(place, item, private)
    while talks:
        yield from _next_turn(talks)


def _next_turn(talks: deque[Iterator[Request]]) -> Iterator[Request]:
    """The next request of the conversation that has waited longest; it goes to the end, or away when it is over."""
    talk = talks.popleft()
    for request in talk:
        yield request
        talks.append(talk)
        return


def _objects(path: Path) -> Iterator[tuple[_Place, dict[str, Any]]]:
    """Every object of a file, with the line on which it starts."""
    try:
        yield from _unpacked_objects(path)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read to its end: {str(error)[:80]}") from None


def _opened(path: Path) -> TextIO:
    with path.open("rb") as stream:
        packed = stream.read(len(_GZIP)) == _GZIP
    if packed:
        return gzip.open(path, "rt", encoding="utf-8", errors="replace")
    return path.open(encoding="utf-8", errors="replace")


def _unpacked_objects(path: Path) -> Iterator[tuple[_Place, dict[str, Any]]]:
    with _opened(path) as stream:
        first, skipped = stream.read(1), 0
        while first and first in " \t\r\n\ufeff":
            skipped += first == "\n"
            first = stream.read(1)
        if first == "[":
            yield from _array(path, stream, skipped + 1)
            return
        rest = first
        for number, line in enumerate(_lines(path, stream), skipped + 1):
            text = (rest + line).strip()
            rest = ""
            if text:
                place = _Place(str(path), number)
                yield place, _object(place, _parsed(place, text))


def _lines(path: Path, stream: TextIO) -> Iterator[str]:
    number = 0
    while line := stream.readline(LARGEST_OBJECT + 1):
        number += 1
        if len(line) > LARGEST_OBJECT:
            raise _too_long(_Place(str(path), number))
        yield line


class _Text:
    """A stream, of which ``text`` from ``position`` on is what has been read and not been used, at ``line``."""

    def __init__(self, path: Path, stream: TextIO, line: int) -> None:
        self.path, self.stream, self.line = path, stream, line
        self.text, self.position = "", 0

    @property
    def place(self) -> _Place:
        """Where the next character is."""
        return _Place(str(self.path), self.line)

    def use(self, end: int) -> None:
        """Go on to ``end``."""
        self.line += self.text.count("\n", self.position, end)
        self.position = end

    def more(self) -> bool:
        """Read on, as much again as is kept, so that what is looked at twice is no more than is read."""
        kept = self.text[self.position :]
        read = self.stream.read(max(_READ, len(kept)))
        self.text, self.position = kept + read, 0
        return bool(read)

    def next(self) -> str:
        """The next character that is not blank, which stays; "" at the end."""
        while True:
            self.use(_BLANK.match(self.text, self.position).end())  # type: ignore[union-attr]  # it matches nothing too
            if self.position < len(self.text):
                return self.text[self.position]
            if not self.more():
                return ""


def _array(path: Path, stream: TextIO, line: int) -> Iterator[tuple[_Place, dict[str, Any]]]:
    """The elements of one JSON array, decoded as soon as they are complete; its opening bracket has been read."""
    source = _Text(path, stream, line)
    if source.next() == "]":
        source.use(source.position + 1)
    else:
        while True:
            _ = source.next()  # so that the place is where the element begins
            place = source.place
            yield place, _object(place, _element(source))
            separator = source.next()
            if separator not in (",", "]"):
                shown = f"{separator!r} where" if separator else "it is cut off:"
                raise InputError(f"{source.place}: this is not JSON: {shown} a comma or ] belongs")
            source.use(source.position + 1)
            if separator == "]":
                break
    if source.next():
        raise InputError(
            f"{source.place}: something stands behind the end of the array", fix="write one array, or one object a line"
        )


def _element(source: _Text) -> Any:
    """The next element; more is read as long as what is there may be the beginning of one."""
    decoder = json.JSONDecoder(object_pairs_hook=_pairs)
    while True:
        place, kept = source.place, len(source.text) - source.position
        try:
            item, end = decoder.raw_decode(source.text, source.position)
        except RecursionError:
            raise InputError(f"{place}: nested too deeply") from None
        except json.JSONDecodeError as error:
            cut = error.pos >= len(source.text) - _NEAR_THE_END or error.msg.startswith("Unterminated string")
            if not cut:
                raise InputError(f"{place}: this is not JSON: {error.msg[:80]}") from None
        except ValueError as error:
            raise InputError(f"{place}: this is not JSON: {str(error)[:80]}") from None
        else:
            if end - source.position > LARGEST_OBJECT:
                raise _too_long(place)
            source.use(end)
            return item
        if kept > LARGEST_OBJECT:
            raise _too_long(place)
        if not source.more():
            raise InputError(f"{place}: this is not JSON, or it is cut off")


def _too_long(place: _Place) -> InputError:
    return InputError(f"{place}: an object of more than {LARGEST_OBJECT:,} characters")


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. Raises ValueError for a key that comes twice: which of them is meant cannot be known."""
    item = dict(pairs)
    if len(item) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{quoted(twice)} is there twice")
    return item


def _parsed(place: _Place, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_pairs)
    except RecursionError:
        raise InputError(f"{place}: nested too deeply") from None
    except ValueError as error:
        raise InputError(
            f"{place}: this is not JSON: {str(error)[:80]}", fix="write one object a line, or all of them in one [...]"
        ) from None


def _object(place: _Place, item: Any) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise InputError(f"{place}: a request is a JSON object", fix='write {"hash_ids": [...], ...}')
    return item


def _hashed(place: _Place, item: dict[str, Any], private: Iterator[int]) -> Request:
    hashes = _list(place, item, "hash_ids" if "hash_ids" in item else "block_hashes")
    block = _whole(place, item, "block_size", HASH_BLOCK, least=1)
    prompt = _whole(place, item, "input_length", block * len(hashes), least=1)
    if not block * (len(hashes) - 1) < prompt:
        raise InputError(f"{place}: {len(hashes)} hashes of {block} tokens are more than input_length {prompt}")
    ends = [*range(block, block * len(hashes), block), min(prompt, block * len(hashes))]
    ids: list[Any] = list(hashes)
    if prompt > ends[-1]:
        ids.append(next(private))
        ends.append(prompt)
    return _answered(ids, ends, _answer_length(place, item), private)


def _tokens(place: _Place, item: dict[str, Any], private: Iterator[int]) -> Request:
    name = next((name for name in _PROMPTS if name in item), None)
    if name is None:
        raise InputError(
            f"{place}: neither hash_ids, token ids nor conversations",
            fix="see docs/reuse.md for what a line of a trace is",
        )
    named: dict[Any, tuple[str, Any]] = {}
    ids = [named.setdefault(token, ("token", token)) for token in _list(place, item, name)]
    answer = next((_list(place, item, name, empty=True) for name in _ANSWERS if name in item), None)
    prompt = len(ids)
    if answer is None:
        return _answered(ids, list(range(1, prompt + 1)), _answer_length(place, item), private)
    ids += [named.setdefault(token, ("token", token)) for token in answer]
    return Request(tuple(ids), tuple(range(1, len(ids) + 1)), prompt)


def _answered(ids: list[Any], ends: list[int], answer: int, private: Iterator[int]) -> Request:
    """A request whose answer is known by its length alone: nobody shares it."""
    prompt = ends[-1]
    if answer:
        ids.append(("answer", next(private)))
        ends.append(prompt + answer)
    return Request(tuple(ids), tuple(ends), prompt)


def _conversation(place: _Place, item: dict[str, Any], private: Iterator[int]) -> Iterator[Request]:
    """A request for each answer of the model: all that was said before it is its prompt."""
    ids: list[Any] = []
    ends: list[int] = []
    turns = _list(place, item, "conversations")
    if len(turns) > MOST_TURNS:
        raise InputError(f"{place}: a conversation of {len(turns):,} turns; at most {MOST_TURNS:,} are simulated")
    for turn in turns:
        if not isinstance(turn, dict):
            raise InputError(
                f"{place}: a turn of a conversation is an object", fix='write {"from": "human", "value": ".."}'
            )
        tokens = _turn_tokens(place, turn)
        prompt = ends[-1] if ends else 0
        ids.append(next(private))
        ends.append(prompt + tokens)
        if str(turn.get("from", turn.get("role", ""))).lower() in _FROM_MODEL and prompt:
            yield Request(tuple(ids), tuple(ends), prompt)


def _turn_tokens(place: _Place, turn: dict[str, Any]) -> int:
    if "tokens" in turn:
        return _whole(place, turn, "tokens", 1, least=1)
    said = turn.get("value", turn.get("content", ""))
    parts = said if isinstance(said, list) else [said]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    characters = sum(len(text) for text in texts if isinstance(text, str))
    return max(-(-characters // CHARACTERS_PER_TOKEN), 1)


def _answer_length(place: _Place, item: dict[str, Any]) -> int:
    name = next((name for name in _LENGTHS if name in item), _LENGTHS[0])
    return _whole(place, item, name, 0, least=0)


def _list(place: _Place, item: dict[str, Any], name: str, *, empty: bool = False) -> list[Any]:
    value = item[name]
    if not isinstance(value, list) or not (value or empty):
        raise InputError(f"{place}: {name} is no list with something in it")
    if len(value) > MOST_RUNS:
        raise InputError(f"{place}: {name} holds {len(value):,}; at most {MOST_RUNS:,} are simulated")
    if name != "conversations" and not {int, str}.issuperset(map(type, value)):
        raise InputError(f"{place}: {name} holds something else than numbers and strings")
    return value


def _whole(place: _Place, item: dict[str, Any], name: str, default: int, *, least: int) -> int:
    value = item.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31:
        raise InputError(f"{place}: {name} {str(value)[:20]} is no usable number of tokens")
    return value
