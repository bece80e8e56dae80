"""Which matrices of a checkpoint are quantised, how, and how many bytes a quantised matrix takes.

    fp8   NK + scales (a block of 128 x 128, a row, a matrix)     int4   NK/2 + 2N*K/g [+ N*K/(2g) zero points]
    nvfp4 NK/2 + NK/16      mxfp4 NK/2 + NK/32      mxfp8 NK + NK/32      nf4 NK/2 + 4NK/64

N rows, K columns, g a group's columns. Read from ``quantization_config`` of a config.json, or from the
``hf_quant_config.json`` that ModelOpt writes. Routers, convolutions, norms and embeddings are never quantised; which
matrices stay in 16 bits beside them is a list of names, globs and regular expressions: the larger part of any error.
Mirrors SGLang layers/quantization/*.py (is_layer_skipped, is_layer_excluded), vLLM quantization/utils (0.5.23, 0.33.0).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from hybridcalc.errors import InputError, quoted

MOST_NAMES = 200_000
"""Entries of a list of modules; the longest released ones name every expert of every layer."""
LONGEST_PATTERN = 400
_PREFIXES = ("model.", "language_model.", "backbone.")
_COUNTS = re.compile(r"(^|[.\\])[0-9]+([.\\*]|$)")
"""A number in a glob or an expression: one of a layer, as far as anybody can tell."""


class Scheme(NamedTuple):
    """How one matrix is stored: ``bits`` a weight, and its scales: one of ``scale_bytes`` for ``block`` (rows, columns;
    0: all of them) of it, ``fixed`` bytes beside, packed ``zero_points`` or none.
    """

    name: str
    bits: int
    block: tuple[int, int] = (0, 0)
    scale_bytes: int = 4
    fixed: int = 0
    zero_points: bool = False

    def stored(self, rows: Iterable[int], columns: int, *, scale_bytes: int | None = None) -> int:
        """Bytes of a matrix whose rows are cut into parts that are scaled each by itself."""
        high, wide = self.block
        scale = self.scale_bytes if scale_bytes is None else scale_bytes
        across = -(-columns // wide) if wide else 1
        total = 0
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

MODELOPT = {
    "FP8": FP8_TENSOR, "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL, "FP8_PB_WO": FP8_BLOCK, "FP8_PB_REAL": FP8_BLOCK,
    "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4, "W4A8_NVFP4_FP8": NVFP4, "NVFP4_AWQ": NVFP4, "MXFP8": MXFP8,
    "MXFP4": MXFP4, "W4A8_MXFP4_FP8": MXFP4, "INT8_SQ": INT8,
}  # fmt: skip
"""ModelOpt's names of algorithms."""


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
        self.by_layer = bool(numbers) or any(map(_COUNTS.search, (*globs, *expressions)))
        """Whether one of globs and expressions holds a number, so that each layer is asked for by itself."""
        self._expressions = [_compiled(each) for each in dict.fromkeys(expressions)]
        plain = {glob for glob in globs if glob.endswith("*") and not any(c in glob[:-1] for c in "*?[")}
        self._starts, self._bare_starts = (tuple({form(glob)[:-1] for glob in plain}) for form in (str, _bare))
        others = [glob for glob in globs if glob not in plain]
        self._globs, self._bare_globs = _any_glob(others), _any_glob(map(_bare, others))

    def match(self, name: str) -> bool:
        """Whether one of them names a module."""
        if self.whole:
            if name in self.whole or not self.whole.isdisjoint(name.split(".")):
                return True
            if not self.beginnings.isdisjoint(_beginnings(name)):
                return True
        if self._starts and (
            any(each.startswith(self._starts) for each in (name, *name.split(".")))
            or _bare(name).startswith(self._bare_starts)
        ):
            return True
        if self._globs is not None and self._bare_globs is not None:
            glob = self._globs
            if any(map(glob.match, (name, *name.split(".")))) or self._bare_globs.match(_bare(name)):
                return True
        return any(expression.match(name) for expression in self._expressions)

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
        if (self.experts_only and not expert) or (name.startswith("lm_head") and not self.head):
            return None
        spelt, excluded = _spellings(name, expert), _patterns(self.excluded)
        if any(map(excluded.match, spelt)):
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
                having.setdefault(self.of(name.replace("{}", str(layer)), expert=expert), []).append(layer)
            return having
        if excluded.numbered:
            kept = set[int]().union(*map(excluded.layers, _spellings(name, expert)))
            having[None] = [layer for layer in layers if layer in kept]
            layers = [layer for layer in layers if layer not in kept]
        if layers:
            having.setdefault(self.of(name.replace("{}", str(layers[0])), expert=expert), []).extend(layers)
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


