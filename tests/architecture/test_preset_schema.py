"""A user's own preset file: what is accepted, and that anything else is refused in one line and in bounded time."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc import Architecture
from hybridcalc.architecture import GroupedQueryKV, LatentKV
from hybridcalc.architecture.families.kda import KimiDelta
from hybridcalc.architecture.preset_schema import read_gpu_preset, read_preset
from hybridcalc.architecture.presets import from_preset
from hybridcalc.errors import InputError

MINE = """\
id: mine
name: Mine
architecture: KimiLinearForCausalLM
family: kda
layers: ssaw
state: {num_heads: 96, head_dim: 128, conv_kernel: 4}
attention: {kind: gqa, kv_heads: 8, head_dim: 64, v_head_dim: 32}
window: {tokens: 512}
source: read off the model card
confidence: verified
evidence: config.json
"""


def changed(old: str, new: str = "") -> str:
    """MINE with one of its texts replaced."""
    assert old in MINE
    return MINE.replace(old, new)


def refusal_of(text: str) -> str:
    """The message of the InputError that reading the text raises; always one printable line."""
    with pytest.raises(InputError) as refusal:
        from_preset(read_preset(text, "mine.yaml"))
    assert refusal.value.message.isprintable()
    return refusal.value.message


def test_a_whole_preset_reads() -> None:
    """Blanks in layers do not count, values may be narrower than keys, and a window may share the attention's sizes."""
    model = from_preset(read_preset(MINE.replace("ssaw", "ss aw"), "mine.yaml"))
    assert (model.layers, model.attention, model.window) == ("ssaw", GroupedQueryKV(8, 64, 32), 512)
    assert (model.state, model.window_attention) == (KimiDelta(96, 128, 4), None)


def test_sizes_that_may_be_nothing_are_read_as_nothing() -> None:
    """Latent rows without a rotary part, and no draft layer, both stated."""
    latent = "{kind: mla, kv_lora_rank: 512, qk_rope_head_dim: 0}"
    text = changed("{kind: gqa, kv_heads: 8, head_dim: 64, v_head_dim: 32}", latent).replace("ssaw", "sssa")
    model = from_preset(read_preset(text.replace("window: {tokens: 512}", "draft_layers: 0"), "mine.yaml"))
    assert (model.attention, model.draft_layers) == (LatentKV(512, 0), 0)


@pytest.mark.parametrize(("more", "said"), [(3, ""), (4, "; and 1 more"), (6, "; and 3 more")])
def test_three_faults_of_a_preset_are_told_and_the_others_counted(more: int, said: str) -> None:
    """Each with its field; no more than three are counted as none."""
    message = refusal_of(MINE + "".join(f"field{n}: {n}\n" for n in range(more)))
    told = [f"field{n}: Extra inputs are not permitted" for n in range(3)]
    assert message == f"mine.yaml: {'; '.join(told)}{said}"


def test_window_layers_may_have_heads_of_their_own() -> None:
    """Inkling: 16 KV heads in local layers, 8 in full ones."""
    text = MINE.replace("{tokens: 512}", "{tokens: 512, kv_heads: 16, head_dim: 128}")
    assert from_preset(read_preset(text, "mine.yaml")).window_attention == GroupedQueryKV(16, 128, 128)


