"""GGUF header -> Architecture: which layers have a state, KV or both, and of which size.

Every kind of model that llama.cpp knows states its sizes under keys of its own name (``qwen35.ssm.state_size``). Which
layers are recurrent is stated by an interval, by KV heads of 0, or is the same for all. Source: llama.cpp src/models/,
src/llama-hparams.cpp n_embd_r and n_embd_s (b11434).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc.architecture import (
    Architecture,
    AttentionKV,
    CompressedIndex,
    Config,
    GroupedQueryKV,
    IndexCache,
    LatentKV,
)
from hybridcalc.architecture.families import PleConv, RecurrentState
from hybridcalc.architecture.gguf import Header, read_header
from hybridcalc.errors import ConfigError, NotModelled, printable, quoted

MOST_LAYERS, LARGEST = 4096, 2**31
HEADER = "gguf"
"""The field of `Architecture.config` that holds the header a model was read from."""


class Keys:
    """Numbers of one model's metadata, under the name of its kind. Raises ConfigError for what is missing or none."""

    def __init__(self, header: Header) -> None:
        self.kind, self._values = header.architecture, header.metadata
        self.all_layers = self.number("block_count")
        if not 0 < self.all_layers <= MOST_LAYERS:
            raise ConfigError(f"{self.kind}.block_count {self.all_layers:,} is no number of layers")
        self.drafts = self.number("nextn_predict_layers", 0)
        if self.drafts >= self.all_layers:
            raise ConfigError(f"{self.kind}.nextn_predict_layers {self.drafts} of {self.all_layers} layers")
        self.layers = self.all_layers - self.drafts

    def raw(self, name: str) -> Any:
        """A value as it stands, None where there is none."""
        return self._values.get(f"{self.kind}.{name}")

    def number(self, name: str, default: int | None = None) -> int:
        """A whole number."""
        value = self.raw(name)
        if value is None:
            if default is None:
                raise ConfigError(f"{self.kind}.{name} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
            raise ConfigError(f"{self.kind}.{name} {quoted(value)} is no size")
        return value

    def by_layer(self, name: str, default: int | None = None) -> list[int]:
        """A number a layer: a list, or one for all."""
        value = self.raw(name)
        if not isinstance(value, list):
            return [self.number(name, default)] * self.layers
        if len(value) < self.layers or not all(isinstance(each, int) and 0 <= each < LARGEST for each in value):
            raise ConfigError(f"{self.kind}.{name} has {len(value)} sizes for {self.layers} layers")
        return [int(each) for each in value[: self.layers]]

    @property
    def rank(self) -> int:
        """Heads of a Mamba2 or GDN state. Raises ConfigError where they do not divide its inner size."""
        rank, inner = self.number("ssm.time_step_rank"), self.number("ssm.inner_size")
        if not rank or inner % rank:
            raise ConfigError(f"{self.kind}.ssm.inner_size {inner:,} is no multiple of ssm.time_step_rank {rank}")
        return rank


def _gdn(keys: Keys) -> RecurrentState:
    from hybridcalc.architecture.families.gdn import GatedDeltaNet

    heads, state = keys.rank, keys.number("ssm.state_size")
    groups, kernel = keys.number("ssm.group_count"), keys.number("ssm.conv_kernel")
    return GatedDeltaNet(heads, groups, keys.number("ssm.inner_size") // heads, state, kernel)


def _mamba2(keys: Keys) -> RecurrentState:
    from hybridcalc.architecture.families.mamba2 import Mamba2

    heads, inner = keys.rank, keys.number("ssm.inner_size")
    groups, kernel = keys.number("ssm.group_count", 0), keys.number("ssm.conv_kernel")
    return Mamba2(heads, inner // heads, keys.number("ssm.state_size"), groups, inner, kernel)


def _mamba1(keys: Keys) -> RecurrentState:
    from hybridcalc.architecture.families.mamba1 import Mamba1

    return Mamba1(keys.number("ssm.inner_size"), keys.number("ssm.state_size"), keys.number("ssm.conv_kernel"))


def _kda(keys: Keys) -> RecurrentState:
    from hybridcalc.architecture.families.kda import KimiDelta

    return KimiDelta(
        keys.by_layer("attention.head_count")[0], keys.number("kda.head_dim"), keys.number("ssm.conv_kernel")
    )


def _shortconv(keys: Keys) -> RecurrentState:
    from hybridcalc.architecture.families.shortconv import ConvStream, ShortConv

    return ShortConv((ConvStream(keys.number("embedding_length"), keys.number("shortconv.l_cache") - 1),))


def _interval(keys: Keys) -> str:
    """Every n-th layer has attention, the others a state, unless a list says which."""
    listed = keys.raw("attention.recurrent_layers")
    if isinstance(listed, list):
        if len(listed) < keys.layers:
            raise ConfigError(f"{keys.kind}.attention.recurrent_layers names {len(listed)} of {keys.layers} layers")
        return "".join("s" if each else "a" for each in listed[: keys.layers])
    every = keys.number("full_attention_interval", 4)
    if not every:
        raise ConfigError(f"{keys.kind}.full_attention_interval is 0")
    return "".join("a" if (layer + 1) % every == 0 else "s" for layer in range(keys.layers))


def _headless(keys: Keys) -> str:
    """Layers with KV heads of 0 have a state, the others attention."""
    return "".join("a" if heads else "s" for heads in keys.by_layer("attention.head_count_kv"))


def _of_blocks(keys: Keys) -> str:
    """Nemotron-H: a layer is one of state, attention, and feed-forward (which has a length)."""
    heads, inner = keys.by_layer("attention.head_count_kv"), keys.by_layer("feed_forward_length")
    return "".join("." if width else "a" if count else "s" for count, width in zip(heads, inner, strict=True))


def _windows(keys: Keys) -> str:
    """LFM2: attention has a window where one is stated."""
    layers = _headless(keys)
    return layers.replace("a", "w") if keys.number("attention.sliding_window", 0) else layers


class GgufKind(NamedTuple):
    """A kind of model: the class that it is of, which layers have what, and the state of one."""

    model_class: str
    layers: Callable[[Keys], str]
    state: Callable[[Keys], RecurrentState] | None


def _all(letter: str) -> Callable[[Keys], str]:
    return lambda keys: letter * keys.layers


KINDS = {
    "qwen35": GgufKind("Qwen3_5ForConditionalGeneration", _interval, _gdn),
    "qwen35moe": GgufKind("Qwen3_5MoeForConditionalGeneration", _interval, _gdn),
    "qwen4exp": GgufKind("Qwen4ExpForConditionalGeneration", _interval, _gdn),
    "qwen3next": GgufKind("Qwen3NextForCausalLM", _interval, _gdn),
    "nemotron_h": GgufKind("NemotronHForCausalLM", _of_blocks, _mamba2),
    "nemotron_h_moe": GgufKind("NemotronHForCausalLM", _of_blocks, _mamba2),
    "granitehybrid": GgufKind("GraniteMoeHybridForCausalLM", _headless, _mamba2),
    "falcon-h1": GgufKind("FalconH1ForCausalLM", _all("b"), _mamba2),
    "plamo2": GgufKind("Plamo2ForCausalLM", _headless, _mamba2),
    "lfm2": GgufKind("Lfm2ForCausalLM", _windows, _shortconv),
    "lfm2moe": GgufKind("Lfm2MoeForCausalLM", _windows, _shortconv),
    "kimi-linear": GgufKind("KimiLinearForCausalLM", _headless, _kda),
    "kimi-k3": GgufKind("KimiK3ForConditionalGeneration", _headless, _kda),
    "glm5-next": GgufKind("Glm5NextForConditionalGeneration", _headless, _kda),
    "bailingmoe3": GgufKind("BailingMoeV3ForCausalLM", _headless, _kda),
    "jamba": GgufKind("JambaForCausalLM", _headless, _mamba1),
    "mamba": GgufKind("MambaForCausalLM", _all("s"), _mamba1),
    "mamba2": GgufKind("Mamba2ForCausalLM", _all("s"), _mamba2),
    "llama": GgufKind("LlamaForCausalLM", _all("a"), None),
    "qwen2": GgufKind("Qwen2ForCausalLM", _all("a"), None),
    "qwen2moe": GgufKind("Qwen2MoeForCausalLM", _all("a"), None),
    "qwen3": GgufKind("Qwen3ForCausalLM", _all("a"), None),
    "qwen3moe": GgufKind("Qwen3MoeForCausalLM", _all("a"), None),
    "granite": GgufKind("GraniteForCausalLM", _all("a"), None),
    "granitemoe": GgufKind("GraniteMoeForCausalLM", _all("a"), None),
}
"""What llama.cpp calls a kind of model -> how it is read."""


def load_gguf(path: Path) -> Architecture:
    """The model of a GGUF file. Raises InputError for what is none, NotModelled for a kind that is not known here."""
    header, where = read_header(path), printable(str(path), 120)
    try:
        return _architecture(header, where, str(path))
    except (ConfigError, NotModelled) as error:
        raise type(error)(f"{where}: {error.message}", fix=error.fix) from None


def _architecture(header: Header, where: str, path: str) -> Architecture:
    kind = KINDS.get(header.architecture)
    if kind is None:
        known = ", ".join(name for name, each in KINDS.items() if each.state is not None)
        raise NotModelled(f"GGUF of {quoted(header.architecture)}", fix=f"known: {known}")
    keys = Keys(header)
    layers = kind.layers(keys)
    window = keys.number("attention.sliding_window", 0) or None
    if window is not None and "w" not in layers:
        raise NotModelled(f"a window of {window:,} in {header.architecture}: which layers have it is not known here")
    attention = _attention(keys, layers)
    name = header.metadata.get("general.name")
    state = kind.state(keys) if kind.state is not None and set(layers) & set("sb") else None
    return Architecture(
        name=name if isinstance(name, str) and name.strip() else where,
        architecture=kind.model_class,
        layers=layers,
        state=state,
        attention=attention if set(layers) & set("ab") else None,
        window=window,
        window_attention=attention if window is not None and isinstance(attention, GroupedQueryKV) else None,
        ple_conv=_ple(keys),
        num_attention_heads=max(keys.by_layer("attention.head_count", 0), default=0) or None,
        hidden_size=keys.number("embedding_length"),
        max_context=keys.number("context_length", 0) or None,
        draft_layers=keys.drafts,
        source="the GGUF header",
        confidence="config.json",
        config=Config({HEADER: header, "vocab_size": header.vocabulary}),
        asked=path,
    )


def _index(keys: Keys) -> IndexCache | None:
    """The keys that an indexer caches; None without one. Raises NotModelled where layers share one."""
    width = keys.number("attention.indexer.key_length", 0)
    if not width:
        return None
    if not all(keys.by_layer("attention.indexer.types", 1)):
        raise NotModelled("layers that share an indexer", lacking="indexers that layers share")
    return IndexCache(width, max(1, keys.number("attention.indexer.kpool", 1)))


def _compressed(keys: Keys, layers: str) -> CompressedIndex | None:
    """The index of QSA, one key for so many tokens; None without one. Raises NotModelled where some layers lack it."""
    stated = keys.by_layer("attention.compress_ratios", 0)
    ratios = {ratio for ratio, letter in zip(stated, layers, strict=True) if letter in "abw"}
    if ratios == {0}:
        return None
    if len(ratios) > 1:
        raise NotModelled("layers with and without an index", lacking="indexes of some layers alone")
    names = ("head_count", "key_length", "top_k")
    heads, width, budget = (keys.number(f"attention.indexer.{name}") for name in names)
    return CompressedIndex(heads, width, ratios.pop(), budget)


def _ple(keys: Keys) -> PleConv | None:
    """The convolution of per-layer embeddings that a sequence keeps columns of; None without one."""
    stated = keys.raw("ple.layers")
    if not isinstance(stated, list) or not stated:
        return None
    channels = keys.number("ple.ngram_size") * keys.number("hyper_connection.count") * keys.number("embedding_length")
    return PleConv(len(stated), channels, max(0, keys.number("ple.conv_kernel") - 1))


def _attention(keys: Keys, layers: str) -> AttentionKV | None:
    """Rows of K and V: a latent one with MLA, else those of the KV heads of the layers that have any."""
    if not set(layers) & set("abw"):
        return None
    heads = keys.by_layer("attention.head_count")
    kv = keys.by_layer("attention.head_count_kv", max(heads))
    counts = {count for count, letter in zip(kv, layers, strict=True) if letter in "abw"}
    if len(counts) != 1:
        raise NotModelled(f"layers of {sorted(counts)} KV heads", lacking="attention that differs between layers")
    usual = keys.number("embedding_length") // max(max(heads), 1)
    key, value = keys.number("attention.key_length", usual), keys.number("attention.value_length", usual)
    if keys.number("attention.key_length_mla", 0):
        rank = keys.number("attention.kv_lora_rank")
        if not rank <= key * max(counts):
            raise ConfigError(f"{keys.kind}.attention.key_length {key} is below attention.kv_lora_rank {rank}")
        return LatentKV(rank, key * max(counts) - rank, _index(keys))
    return GroupedQueryKV(max(counts), key, value, _compressed(keys, layers))