@lru_cache(maxsize=512)
def _compiled(pattern: str) -> "re.Pattern[str]":
    """A pattern of somebody's file: bounded in length, and without the nested repeats that take exponential time."""
    repeated = re.search(r"[*+}]\)?[*+{]|\([^)]*[*+][^)]*\)[*+{]", pattern)
    if len(pattern) > LONGEST_PATTERN or repeated:
        raise InputError(f"quantisation pattern {quoted(pattern)} is not read", fix="give --weights SIZE")
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise InputError(f"quantisation pattern {quoted(pattern)} is no regular expression") from None


def read_quantization(config: Mapping[str, Any]) -> Quantization | None:
    """How a checkpoint is quantised, by its config.json (with ``hf_quant_config`` in it, where that file is there).

    None for one that is not. Raises InputError for a method that is not known.
    """
    for source in (config, *(config.get(t) for t in ("text_config", "llm_config", "language_config"))):
        given = source.get("quantization_config") if isinstance(source, Mapping) else None
        if isinstance(given, Mapping):
            return _read(given)
    beside = config.get("hf_quant_config")
    if isinstance(beside, Mapping):
        inner = beside.get("quantization", beside)
        return _modelopt(inner if isinstance(inner, Mapping) else {})
    return None


def kv_cache_format(config: Mapping[str, Any]) -> str:
    """What a checkpoint says of its KV cache: ``fp8``, ``nvfp4``, or nothing.

    ``kv_cache_scheme`` of static 8-bit floats (compressed-tensors, ModelOpt), or ModelOpt's ``kv_cache_quant_algo``.
    """
    given = config.get("quantization_config") or config.get("hf_quant_config")
    if not isinstance(given, Mapping):
        return ""
    inner = given.get("quantization")
    for said in (given, *([inner] if isinstance(inner, Mapping) else [])):
        scheme, algorithm = said.get("kv_cache_scheme"), str(said.get("kv_cache_quant_algo") or "").lower()
        if isinstance(scheme, Mapping) and (scheme.get("num_bits"), scheme.get("type")) == (8, "float"):
            return "" if scheme.get("dynamic") else "fp8"
        if algorithm in ("fp8", "nvfp4"):
            return algorithm
    return ""


def _read(given: Mapping[str, Any]) -> Quantization | None:
    method = str(given.get("quant_method") or given.get("quant_type") or "").lower().replace("_", "-")
    algorithm = given.get("quant_algo")
    if not method and algorithm is None and isinstance(given.get("quantization"), Mapping):
        return _modelopt(given["quantization"])
    if method.startswith("modelopt") or (not method and algorithm is not None):
        return _modelopt(given)
    reader = _READERS.get(method.removeprefix("intel/"))
    if reader is None:
        raise InputError(f"quantisation {quoted(method)} is not known here", fix="give --weights SIZE")
    return reader(given)


def _names(given: Mapping[str, Any], *keys: str) -> tuple[str, ...]:
    """The first list of names there is, bounded."""
    for key in keys:
        value = given.get(key)
        if isinstance(value, str):
            return (value[:LONGEST_PATTERN],)
        if isinstance(value, list | tuple):
            return tuple(str(item)[:LONGEST_PATTERN] for item in value[:MOST_NAMES])
    return ()


