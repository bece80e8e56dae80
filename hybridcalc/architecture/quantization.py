"""Which matrices of a checkpoint are quantised, how, and how many bytes a quantised matrix takes.

    fp8   NK + scales (a block of 128 x 128, a row, a matrix)     int4   NK/2 + 2N*K/g [+ N*K/(2g) zero points]
    nvfp4 NK/2 + NK/16      mxfp4 NK/2 + NK/32      mxfp8 NK + NK/32      nf4 NK/2 + 4NK/64

N rows, K columns, g a group's columns. quantization_config.py reads it from a checkpoint, quantization_names.py knows
what launches and names of checkpoints say. Routers, convolutions, norms and embeddings are never quantised; which
matrices stay in 16 bits beside them is a list of names, globs and regular expressions: the larger part of any error.
Mirrors SGLang layers/quantization/*.py (is_layer_skipped, is_layer_excluded), vLLM quantization/utils (0.5.23, 0.33.0).
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import NamedTuple

from hybridcalc.errors import InputError, quoted

LONGEST_PATTERN = 400
_PREFIXES = ("model.", "language_model.", "backbone.")
_BEFORE = frozenset(prefix[:-1] for prefix in _PREFIXES)
_COUNTS = re.compile(r"(?<![A-Za-z0-9_{,])[0-9]+(?![A-Za-z0-9_}])")
"""A number in a glob or an expression, no part of a word: one of a layer, as far as anybody can tell."""


class Scheme(NamedTuple):
    """How one matrix is stored: ``bits`` a weight, and its scales: one of ``scale_bytes`` for ``block`` (rows, columns;
    0: all of them) of it, ``fixed`` bytes beside, packed ``zero_points`` or none, ``order`` bytes a column where their
    order counts.
    """

    name: str
    bits: int
    block: tuple[int, int] = (0, 0)
    scale_bytes: int = 4
    fixed: int = 0
    zero_points: bool = False
    order: int = 0

    def stored(self, rows: Iterable[int], columns: int, *, scale_bytes: int | None = None) -> int:
        """Bytes of a matrix whose rows are cut into parts that are scaled each by itself."""
        high, wide = self.block
        scale = self.scale_bytes if scale_bytes is None else scale_bytes
        across = -(-columns // wide) if wide else 1
        total = self.order * columns
        for part in rows:
            down = -(-part // high) if high else 1
            total += -(-part * columns * self.bits // 8) + scale * down * across + self.fixed
            total += -(-part * across * self.bits // 8) if self.zero_points else 0
        return total


FP8_BLOCK = Scheme("fp8 128x128", 8, (128, 128))
FP8_CHANNEL = Scheme("fp8 per channel", 8, (1, 0))
FP8_TENSOR = Scheme("fp8 per tensor", 8, (0, 0), fixed=4)
MXFP8 = Scheme("mxfp8", 8, (1, 32), 1)
NVFP4 = Scheme("nvfp4", 4, (1, 16), 1, fixed=8)
MXFP4 = Scheme("mxfp4", 4, (1, 32), 1)
NF4 = Scheme("nf4", 4, (1, 64))
INT8 = Scheme("int8 per channel", 8, (1, 0))


def integers(bits: int, group: int, *, symmetric: bool = True) -> Scheme:
    """Packed integers with a 16-bit scale a group of columns (0: a row), and packed zero points unless symmetric."""
    name = f"int{bits} g{group}" if group else f"int{bits}"
    return Scheme(name + ("" if symmetric else " asymmetric"), bits, (1, group), 2, zero_points=not symmetric)


class Named(dict[str, Scheme]):
    """Schemes of modules by name."""

    def __hash__(self) -> int:  # type: ignore[override]
        return len(self)

    def of(self, name: str) -> Scheme | None:
        """The scheme of a module under any of the names that a list may have it by."""
        return next((self[each] for each in _listed_as(name) if each in self), None)

    def of_layers(self, name: str, layers: Sequence[int]) -> dict[Scheme | None, list[int]]:
        """The layers of each scheme, for a name with ``{}`` in place of the layer's number."""
        tables = [found for each in _listed_as(name) if (found := self._numbered.get(each))]
        having: dict[Scheme | None, list[int]] = {}
        for layer in layers:
            having.setdefault(next((t[layer] for t in tables if layer in t), None), []).append(layer)
        return having

    @cached_property
    def _numbered(self) -> dict[str, dict[int, Scheme]]:
        tables: dict[str, dict[int, Scheme]] = {}
        for name, scheme in self.items():
            form, number = _numbered(name)
            if number is not None:
                tables.setdefault(form, {})[number] = scheme
        return tables


