"""Which release and which model does the text around a log name? Issue forms, environment dumps, tags of images, prose.

    vLLM Version : 0.29.0      vllm==0.29.0      vllm/vllm-openai:v0.29.0      Model: Qwen/Qwen3.8-27B

No engine prints these lines of a start: they are hints, and no part of a boot. A name is STATED where a label, a list
of packages or an image's tag says what it is, and MENTIONED anywhere else; what names mean is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from hybridcalc.bootlog import Found, Record

RELEASE, MODEL = "named_release", "named_model"
"""Kinds of records: of an engine's release, its figures "release_of" and "release"; of a model, its figure "named"."""
HOW, STATED, MENTIONED = "how", "stated", "mentioned"
LONGEST_NAME = 96

_VERSION = (
    rb"v?(?P<version>[0-9]{1,2}(?:\.(?:0|[1-9][0-9]?)){1,2}(?:\.?(?:post|dev|rc)[0-9]{0,8})*)"
    rb"(?![0-9.]*[0-9]|[ ]?%|[ ]{1,3}[A-Z][ ])"
)
"""No part of a release has a zero in front or three digits; a clock, with the letter of a level behind it, has."""
_ENGINE = rb"(?<![\w/.@-])(?P<engine>vllm|sglang)"
_STATED = (
    _ENGINE + rb"[ ]{0,3}(?:(?:engine|server|docker|image|package)[ ])?(?:version|release|build)\W{1,40}?" + _VERSION,
    _ENGINE + rb"[ ]?==[ ]?" + _VERSION,
    rb"\bName:[ ]{1,8}(?P<engine>vllm|sglang)[ ]{0,8}[\r\n\v]{1,4}Version:[ ]{1,8}" + _VERSION,
    rb"(?P<engine>vllm)/vllm-[a-z]{1,20}(?:-[a-z0-9]{1,12})?:" + _VERSION,
    rb"\blmsysorg/(?P<engine>sglang)(?:-[a-z0-9]{1,12})?:" + _VERSION,
    rb"^[\W_]{0,8}(?P<engine>vllm|sglang)(?:[ \t]{0,3}[:|=][ \t|]{0,40}|[ \t]{2,40})" + _VERSION,
)
_PROSE = _ENGINE + rb"[ ]{1,3}\(?" + _VERSION
_OF_ANOTHER = re.compile(
    rb"(?:before|since|until|after|from|to|than|like|fixed in|works? (?:on|in|with)|[<>]=?)[ ]*\Z", re.IGNORECASE
)
"""Words in front of a release that was not the one which ran."""
_ID = rb"(?:[A-Za-z][\w.-]{1,40}/)?[A-Za-z][\w.+-]{1,80}(?::[\w.-]{1,40})?"
_LABEL = (
    rb"^[\W_]{0,8}(?:the[ ]|my[ ]|target[ ]|base[ ]|main[ ])?(?:models?|checkpoint|hf[ _-]model)"
    rb"(?:[ _-]{1,2}(?:name|id|path|used|tested|repo|version|checkpoint))?[ \t]{0,30}[:|=][ \t|\"']{0,40}"
    rb"(?:https?://)?(?:huggingface\.co/|hf\.co/)?(?P<name>" + _ID + rb")"
)
_MENTION = (
    rb"(?<![\w.-])(?P<name>(?:[A-Za-z][\w.-]{1,40}/)?[A-Za-z]{2}[A-Za-z-]{0,20}[0-9][0-9.]{0,6}"
    rb"(?:[A-Za-z]{0,4}(?:[-_:][A-Za-z0-9.]{1,24}){1,8}|[A-Za-z0-9-]{0,12}[ ][0-9]{1,4}B(?:-A[0-9]{1,3}B)?\b))"
)
_RELEASES = tuple(re.compile(one, re.IGNORECASE | re.MULTILINE) for one in (*_STATED, _PROSE))
_MORE = re.compile(rb"[`'\"]?[ ]?,[ ]?[`'\"]?[A-Za-z][\w./-]{0,40}[0-9]")
_MODELS = re.compile(_LABEL, re.IGNORECASE | re.MULTILINE), re.compile(_MENTION)


def find(text: bytes) -> Iterator[Found]:
    """What the text names, each once; lines are counted from 1 within it. Never raises."""
    text, seen = text.replace(b"\v", b"\n"), set[tuple[str, ...]]()
    for start, end, kind, figures in (*_releases(text), *_models(text)):
        if (kind, *(value for _, value in figures)) not in seen:
            seen.add((kind, *(value for _, value in figures)))
            yield Found(start, end, Record("", kind, figures, "", 1 + text.count(b"\n", 0, start)))


_Named = tuple[int, int, str, tuple[tuple[str, str], ...]]


def _releases(text: bytes) -> Iterator[_Named]:
    for pattern in _RELEASES:
        for match in pattern.finditer(text):
            how = STATED if pattern is not _RELEASES[-1] else MENTIONED
            if how == MENTIONED and _OF_ANOTHER.search(text, max(0, match.start("engine") - 24), match.start("engine")):
                continue
            figures = ("release_of", match["engine"].decode().lower()), ("release", match["version"].decode())
            yield match.start("version"), match.end(), RELEASE, (*figures, (HOW, how))


def _models(text: bytes) -> Iterator[_Named]:
    for pattern, how in zip(_MODELS, (STATED, MENTIONED), strict=True):
        for match in pattern.finditer(text):
            name = match["name"].decode().rstrip(".-:+")
            if how == STATED and _MORE.match(text, match.end()):
                continue  # a label in front of several says of none that it ran
            if any(map(str.isdigit, name)) and len(name) <= LONGEST_NAME:
                yield match.start("name"), match.end(), MODEL, (("named", name), (HOW, how))