def _number(given: Mapping[str, Any], *keys: str, default: int) -> int:
    for key in keys:
        value = given.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 2**16:
            return value
    return default


SKIPPED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules")


def _fp8(given: Mapping[str, Any]) -> Quantization:
    block = given.get("weight_block_size")
    scheme = FP8_TENSOR
    if isinstance(block, list | tuple) and len(block) == 2 and all(isinstance(n, int) and 0 < n <= 4096 for n in block):
        scheme = MXFP8 if tuple(block) == (1, 32) else FP8_BLOCK._replace(block=(block[0], block[1]))
    return Quantization("fp8", scheme, _names(given, *SKIPPED))


def _modelopt(given: Mapping[str, Any]) -> Quantization:
    algorithm = str(given.get("quant_algo") or "").upper()
    excluded = _names(given, "exclude_modules", "ignore", "modules_to_not_convert")
    listed = given.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" or (not algorithm and isinstance(listed, Mapping)):
        named = Named()
        for name, how in list((listed if isinstance(listed, Mapping) else {}).items())[:MOST_NAMES]:
            found = MODELOPT.get(str(how.get("quant_algo", "")).upper()) if isinstance(how, Mapping) else None
            if found is not None:
                named[str(name)] = found
        return Quantization("modelopt mixed", None, named=named)
    if algorithm.startswith(("W4A16_AWQ", "W4A8_AWQ", "INT4_AWQ")):
        scheme = integers(4, _number(given, "group_size", default=128))
    elif algorithm in MODELOPT:
        scheme = MODELOPT[algorithm]
    else:
        raise InputError(f"quantisation {quoted(algorithm)} of ModelOpt is not known here", fix="give --weights SIZE")
    return Quantization(f"modelopt {scheme.name}", scheme, excluded, head=True)


def _compressed(given: Mapping[str, Any]) -> Quantization:
    groups = given.get("config_groups")
    only: list[tuple[str, Scheme]] = []
    for group in list((groups if isinstance(groups, Mapping) else {}).values())[:64]:
        if not isinstance(group, Mapping) or not isinstance(group.get("weights"), Mapping):
            continue
        scheme = _of_weights(group["weights"], str(group.get("format") or given.get("format") or ""))
        targets = _names(group, "targets") or ("Linear",)
        only += [("re:.*" if target == "Linear" else target, scheme) for target in targets]
    if not only:
        raise InputError("compressed-tensors without config_groups", fix="give --weights SIZE")
    listed = tuple(only) if {pattern for pattern, _ in only} != {"re:.*"} else ()
    return Quantization(f"compressed-tensors {only[0][1].name}", only[0][1], _names(given, "ignore"), listed, head=True)


def _of_weights(weights: Mapping[str, Any], layout: str) -> Scheme:
    """A group of compressed-tensors."""
    bits, group = _number(weights, "num_bits", default=8), _number(weights, "group_size", default=0)
    strategy = str(weights.get("strategy") or ("group" if group else "tensor"))
    if weights.get("type") == "float":
        if bits == 4:
            return MXFP4 if "mxfp4" in layout or group == 32 else NVFP4
        if strategy == "block":
            return FP8_BLOCK
        return MXFP8 if group == 32 else FP8_CHANNEL if strategy == "channel" else FP8_TENSOR
    if bits == 8 and strategy == "channel":
        return INT8
    return integers(bits, group, symmetric=weights.get("symmetric") is not False)