REFUSED = {
    "empty": ("", "mine.yaml: a preset is a mapping of fields"),
    "a list": ("- a\n- b\n", "mine.yaml: a preset is a mapping of fields"),
    "two documents": ("a: 1\n---\nb: 2\n", "mine.yaml: not readable as YAML, line 2: but found another document"),
    "open quote": ("id: 'mine\n", "mine.yaml: not readable as YAML, line 2: found unexpected end of stream"),
    "tab": ("id:\t\tmine\n\tname: x\n", "mine.yaml: not readable as YAML, line 1: "),
    "anchor": (MINE + "notes: &a x\nhf_id: *a\n", "mine.yaml: not readable as YAML, anchors and aliases are not read"),
    "repeated key": (MINE + "name: Other\n", "mine.yaml: not readable as YAML, key 'name' appears twice"),
    "python object": (MINE + "notes: !!python/name:os.system\n", "mine.yaml: not readable as YAML, line 12: "),
    "null byte": (MINE + "notes: \0\n", "mine.yaml: not readable as YAML"),
    "missing field": (changed("source: read off the model card\n"), "mine.yaml: source: Field required"),
    "unknown field": (MINE + "kv_heads: 8\n", "mine.yaml: kv_heads: Extra inputs are not permitted"),
    "upper-case id": (changed("id: mine", "id: Mine"), "mine.yaml: id: String should match pattern"),
    "text for a size": (changed("kv_heads: 8", "kv_heads: '8'"), "mine.yaml: attention.gqa.kv_heads: "),
    "true for a size": (changed("tokens: 512", "tokens: true"), "mine.yaml: window.tokens: "),
    "no heads": (changed("num_heads: 96", "num_heads: 0"), "mine.yaml: state of family kda: num_heads: "),
    "too many heads": (
        changed("num_heads: 96", "num_heads: 2147483649"),
        "mine.yaml: state of family kda: num_heads: ",
    ),
    "state field missing": (changed(", conv_kernel: 4"), "mine.yaml: state of family kda: conv_kernel: Field required"),
    "state of another family": (changed("family: kda", "family: gdn"), "mine.yaml: "),
    "unknown layer letter": (changed("ssaw", "ssax"), "mine.yaml: layers may hold only the letters s a w b v ."),
    "no recurrent layer": (changed("ssaw", "aaaw"), "mine.yaml: family, state and the recurrent layers"),
    "no window layer": (changed("ssaw", "ssaa"), "mine.yaml: window and the window layers"),
    "no attention layer": (changed("ssaw", "ssss"), "mine.yaml: attention and the attention layers"),
    "guess": (changed("confidence: verified", "confidence: guess"), "mine.yaml: confidence: "),
    "a stream thinner than its heads": (
        changed(
            "kda\nlayers: ssaw\nstate: {num_heads: 96, head_dim: 128, conv_kernel: 4}",
            "shortconv\nlayers: ssaw\nstate: {streams: [{width: 1, rows: 1, kv_heads: 4}]}",
        ),
        "mine.yaml: state of family shortconv: streams.0: width 1 is no multiple of its kv_heads 4",
    ),
    "half a window": (changed("{tokens: 512}", "{tokens: 512, kv_heads: 16}"), "mine.yaml: window"),
    "key with a line break": (MINE + '"a\\nb": 1\n', "mine.yaml: a"),
    "tag of a number": (changed("id: mine", 'id: !!int ""'), "mine.yaml: not readable as YAML"),
    "tag of a fraction": (changed("id: mine", 'id: !!float ""'), "mine.yaml: not readable as YAML"),
    "tag of a truth": (changed("id: mine", "id: !!bool maybe"), "mine.yaml: not readable as YAML"),
    "tag of a time": (changed("id: mine", "id: !!timestamp soon"), "mine.yaml: not readable as YAML"),
    "number beyond floats": (changed("id: mine", "id: " + "1:" * 250 + "0.0"), "mine.yaml: not readable as YAML"),
    "number of 5,000 digits": (changed("id: mine", "id: " + "1" * 5000), "mine.yaml: not readable as YAML"),
    "thirteenth month": (changed("id: mine", "id: 2026-13-01"), "mine.yaml: not readable as YAML"),
}


@pytest.mark.parametrize(("text", "message"), REFUSED.values(), ids=REFUSED)
def test_a_malformed_preset_is_refused_with_its_first_fault(text: str, message: str) -> None:
    """InputError with file, field or line, and reason; the user's file is outside data."""
    assert refusal_of(text).startswith(message)