def _listed_as(name: str) -> Iterator[str]:
    bare = name.removeprefix("model.language_model.").removeprefix("model.")
    yield name
    for prefix in ("", "model.", "model.language_model."):
        for end in ("", ".0.up_proj", ".0.gate_proj"):
            yield prefix + bare + end


def _numbered(name: str) -> tuple[str, int | None]:
    """A name with ``{}`` in place of its first number, and that number; None for a name without any."""
    parts = name.split(".")
    for at, part in enumerate(parts):
        if part.isdecimal() and len(part) < 6:
            return ".".join((*parts[:at], "{}", *parts[at + 1 :])), int(part)
    return name, None


class Patterns:
    """What modules are listed by: whole names, their beginnings up to a dot, parts of names, globs, regular
    expressions; ready to be held against many names.
    """

    def __init__(self, listed: Iterable[str]) -> None:
        self.whole, self.beginnings = set[str](), set[str]()
        self.numbered: dict[str, set[int]] = {}
        expressions, globs, numbers = list[str](), list[str](), list[str]()
        for pattern in listed:
            if pattern.startswith("re:"):
                expressions.append(pattern[3:])
                continue
            if pattern.isdecimal():
                numbers.append(pattern)
            elif any(letter in pattern for letter in "*?["):
                globs.append(pattern)
                continue
            self.whole.add(pattern)
            bare = _bare(pattern)
            self.beginnings.add(bare)
            form, number = _numbered(bare)
            if number is not None:
                self.numbered.setdefault(form, set()).add(number)
        self._firsts = {beginning.partition(".")[0] for beginning in self.beginnings}
        self.by_layer = bool(numbers) or any(map(_COUNTS.search, (*globs, *expressions)))
        """Whether one of globs and expressions holds a number, so that each layer is asked for by itself."""
        self._expressions = _joined([compiled(each) for each in dict.fromkeys(expressions)])
        plain = {glob for glob in globs if glob.endswith("*") and not any(c in glob[:-1] for c in "*?[")}
        self._starts, self._bare_starts = (tuple({form(glob)[:-1] for glob in plain}) for form in (str, _bare))
        others = [glob for glob in globs if glob not in plain]
        self._globs, self._bare_globs = _any_glob(others), _any_glob(map(_bare, others))
        self._named = bool(self.whole or globs)

    def match(self, name: str) -> bool:
        """Whether one of them names a module."""
        for expression in self._expressions:
            if expression.match(name):
                return True
        if not self._named:
            return False
        parts = name.split(".")
        bare = _bare(name) if parts[0] in _BEFORE else name
        if self.whole:
            if name in self.whole or not self.whole.isdisjoint(parts):
                return True
            if bare.partition(".")[0] in self._firsts and not self.beginnings.isdisjoint(_beginnings(bare)):
                return True
        if self._starts and (
            bare.startswith(self._bare_starts)
            or name.startswith(self._starts)
            or any(part.startswith(self._starts) for part in parts)
        ):
            return True
        if self._globs is None or self._bare_globs is None:
            return False
        match = self._globs.match
        return bool(match(name) or self._bare_globs.match(bare) or any(map(match, parts)))

    def layers(self, name: str) -> set[int]:
        """The layers whose own name is listed, for a name with ``{}`` in place of the layer's number."""
        found = set[int]()
        if self.numbered:
            for beginning in _beginnings(name):
                found |= self.numbered.get(beginning, set())
        return found


_patterns = lru_cache(maxsize=64)(Patterns)


