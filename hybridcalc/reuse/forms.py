"""What does one object of a trace say of its requests? A form each for hashes, tokens, texts, conversations, lengths.

    block hashes   a hash stands for a block of tokens and for all before it: equal hashes, equal prefix. 512 tokens as
                   in Mooncake's traces, 16 where the object has a "chat_id" as in Qwen-Bailian's, or "block_size"
    token ids      of the prompt, and of the answer or its length
    texts          a prompt, or messages (in a "body" too): four characters are a token. A prompt agrees with others in
                   stretches of sixteen tokens, messages agree as a whole
    conversations  turns, each answer of the model is a request; or the lengths of the prompts, each from the history on
    lengths        of prompt and answer alone: nothing is shared, but that a session goes on from what it said before
                   where its prompt is longer than that

Units: tokens.
"""

from collections.abc import Iterator
from typing import Any

from hybridcalc.errors import InputError
from hybridcalc.reuse.reading import LineOfFile
from hybridcalc.reuse.requests import Request

HASH_BLOCK, CHAT_HASH_BLOCK = 512, 16
"""Tokens that a hash stands for, in Mooncake's traces and in Qwen-Bailian's."""
CHARACTERS_PER_TOKEN, STRETCH = 4, 16
ANSWER_OF_A_TOOL_CALL = 220
"""Tokens of an answer that a trace of agents does not state, as SGLang's benchmark takes them."""
MOST_RUNS = 2**21
"""Tokens, hashes or turns of one object."""
MOST_TURNS = 2000
"""Turns of a conversation: each answer is looked up through all that were before it."""
HASHES = ("hash_ids", "block_hashes")
TOKENS, ANSWER_TOKENS = ("prompt_token_ids", "token_ids", "input_ids"), ("output_token_ids", "output_ids")
TEXTS = ("prompt", "messages", "body")
PROMPTS = (
    "input_length", "contexttokens", "request tokens", "input_tokens", "prompt_tokens", "num_prefill_tokens",
)  # fmt: skip
ANSWERS = (
    "output_length", "output_tokens", "generatedtokens", "response tokens", "completion_tokens", "num_decode_tokens",
)  # fmt: skip
SESSIONS = ("session id", "session_id", "conversation_id")
LISTED = "input_lens"
"""Lengths of all prompts of a benchmark, as SGLang and vLLM write them with their details."""
_FROM_MODEL = ("gpt", "assistant", "model", "chatgpt", "bard", "bing")
Runs = tuple[tuple[Any, ...], tuple[int, ...]]
NOTHING: Runs = ((), ())


def hashed(place: LineOfFile, item: dict[str, Any], private: Iterator[int]) -> Request:
    """A request of block hashes."""
    hashes = _list(place, item, _first(item, HASHES))
    block = _whole(place, item, "block_size", CHAT_HASH_BLOCK if "chat_id" in item else HASH_BLOCK, least=1)
    prompt = _whole(place, item, "input_length", block * len(hashes), least=1)
    if not block * (len(hashes) - 1) < prompt:
        raise InputError(
            f"{place}: {len(hashes)} hashes of {block} tokens are more than input_length {prompt}",
            fix='add "block_size", the tokens that a hash stands for',
        )
    ends = [*range(block, block * len(hashes), block), min(prompt, block * len(hashes))]
    ids: list[Any] = list(hashes)
    if prompt > ends[-1]:
        ids.append(next(private))
        ends.append(prompt)
    return _answered((tuple(ids), tuple(ends)), _answer(place, item), private)


def tokens(place: LineOfFile, item: dict[str, Any], private: Iterator[int]) -> Request:
    """A request of token ids."""
    named: dict[Any, tuple[str, Any]] = {}
    ids = [named.setdefault(token, ("token", token)) for token in _list(place, item, _first(item, TOKENS))]
    answer = next((_list(place, item, name, empty=True) for name in ANSWER_TOKENS if name in item), None)
    prompt = len(ids)
    if answer is None:
        return _answered((tuple(ids), tuple(range(1, prompt + 1))), _answer(place, item), private)
    ids += [named.setdefault(token, ("token", token)) for token in answer]
    return Request(tuple(ids), tuple(range(1, len(ids) + 1)), prompt)


