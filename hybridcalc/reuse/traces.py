"""Which requests did a server really get? Recorded requests, one JSON object a line, read as a stream.

    block hashes   {"hash_ids": [..], "input_length": n, "output_length": m}; a hash stands for "block_size" tokens
                   (512, as in Mooncake's traces) and for all before it: equal hashes, equal prefix
    token ids      {"prompt_token_ids": [..], "output_token_ids": [..]} (or "token_ids", "input_ids"; "output_length")
    conversations  {"conversations": [{"from": "human", "value": ".."}, ..]} as in ShareGPT; a turn may state its
                   "tokens", else a token is taken for four characters. Each answer of the model is one request

A file that is one JSON array of such objects is read as well. Conversations take turns: OPEN_CONVERSATIONS of them are
open at a time. What is in memory is one object and the open conversations; nothing that is read is run. Units: tokens.
"""

import json
from collections import deque
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from hybridcalc.errors import InputError
from hybridcalc.reuse.requests import Request, Workload

HASH_BLOCK = 512
"""Tokens that a hash of Mooncake's traces stands for."""
OPEN_CONVERSATIONS = 64
CHARACTERS_PER_TOKEN = 4
LARGEST_OBJECT = 2**26
"""Characters of one object: 64 Mi, more than a prompt of ten million tokens."""
_READ = 2**20
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
        if not found.is_file():
            raise InputError(f"{path[:80]!r} is no trace: no such file", fix="write the name of a JSONL file")
    except (OSError, ValueError):
        raise InputError(f"{path[:80]!r} is no file name") from None
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
    with path.open(encoding="utf-8", errors="replace") as stream:
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
            raise InputError(f"{path}:{number}: a line of more than {LARGEST_OBJECT:,} characters")
        yield line


def _array(path: Path, stream: TextIO, line: int) -> Iterator[tuple[_Place, dict[str, Any]]]:
    """The elements of one JSON array, decoded as soon as they are complete."""
    decoder, text = json.JSONDecoder(), ""
    while True:
        more = stream.read(_READ)
        text += more
        while True:
            start = len(text) - len(text.lstrip(" \t\r\n,"))
            line += text.count("\n", 0, start)
            text = text[start:]
            if text.startswith("]"):
                return
            place = _Place(str(path), line)
            try:
                item, end = decoder.raw_decode(text)
            except RecursionError:
                raise InputError(f"{place}: nested too deeply") from None
            except ValueError:
                break
            yield place, _object(place, item)
            line += text.count("\n", 0, end)
            text = text[end:]
        if not more:
            raise InputError(f"{place}: this is not JSON, or it is cut off")
        if len(text) > LARGEST_OBJECT:
            raise InputError(f"{place}: an object of more than {LARGEST_OBJECT:,} characters, or no JSON")


def _parsed(place: _Place, text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(f"{place}: nested too deeply") from None
    except ValueError as error:
        raise InputError(f"{place}: this is not JSON: {str(error)[:80]}") from None


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
    ids = [("token", token) for token in _list(place, item, name)]
    answer = next((_list(place, item, name) for name in _ANSWERS if name in item), None)
    prompt = len(ids)
    if answer is None:
        return _answered(ids, list(range(1, prompt + 1)), _answer_length(place, item), private)
    ids += [("token", token) for token in answer]
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
    for turn in _list(place, item, "conversations"):
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
    text = turn.get("value", turn.get("content", ""))
    return max(-(-len(text) // CHARACTERS_PER_TOKEN), 1) if isinstance(text, str) else 1


def _answer_length(place: _Place, item: dict[str, Any]) -> int:
    name = next((name for name in _LENGTHS if name in item), _LENGTHS[0])
    return _whole(place, item, name, 0, least=0)


def _list(place: _Place, item: dict[str, Any], name: str) -> list[Any]:
    value = item[name]
    if not isinstance(value, list) or not value:
        raise InputError(f"{place}: {name} is no list with something in it")
    if name != "conversations" and not all(isinstance(entry, int | str) for entry in value):
        raise InputError(f"{place}: {name} holds something else than numbers and strings")
    return value


def _whole(place: _Place, item: dict[str, Any], name: str, default: int, *, least: int) -> int:
    value = item.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31:
        raise InputError(f"{place}: {name} {str(value)[:20]} is no usable number of tokens")
    return value
