r"""Which lines of an SGLang log say what was allocated, and what do they say?

State pool, 0.5.6 to 0.5.23 (one line; the second row only under speculative decoding; no space before GB):

    Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB
        intermediate_ssm_state_cache size: 1.05GB intermediate_conv_window_cache size: 0.02GB

KV pool (0.5.16 prints a dtype, older logs none; since 0.5.23 a label may stand before it; MLA has one figure):

    KV Cache is allocated. #tokens: 399740, K size: 1.52 GB, V size: 1.52 GB
    KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1167552, KV size: 15.03 GB
    Post-capture KV sizing: KV cache allocated. dtype: fp8, #tokens: 65536, KV size: 0.84 GB, avail mem=9.10 GB

"GB" is GiB, and sizes are those of K + 1 slots and of a page more than the tokens. The text is read as tokens
(announcement, label with its figure), and tokens that follow one another closely make a line, since people shorten,
reorder and wrap these lines in every way: within a line of text anything may stand between two tokens, across a line
end only punctuation. A line end may also fall inside a word or a number; a number is mended only if what comes after
it proves that it goes on. Not read: ``max_mamba_cache_size=`` (a setting, a limit or a refusal), "VA upper bound"
(an address range, not memory), source code with its placeholders, figures replaced by dots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hybridcalc.bootlog import Found, Record, Value
from hybridcalc.bootlog.forms import (
    COUNT,
    COUNT_ENDS,
    CUT,
    DTYPES,
    LINE_END,
    SIZE,
    SIZE_ENDS,
    SPACE,
    SPLIT_COUNT,
    Form,
    any_of,
    count_before,
    denied,
    either,
    printed,
    rank_in,
    spelt,
    word,
)

_LONGEST_ASIDE = 200
"""Bytes that may stand between two tokens of one line; whatever is farther apart is another statement."""
_IS = SPACE + rb"[:|]" + SPACE


def _count_after(label: str, follower: bytes) -> bytes:
    """``label: 257``. Digits behind a line end belong to it only if a comma and ``follower`` come after them."""
    return spelt(label) + _IS + count_before(SPACE + rb"[,|]" + SPACE + follower)


def _size_after(label: str) -> bytes:
    """``label size: 0.46GB``, ``label 0.46 GB``, ``label: 0.46GB``. The unit proves a number that a line end cuts."""
    labelled = word(label) + rb"(?:" + SPACE + spelt("size") + rb")?" + SPACE + rb"[:=|]?" + SPACE
    return labelled + SIZE + SIZE_ENDS


def _dtype_after(label: str, follower: bytes) -> bytes:
    """``label torch.bfloat16``: a dtype that is known, wherever it is cut, or another word with a digit in it, mended
    across line ends only before ``follower``.
    """
    cut_word = rb"[a-z](?:" + CUT + rb"[a-z0-9_]){1,40}?(?=" + SPACE + rb"," + SPACE + follower + rb")"
    torch = rb"(?:" + spelt("torch.") + CUT + rb")?"
    known = any_of(DTYPES)
    return word(label) + SPACE + torch + rb"(?:" + known + rb"|" + cut_word + rb"|[a-z]+[0-9]\w*+(?![\n\v][a-z0-9_]))"


_KV_CACHE = spelt("KV") + SPACE + rb"[Cc]" + CUT + spelt("ache")
_IS_ALLOCATED = SPACE + rb"(?:" + spelt("is") + SPACE + rb")?" + spelt("allocated")
_K_FIGURE = rb"K" + CUT + rb"V?" + SPACE + rb"(?:" + spelt("size") + rb"|[0-9])"
_PATTERNS = {
    "bracket": rb"\[[^\[\]]{2,48}\]",
    "aside": rb"\([^()]{3,24}\)",
    "state_pool": spelt("Mamba Cache") + _IS_ALLOCATED,
    "kv_pool": _KV_CACHE + _IS_ALLOCATED,
    "reserved": spelt("VA upper bound"),
    "limit": spelt("max_running_requests=") + SPACE + rb"(?:" + SPLIT_COUNT + rb"|" + COUNT + COUNT_ENDS + rb")",
    "slots": _count_after("max_mamba_cache_size", spelt("conv_state")),
    "slots_behind": rb"," + SPACE + COUNT + rb"(?=" + SPACE + spelt("slots") + rb"\b)",
    "intermediate_ssm": _size_after("intermediate_ssm_state_cache"),
    "intermediate_conv": _size_after("intermediate_conv_window_cache"),
    "conv": _size_after("conv_state"),
    "ssm": _size_after("ssm_state"),
    "tokens": rb"#" + CUT + _count_after("tokens", _K_FIGURE),
    "dtype": _dtype_after("dtype:", spelt("#tokens")),
    "kv": _size_after("KV"),
    "k": _size_after("K"),
    "v": _size_after("V"),
    "template": rb":(?<=size:|kens:|type:)" + SPACE + rb"[{%$<]",
}


_TOKEN = either(_PATTERNS)

_STATE_SIZES = ("conv", "ssm", "intermediate_ssm", "intermediate_conv")
_SIZES = (*_STATE_SIZES, "k", "v", "kv")
FORMS = (
    Form("state_pool", "Mamba Cache is allocated",
         (("slots", "", "max_mamba_cache_size"), ("conv", "", "conv_gib"), ("ssm", "", "ssm_gib"),
          ("intermediate_ssm", "", "intermediate_ssm_gib"), ("intermediate_conv", "", "intermediate_conv_gib"),
          ("limit", "", "max_running_requests")), settled=True, moment="after the pools were allocated"),
    Form("kv_pool", "KV Cache is allocated",
         (("tokens", "", "kv_tokens"), ("dtype", "", "kv_dtype"), ("k", "", "k_gib"), ("v", "", "v_gib"),
          ("kv", "", "kv_gib")), settled=True, repeats=True, moment="after the pools were allocated"),
    Form("kv_pool", "KV cache allocated"),
)  # fmt: skip
"""The two kinds of record that are read here: K and the parts of all K + 1 slots, with the scratch of speculative
decoding and the limit where a person wrote it beside the slots; and the tokens a pool admits with its parts, K and V or
both in one. A draft model's pool has the same form: only the order tells it from the target's.
"""
_FIGURES = {form.kind: tuple(name for name, *_ in form.figures) for form in FORMS if form.figures}
_FAMILY = {name: kind for kind, names in _FIGURES.items() for name in names} | {"slots_behind": "state_pool"}
_ANNOUNCEMENTS = ("state_pool", "kv_pool", "reserved", "template")

_VERBATIM = re.compile(rb"KV [Cc]ache (?:is )?allocated\. {1,2}#tokens: [0-9 ]{1,20}, {1,2}KV? size: ")
"""The KV pool's line as it is printed without a dtype, and not shortened by hand."""
_PUNCTUATION = re.compile(rb"(?:[\s,.;|\"'\\-]|\xe2\x80\xa6)*")