def _packed(given: Mapping[str, Any]) -> Quantization:
    """AWQ, GPTQ and AutoRound: integers in groups, with lists of what is left out in three ways."""
    bits, group = _number(given, "bits", "w_bit", default=4), _number(given, "group_size", "q_group_size", default=128)
    method = str(given.get("quant_method", "")).lower()
    symmetric = given.get("sym") is True or (method != "awq" and given.get("sym") is not False)
    if method == "awq":
        symmetric = given.get("zero_point") is False
    skipped = list(_names(given, *SKIPPED))
    dynamic = given.get("dynamic")
    if isinstance(dynamic, Mapping):
        skipped += [f"re:{key[2:]}" for key in map(str, dynamic) if key.startswith("-:")]
    extra = given.get("extra_config")
    if isinstance(extra, Mapping):
        kept = (key for key, how in extra.items() if isinstance(how, Mapping) and _number(how, "bits", default=4) >= 16)
        skipped += [f"re:{key}" if any(letter in str(key) for letter in "*^$|(") else str(key) for key in kept]
    blocks = _names(given, "block_name_to_quantize")
    scheme = integers(bits, group, symmetric=symmetric)
    only = tuple((f"re:.*{re.escape(name)}\\.", scheme) for text in blocks for name in text.split(",") if name.strip())
    return Quantization(f"{method} {scheme.name}", scheme, tuple(skipped), only, head=given.get("lm_head") is True)


def _bitsandbytes(given: Mapping[str, Any]) -> Quantization:
    scheme = INT8 if given.get("load_in_8bit") is True else NF4
    return Quantization("bitsandbytes", scheme, _names(given, "llm_int8_skip_modules", *SKIPPED))


def _plain(scheme: Scheme, *, experts_only: bool = False) -> "Callable[[Mapping[str, Any]], Quantization]":
    def read(given: Mapping[str, Any]) -> Quantization:
        skipped = _names(given, *SKIPPED)
        return Quantization(scheme.name, scheme, skipped, experts_only=experts_only)

    return read


_READERS: dict[str, Callable[[Mapping[str, Any]], Quantization]] = {
    "fp8": _fp8, "compressed-tensors": _compressed, "awq": _packed, "gptq": _packed, "gptq-marlin": _packed,
    "auto-round": _packed, "awq-marlin": _packed, "bitsandbytes": _bitsandbytes, "fbgemm-fp8": _plain(FP8_CHANNEL),
    "mxfp4": _plain(MXFP4, experts_only=True), "mxfp8": _plain(MXFP8), "w8a8-fp8": _plain(FP8_CHANNEL),
    "w8a8-int8": _plain(INT8), "ptpc-fp8": _plain(FP8_CHANNEL),
}  # fmt: skip
"""quant_method -> its reader."""

_MARK = re.compile(
    r"(?:^|[-_.])(fp8|nvfp4|mxfp[48]|fp4|w4a16|w8a8|w8a16|int[48]|[48]bit|awq|gptq|gguf|autoround|bnb|quantized)(?:$|[-_.])"
)


def quantized_by_name(name: str) -> str:
    """What a checkpoint's name says of its quantisation (``fp8``, ``nvfp4``, ...); empty where it says nothing."""
    found = _MARK.search(name.rpartition("/")[2].lower())
    return found[1] if found else ""


SPOKEN: dict[str, Scheme] = {
    "fp8": FP8_CHANNEL, "fp8_per_tensor": FP8_TENSOR, "fp8_per_block": FP8_BLOCK, "fp8_block": FP8_BLOCK,
    "w8a8_fp8": FP8_CHANNEL, "nvfp4": NVFP4, "modelopt_fp4": NVFP4, "modelopt": FP8_TENSOR, "modelopt_fp8": FP8_TENSOR,
    "mxfp4": MXFP4, "mxfp8": MXFP8, "w8a8_int8": INT8, "int8": INT8, "bitsandbytes": NF4, "experts_int8": INT8,
    "awq": integers(4, 128, symmetric=False), "gptq": integers(4, 128), "int4": integers(4, 128),
    "auto-round": integers(4, 128), "autoround": integers(4, 128), "compressed-tensors": integers(4, 128),
    "ptpc_fp8": FP8_CHANNEL, "fp8_e4m3": FP8_CHANNEL,
}  # fmt: skip
"""Values of --quantization, and plain words for them -> the scheme of a linear layer."""
KEPT = ("lm_head", "model.visual", "in_proj_a", "in_proj_b", "in_proj_ba")
"""What is left in 16 bits where a checkpoint is quantised on load, or nothing says how it was."""