@pytest.mark.parametrize("field", ["name", "architecture", "source", "notes", "hf_id", "evidence", "confidence"])
@pytest.mark.parametrize("character", [r"\e", r"\0", r"\x9b", r"\x7f", r"\u202e"])
def test_control_characters_are_refused_in_every_text(field: str, character: str) -> None:
    """Texts of a preset are printed on a terminal."""
    lines = [line for line in MINE.splitlines() if not line.startswith(field)]
    message = refusal_of("\n".join([*lines, f'{field}: "a{character}[31m"']))
    assert message.startswith(f"mine.yaml: {field}: ")


def test_line_ends_of_a_text_are_blanks() -> None:
    """Notes may be a block of several lines; answers print them in one."""
    model = from_preset(read_preset(MINE + "notes: |\n  one\n  two\n", "mine.yaml"))
    assert model.notes == "one two"


HOSTILE = {
    "larger than 256 KiB": "x" * (256 * 1024 + 1),
    "deep lists": "[" * 5000,
    "deep tables": "{a: " * 4000,
    "deep block lists": "- " * 100_000,
    "deep keys": "? " * 100_000,
    "long quote": '"' + "\\n" * 100_000,
    "alias bomb": "a: &a [x, x]\n" + "".join(f"a{i}: &a{i} [*a, *a, *a, *a, *a, *a]\n" for i in range(50)),
    "four thousand keys": "".join(f"{i:x}:\n" for i in range(4_000)),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_an_enormous_or_bottomless_preset_is_refused_in_bounded_time(text: str, steps: Callable[..., Any]) -> None:
    """Nothing a file of a quarter MiB holds keeps the reader busy: calls in proportion to its characters."""
    assert steps(lambda: refusal_of(text)) < 60 * len(text)


def test_a_gpu_preset_needs_its_memory() -> None:
    """The other schema refuses in the same voice."""
    with pytest.raises(InputError) as refusal:
        read_gpu_preset("id: x\nname: X\nsources: {}\n", "x.yaml")
    assert refusal.value.message.startswith("x.yaml: driver_mib or runtime_gib must be there")


@pytest.mark.parametrize(
    "sources", ["{}", "{driver_mib: {source: s, confidence: verified}, runtime_gib: {source: s, confidence: derived}}"]
)
def test_a_figure_of_a_gpu_and_its_source_go_together(sources: str) -> None:
    """No figure without a source, no source of nothing."""
    with pytest.raises(InputError, match="must both be there or both be absent"):
        read_gpu_preset(f"id: x\nname: X\ndriver_mib: 15360\nsources: {sources}\n", "x.yaml")


yaml_words = st.sampled_from([
    "a", ": ", "- ", "\n", "  ", "[", "]", "{", "}", ", ", "'", '"', "&a ", "*a", "!!int ", "!!set ", "<<: ", "|\n",
    "? ", "#", "---\n", "1_0", "0x1f", "1e3", "~", "2026-11-29", "id", "%YAML 9.9\n", "\t", "é",
])  # fmt: skip


@given(st.lists(yaml_words, max_size=30).map("".join) | st.text(max_size=80))
def test_any_text_is_refused_in_one_line(text: str) -> None:
    """No text of this size is a preset, and no text gets another exception."""
    assert refusal_of(text).startswith("mine.yaml: ")


@given(st.data())
def test_a_preset_with_a_piece_cut_out_is_read_or_refused(data: st.DataObject) -> None:
    """Truncated or edited files: an Architecture, or one line."""
    start = data.draw(st.integers(0, len(MINE)))
    end = data.draw(st.integers(start, min(len(MINE), start + 40)))
    outcome: Architecture | str
    try:
        outcome = from_preset(read_preset(MINE[:start] + MINE[end:], "mine.yaml"))
    except InputError as error:
        outcome = error.message
    assert isinstance(outcome, Architecture) or outcome.isprintable()