@dataclass(slots=True)
class _Line:
    """A log line being put together from its tokens. ``kind`` is a family, "reserved" or "template"."""

    kind: str
    rank: str
    start: int
    end: int
    tokens: dict[str, bytes] = field(default_factory=dict)


def find(text: bytes) -> Iterator[Found]:
    r"""The allocations that ``text`` reports, in its order; lines are counted from 1 within it. Never raises.

    ``text`` is a stretch of a log as paste.plain leaves it: ``\n`` and ``\v`` end a line, prefixes are gone, SGLang's
    own ``[2026-02-01 00:05:02 TP0]`` still stands. Source: SGLang mem_cache/memory_pool.py (0.5.16, 0.5.23).
    """
    number, counted = 1, 0
    for line in _lines(text):
        number, counted = number + text.count(b"\n", counted, line.start), line.start
        record = _record(line, number)
        if record is not None and _VERBATIM.match(LINE_END.sub(b" ", text[line.start : line.end])):
            record = replace(record, figures=(*record.figures, ("verbatim", "True")))
        if record is not None and not denied(text, line.start, line.end, line.end):
            yield Found(line.start, line.end, record)


def _lines(text: bytes) -> Iterator[_Line]:
    """Tokens that belong together, as lines; a line is given out once it can take no more."""
    line: _Line | None = None
    rank, rank_ends = "", 0
    for token in _TOKEN.finditer(text):
        name, start, end = token.lastgroup or "", *token.span()
        if name == "aside":
            if line and not line.rank and (_same_line(text, line.end, start) or not text[line.end : start].strip()):
                line.rank = rank_in(token[0]) or ""
            continue
        if name == "bracket":
            printed = rank_in(token[0])
            if printed is None:
                continue  # a shape, a clock, a source position
            rank, rank_ends = printed, end
        elif line and _takes(line, name) and (_close(text, line.end, start) or _in_prose(text, line, name, start)):
            _add(line, name, token)
            continue
        if line:
            yield line
        line = None
        if name in _ANNOUNCEMENTS or _opens(name, token[0]):
            line = _Line(_FAMILY.get(name, name), rank if _close(text, rank_ends, start) else "", start, end)
            _add(line, name, token)
    if line:
        yield line