WITHOUT_LAYOUT = (
    "cpu_awq", "fp_quant", "fbgemm_fp8", "gguf", "inc", "marlin", "modelopt_mixed", "modelopt_mxfp8", "modelslim",
    "moe_wna16", "online", "petit_nvfp4", "qoq", "quark", "quark_int4fp8_moe", "quark_mxfp4", "torchao", "w4afp8",
)  # fmt: skip
"""Other values of --quantization, which say less than how a linear layer is stored."""
UNQUANTISED = ("none", "bf16", "bfloat16", "fp16", "unquant", "")


def _spoken(name: str) -> tuple[str, Scheme | None]:
    """A value of --quantization as it is looked up, and its scheme. Raises InputError for one that no engine has."""
    plain = name.strip().lower().replace("-", "_").replace("auto_round", "autoround")
    scheme = SPOKEN.get(plain) or SPOKEN.get(plain.replace("_", "-")) or SPOKEN.get(plain.removesuffix("_marlin"))
    if scheme is None and plain not in (*UNQUANTISED, *WITHOUT_LAYOUT):
        raise InputError(
            f"--quantization {quoted(name)} is not known here",
            fix=f"write {', '.join(sorted(SPOKEN)[:8])}, ... or none",
        )
    return plain, scheme


def check_quantization(name: str) -> None:
    """Raise InputError for a value of --quantization that no engine has."""
    _spoken(name)


def named_quantization(name: str) -> Quantization | None:
    """The quantisation that a launch asks for by name; None for none. Raises InputError for one without a layout."""
    plain, scheme = _spoken(name)
    if plain in UNQUANTISED:
        return None
    if scheme is None:
        raise InputError(f"--quantization {quoted(name)}: its layout is not known here", fix="give --weights SIZE")
    return Quantization(plain, scheme, KEPT, experts_only=plain in ("mxfp4", "experts_int8"))


def agrees(name: str, found: Quantization) -> bool:
    """Whether a value of --quantization may mean what a checkpoint has; False where it is another kind of number."""
    plain, scheme = _spoken(name)
    method = found.method.partition(" ")[0].replace("-", "_").replace("auto_round", "autoround")
    if scheme is None:
        return plain not in UNQUANTISED
    if found.scheme is None or (method not in ("modelopt", "fp8") and plain.replace("-", "_").startswith(method)):
        return True
    return scheme.name.partition(" ")[0] == found.scheme.name.partition(" ")[0]


MARKED: dict[str, tuple[Scheme, Scheme]] = {
    "fp8": (FP8_TENSOR, FP8_BLOCK), "nvfp4": (NVFP4, NVFP4), "fp4": (NVFP4, NVFP4), "mxfp4": (MXFP4, MXFP4),
    "mxfp8": (MXFP8, MXFP8), "w8a8": (INT8, FP8_CHANNEL), "int8": (INT8, integers(8, 128)),
    "8bit": (INT8, integers(8, 128)), "w8a16": (INT8, integers(8, 128)),
}  # fmt: skip
"""What a name says -> the leanest and the widest scheme it may mean; any other name means four-bit integers."""


def meant_by(mark: str, *, experts: bool) -> tuple[Quantization, Quantization, Quantization]:
    """What a name may mean: every linear layer, those that releases usually quantise, and the experts or MLPs alone."""
    lean, rich = MARKED.get(mark, (integers(4, 128), integers(4, 32, symmetric=False)))
    only = "re:.*experts.*" if experts else "re:.*(mlp|feed_forward|mixer)\\..*"
    return (
        Quantization(mark, lean, head=True),
        Quantization(mark, lean, (*KEPT, "mtp.fc")),
        Quantization(mark, rich, KEPT, ((only, rich),)),
    )


def without_blocks(guessed: Quantization) -> Quantization:
    """The same modules in the layout of their kind that any ranks may cut: a scale a row."""
    only = tuple((pattern, FP8_CHANNEL) for pattern, _ in guessed.only)
    return guessed._replace(scheme=FP8_CHANNEL, only=only)