def texts(place: LineOfFile, item: dict[str, Any], private: Iterator[int]) -> Iterator[Request]:
    """The request of a prompt; those of messages, one for each answer among them, or of all of them where none is."""
    body = item.get("body", item)
    if not isinstance(body, dict):
        raise InputError(f"{place}: body is no object")
    if "messages" in body:
        yield from _messages(place, body, private)
        return
    said = body.get("prompt")
    if not isinstance(said, str) or not said:
        raise InputError(f"{place}: prompt is no text")
    step = STRETCH * CHARACTERS_PER_TOKEN
    cut = [said[start : start + step] for start in range(0, len(said), step)]
    length = -(-len(said) // CHARACTERS_PER_TOKEN)
    ends = (*range(STRETCH, STRETCH * len(cut), STRETCH), length)
    yield _answered((tuple(map(hash, cut)), ends), _answer(place, body), private)


def _messages(place: LineOfFile, body: dict[str, Any], private: Iterator[int]) -> Iterator[Request]:
    runs, answers = NOTHING, 0
    for turn in _turns(place, body, "messages"):
        length, prompt = _turn_tokens(place, turn), runs[1][-1] if runs[1] else 0
        runs = (*runs[0], hash((_speaker(turn), str(turn.get("content", ""))))), (*runs[1], prompt + length)
        if _speaker(turn) in _FROM_MODEL and prompt:
            answers += 1
            yield Request(*runs, prompt)
    if not answers:
        yield _answered(runs, _answer(place, body), private)


def conversation(place: LineOfFile, item: dict[str, Any], private: Iterator[int]) -> Iterator[Request]:
    """A request for each answer of the model: all that was said before it is its prompt."""
    runs = NOTHING
    turns = _turns(place, item, "conversations")
    named = any(_speaker(turn) for turn in turns)
    for number, turn in enumerate(turns):
        prompt = runs[1][-1] if runs[1] else 0
        runs = (*runs[0], next(private)), (*runs[1], prompt + _turn_tokens(place, turn))
        if (_speaker(turn) in _FROM_MODEL if named else number % 2) and prompt:
            yield Request(*runs, prompt)


def agents(place: LineOfFile, talk: list[Any], private: Iterator[int]) -> Iterator[Request]:
    """The requests of an agent, of which each states how long its prompt is: the one before, its answer, and more."""
    runs = NOTHING
    for turn in _turns(place, {"conversations": talk}, "conversations"):
        prompt = _whole(place, turn, "prompt_tokens", 0, least=1)
        request = goes_on(runs, prompt, _whole(place, turn, ANSWERS[1], ANSWER_OF_A_TOOL_CALL, least=0), private)
        runs = request.ids, request.ends
        yield request


def length(place: LineOfFile, item: dict[str, Any]) -> tuple[int, int]:
    """Tokens of the prompt and of the answer. Raises InputError where the object says neither that nor anything."""
    name = _first(item, PROMPTS)
    if not name:
        raise InputError(
            f"{place}: neither hash_ids, token ids, texts, conversations nor lengths",
            fix="see docs/reuse.md for what a line of a trace is",
        )
    return _whole(place, item, name, 0, least=0), _answer(place, item)


def lengths(place: LineOfFile, item: dict[str, Any]) -> Iterator[tuple[int, int]]:
    """Tokens of prompt and answer of each request of a benchmark."""
    prompts = _list(place, item, LISTED)
    answers = item.get("output_lens", [0] * len(prompts))
    if not isinstance(answers, list) or len(answers) != len(prompts):
        raise InputError(f"{place}: output_lens and {LISTED} are not equally many")
    for prompt, answer in zip(prompts, answers, strict=True):
        row = {LISTED: prompt, "output_lens": answer}
        yield _whole(place, row, LISTED, 0, least=0), _whole(place, row, "output_lens", 0, least=0)


def goes_on(said: Runs, prompt: int, answer: int, private: Iterator[int]) -> Request:
    """A request of a session that has ``said`` so much: its prompt begins with that where it is longer."""
    ids, ends = said if said[1] and prompt > said[1][-1] else NOTHING
    return _answered(((*ids, next(private)), (*ends, prompt)), answer, private)


def _answered(runs: Runs, answer: int, private: Iterator[int]) -> Request:
    """A request whose answer is known by its length alone: nobody shares it but who goes on from it."""
    ids, ends = runs
    prompt = ends[-1]
    if answer:
        ids, ends = (*ids, next(private)), (*ends, prompt + answer)
    return Request(ids, ends, prompt)


def _first(item: dict[str, Any], names: tuple[str, ...]) -> str:
    return next((name for name in names if name in item), "")


def _speaker(turn: dict[str, Any]) -> str:
    return str(turn.get("from", turn.get("role", ""))).lower()


def _turns(place: LineOfFile, item: dict[str, Any], name: str) -> list[dict[str, Any]]:
    turns = _list(place, item, name)
    if len(turns) > MOST_TURNS:
        raise InputError(f"{place}: a conversation of {len(turns):,} turns; at most {MOST_TURNS:,} are simulated")
    for turn in turns:
        if not isinstance(turn, dict):
            raise InputError(
                f"{place}: a turn of a conversation is an object", fix='write {"from": "human", "value": ".."}'
            )
    return turns


def _turn_tokens(place: LineOfFile, turn: dict[str, Any]) -> int:
    if "tokens" in turn:
        return _whole(place, turn, "tokens", 1, least=1)
    said = turn.get("value", turn.get("content", ""))
    parts = said if isinstance(said, list) else [said]
    read = [part.get("text") if isinstance(part, dict) else part for part in parts]
    characters = sum(len(text) for text in read if isinstance(text, str))
    return max(-(-characters // CHARACTERS_PER_TOKEN), 1)


def _answer(place: LineOfFile, item: dict[str, Any]) -> int:
    return _whole(place, item, _first(item, ANSWERS) or ANSWERS[0], 0, least=0)


def _list(place: LineOfFile, item: dict[str, Any], name: str, *, empty: bool = False) -> list[Any]:
    value = item[name]
    if not isinstance(value, list) or not (value or empty):
        raise InputError(f"{place}: {name} is no list with something in it")
    if len(value) > MOST_RUNS:
        raise InputError(f"{place}: {name} holds {len(value):,}; at most {MOST_RUNS:,} are simulated")
    if name not in ("conversations", "messages") and not {int, str}.issuperset(map(type, value)):
        raise InputError(f"{place}: {name} holds something else than numbers and strings")
    return value


def _whole(place: LineOfFile, item: dict[str, Any], name: str, default: int, *, least: int) -> int:
    value = item.get(name, default)
    if isinstance(value, str) and value.isascii() and value.removesuffix(".0").isdecimal() and len(value) < 20:
        value = int(value.removesuffix(".0"))
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**31:
        raise InputError(f"{place}: {name} {str(value)[:20]} is no usable number of tokens")
    return value