def _takes(line: _Line, name: str) -> bool:
    """Whether a token may follow in ``line``: each figure once, the pool's count before its sizes."""
    if name == "template" or line.kind == "template":
        return name == "template" or name not in _ANNOUNCEMENTS
    if _FAMILY.get(name) != ("kv_pool" if line.kind == "reserved" else line.kind) or name in line.tokens:
        return False
    announced = line.kind in line.tokens
    return not (name in ("slots", "tokens") and announced and any(size in line.tokens for size in _SIZES))


def _add(line: _Line, name: str, token: re.Match[bytes]) -> None:
    if name == "template":
        line.kind = "template"  # from here on it is source code, whatever figures stand beside the placeholder
    line.tokens[name] = token[0]
    line.end = token.end()


def _opens(name: str, token: bytes) -> bool:
    """Whether a figure says enough by itself where its announcement is cut away.

    A lone "K 1.37 GB" could be anything, and so could "ssm_state 4.59 GB" in a sentence.
    """
    return name in ("slots", "tokens") or (name in ("conv", "ssm") and (b":" in token or b"|" in token))


def _same_line(text: bytes, start: int, end: int) -> bool:
    return end - start <= _LONGEST_ASIDE and not LINE_END.search(text, start, end)


def _in_prose(text: bytes, line: _Line, name: str, place: int) -> bool:
    """Whether a state's size goes on with a sentence that was wrapped: its label is like no other."""
    between = text[line.end : place]
    wrapped = len(between) <= _LONGEST_ASIDE and b"\n\n" not in between and b"[" not in between
    return name in _STATE_SIZES and "slots" in line.tokens and wrapped and len(LINE_END.findall(between)) <= 3


def _close(text: bytes, start: int, end: int) -> bool:
    """Whether what follows at ``end`` may still belong to what ended at ``start``."""
    punctuation = end - start <= _LONGEST_ASIDE and _PUNCTUATION.fullmatch(text, start, end) is not None
    return punctuation or _same_line(text, start, end)


def _record(line: _Line, number: int) -> Record | None:
    """What becomes of a finished line: nothing of a reserved address range, a template, or a line without a size.

    A bare ``#tokens: 4096`` is a pool only beside a size; an announced one may be cut off after its dtype.
    """
    figures: list[tuple[str, Value]] = []
    for name in _FIGURES.get(line.kind, ()):
        token = line.tokens.get(name, b"")
        if name == "slots" and not token:
            token = line.tokens.get("slots_behind", b"")  # somebody's sentence
        value = _dtype(token) if name == "dtype" else printed(token, "size" if name in _SIZES else "count")
        if value is not None and value != "":
            figures.append((name, value))
    said = {name for name, _ in figures}
    if line.kind == "kv_pool":
        says = not said.isdisjoint(_SIZES) or ("kv_pool" in line.tokens and bool(said))
    else:
        says = bool(said - {"limit"})
    told = "slots_behind" in line.tokens and "slots" not in line.tokens
    return Record("sglang", line.kind, tuple(figures), line.rank, number, told=told) if says else None


def _dtype(token: bytes) -> str:
    return LINE_END.sub(b"", token).partition(b":")[2].strip().removeprefix(b"torch.").decode()