class Quantization(NamedTuple):
    """How a checkpoint is quantised: ``scheme`` for what no name excludes, or ``named`` modules alone, by name.

    ``only``: the names (patterns) that are quantised, none for all. ``experts_only``, ``head``: whether nothing but
    routed experts is, whether the output head is. ``scale_bytes``: of a scale on disk, where it differs from the card.
    """

    method: str
    scheme: Scheme | None
    excluded: tuple[str, ...] = ()
    only: tuple[tuple[str, Scheme], ...] = ()
    named: Named | None = None
    experts_only: bool = False
    head: bool = False
    scale_bytes: int | None = None

    def of(self, name: str, *, expert: bool = False) -> Scheme | None:
        """The scheme of a module, by its name in the checkpoint; None for one that stays in the model's dtype."""
        if self.named is not None:
            return self.named.of(name)
        return self._of(name, _patterns(self.excluded), expert)

    def _of(self, name: str, excluded: Patterns, expert: bool) -> Scheme | None:
        if (self.experts_only and not expert) or (name.startswith("lm_head") and not self.head):
            return None
        spelt = _spellings(name, expert)
        for spelling in spelt:
            if excluded.match(spelling):
                return None
        if self.only:
            return next((s for p, s in self.only if any(map(_patterns((p,)).match, spelt))), None)
        return self.scheme

    def of_layers(self, name: str, layers: Sequence[int], *, expert: bool = False) -> dict[Scheme | None, list[int]]:
        """The layers of each scheme, for a module's name with ``{}`` in place of the layer's number."""
        if self.named is not None:
            return self.named.of_layers(name, layers)
        excluded = _patterns(self.excluded)
        having: dict[Scheme | None, list[int]] = {}
        if excluded.by_layer or any(_COUNTS.search(pattern) for pattern, _ in self.only):
            for layer in layers:
                having.setdefault(self._of(name.replace("{}", str(layer)), excluded, expert), []).append(layer)
            return having
        if not excluded.numbered:
            return {self._of(name.replace("{}", str(layers[0])), excluded, expert): list(layers)}
        kept = set[int]().union(*map(excluded.layers, _spellings(name, expert)))
        having[None] = [layer for layer in layers if layer in kept]
        layers = [layer for layer in layers if layer not in kept]
        if layers:
            having.setdefault(self._of(name.replace("{}", str(layers[0])), excluded, expert), []).extend(layers)
        return {scheme: those for scheme, those in having.items() if those}


_APART = {
    "in_proj_qkvz": ("in_proj_qkvz", "in_proj_qkv", "in_proj_z"), "in_proj_ba": ("in_proj_ba", "in_proj_b"),
    "qkv_proj": ("qkv_proj", "q_proj"),
}  # fmt: skip
"""The parts of joined matrices, as checkpoints list them."""


def _spellings(name: str, expert: bool) -> tuple[str, ...]:
    """The names under which checkpoints list a module: of its parts before they are joined, and of one expert."""
    inside, _, own = name.rpartition(".")
    apart = _APART.get(own)
    names = (name,) if apart is None else tuple(f"{inside}.{each}" if inside else each for each in apart)
    return (*names, f"{name}.0.gate_proj", f"{name}.0.up_proj") if expert else names


def _bare(name: str) -> str:
    """A name without the prefixes of a multimodal model."""
    while name.startswith(_PREFIXES):
        name = name[name.index(".") + 1 :]
    return name


def _beginnings(name: str) -> Iterator[str]:
    """A name without its prefixes, up to each of its dots and as a whole."""
    bare = _bare(name)
    end = bare.find(".")
    while end >= 0:
        yield bare[:end]
        end = bare.find(".", end + 1)
    yield bare


def _any_glob(globs: Iterable[str]) -> "re.Pattern[str] | None":
    """Names, or their beginnings up to a dot, that any of these globs matches; None for no globs."""
    forms = [translate(each).removesuffix("\\Z").removesuffix("\\z") for each in globs]
    return re.compile(f"(?:{'|'.join(forms)})(?:\\..*)?\\Z", re.DOTALL) if forms else None


def _joined(expressions: "list[re.Pattern[str]]") -> "list[re.Pattern[str]]":
    """Expressions as one of their alternatives; as they are where one has groups of its own to refer to, or flags."""
    if len(expressions) < 2 or any("(?" in each.pattern or re.search(r"\\[0-9]", each.pattern) for each in expressions):
        return expressions
    return [re.compile("|".join(f"(?:{each.pattern})" for each in expressions))]


@lru_cache(maxsize=512)
def compiled(pattern: str, what: str = "quantisation pattern") -> "re.Pattern[str]":
    """A pattern of somebody's file: bounded in length, and without the nested repeats that take exponential time.

    Raises InputError naming ``what`` it is.
    """
    repeated = re.search(r"[*+}]\)?[*+{]|\([^)]*[*+][^)]*\)[*+{]", pattern)
    if len(pattern) > LONGEST_PATTERN or repeated:
        raise InputError(f"{what} {quoted(pattern)} is not read", fix="give --weights SIZE")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise InputError(f"{what} {quoted(pattern)} is no regular expression") from None
