"""Which device holds what on llama.cpp, what --fit moves, and that a real server and a real log agree."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from gguf_files import QWEN35_27B, header
from hypothesis import given
from hypothesis import strategies as st
from llamacpp_server import boot, write_tiny

from hybridcalc import llamacpp, load_model
from hybridcalc.engines import ENGINES
from hybridcalc.engines.llamacpp.memory import weighed
from hybridcalc.engines.llamacpp.overrides import HOST
from hybridcalc.engines.llamacpp.placement import devices_of, layers_in_all, of_header, parts_of, placed
from hybridcalc.engines.llamacpp.planner import Prepared, prepare
from hybridcalc.errors import InputError, Write
from hybridcalc.hardware import find_gpu
from hybridcalc.units import GIB, MIB

ENGINE = ENGINES["llama.cpp"]


def ready(name: str, **fields: Any) -> Prepared:
    return prepare(load_model(name), llamacpp.ContextParams(**{"n_ctx": 8192, **fields}))


def planned(line: str, gpu: str) -> Any:
    """The plan of a line on GPUs."""
    from hybridcalc.deployment import Memory, Workload

    card = find_gpu(gpu)
    model, args = ENGINE.read(line.split(), {})
    args = ENGINE.with_options(args, {"gpu": card})
    found = load_model(model or "")
    return ENGINE.plan(found, args, ENGINE.memory(found, args, Memory(gpu=card)), Workload())


def test_a_published_start_on_a_card_and_the_host() -> None:
    """Qwen3.5-9B, 20 of 33 layers on an RTX 3060: KV 160 MiB there, 96 on the host; states 29.31 and 20.94."""
    found = ready("qwen3.5-9b:Q4_K_M", n_gpu_layers=20)
    weights = weighed(found)
    assert weights is not None
    (card,), host = (placement := placed(found, weights.layers)).cards, placement.host
    assert (card.layers, host.layers, card.kv / MIB, host.kv / MIB) == (20, 13, 160, 96)
    assert (f"{card.state / MIB:.2f}", f"{host.state / MIB:.2f}") == ("29.31", "20.94")
    for device, printed in ((card, 3393.11), (host, 2286.14)):
        low, _, high = (device.weights * each / MIB for each in weights.bytes_of)
        assert low <= printed <= high


@given(st.integers(1, 120), st.integers(0, 130), st.lists(st.integers(0, 100), min_size=1, max_size=8).filter(any))
def test_layers_go_to_cards_in_order(layers: int, offloaded: int, parts: list[int]) -> None:
    """The last ones to the cards, each card a run of them that is its part of the split, to a layer."""
    where = devices_of(layers, offloaded, tuple(float(part) for part in parts))
    count = min(offloaded, layers + 1)
    assert len(where) == layers + 1 and where.count(HOST) == layers + 1 - count
    assert list(where) == sorted(where)
    for card, part in enumerate(parts):
        assert abs(where.count(card) - Fraction(count * part, sum(parts))) <= 1


def test_the_split_is_in_float32() -> None:
    """Of 48 layers and an output over 7 equal cards each gets 7; in halves exactly 24.5 go to either."""
    assert [devices_of(48, 49, (1.0,) * 7).count(card) for card in range(7)] == [7] * 7
    assert [devices_of(48, 49, (1.0, 1.0)).count(card) for card in range(2)] == [25, 24]
    assert devices_of(3, 4, (0.0, 1.0)) == (1, 1, 1, 1) and devices_of(3, 0, (1.0,)) == (HOST,) * 4


@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b:Q4_K_M", "granite-4.0-h-small:Q8_0", "falcon-h1-34b:Q4_K_M"])
@pytest.mark.parametrize("fields", [{"cards": 3}, {"n_gpu_layers": 9}, {"offload_kqv": False}, {"n_cpu_moe": 5}])
def test_nothing_is_lost(name: str, fields: dict[str, Any]) -> None:
    """KV and states of all devices are those of the context; weights are all of them, a tied output twice."""
    found = ready(name, n_seq_max=2, **fields)
    weights = weighed(found)
    assert weights is not None
    placement = placed(found, weights.layers)
    devices = (*placement.cards, placement.host)
    assert sum(device.kv for device in devices) == found.kv_bytes
    assert sum(device.state for device in devices) == found.state_bytes
    twice = weights.layers.embeddings if weights.layers.tied else 0
    assert sum(device.weights for device in devices) == weights.layers.whole + twice
    assert sum(device.layers for device in devices) == layers_in_all(found.model) + 1


def test_tensors_of_a_header_lie_where_their_names_say(tmp_path: Path) -> None:
    """Embeddings on the host, the output on a card, experts of the first layers on the host with --n-cpu-moe."""
    tensors = {
        "token_embd.weight": ((64, 32), 0),
        "output.weight": ((64, 32), 0),
        "blk.0.attn_q.weight": ((64, 64), 0),
        "blk.0.ffn_up_exps.weight": ((64, 8, 4), 0),
        "blk.1.ffn_down_exps.weight": ((64, 8, 4), 0),
        "blk.64.nextn.eh_proj.weight": ((64, 64), 0),
        "output_norm.weight": ((64,), 0),
    }
    path = tmp_path / "q.gguf"
    path.write_bytes(header(QWEN35_27B, tensors, [0] * len(tensors)))
    model = load_model(str(path))
    plain, drafted = (
        prepare(model, llamacpp.ContextParams(n_ctx=256, n_cpu_moe=1, spec_type=spec)) for spec in (None, "draft-mtp")
    )
    for found, more in ((plain, 0), (drafted, 64 * 64 * 4)):
        weights = weighed(found)
        assert weights is not None and not weights.layers.tied
        (card,), host = (placement := placed(found, weights.layers)).cards, placement.host
        assert host.weights == 64 * 32 * 4 + 64 * 8 * 4 * 4
        assert card.weights == 64 * 32 * 4 + 64 * 64 * 4 + 64 * 8 * 4 * 4 + 64 * 4 + more
    made = model.config["gguf"]  # type: ignore[index]
    assert (plain_layers := of_header(made, 65, 64)).dense[64] == 0
    moved = of_header(made, 65, 64, (("blk.0.attn", HOST), ("blk", 1), ("output", 0)))
    assert moved.whole == plain_layers.whole and not any((*moved.dense, *moved.experts, moved.output))
    assert dict(moved.moved) == {HOST: 64 * 64 * 4, 1: 2 * 64 * 8 * 4 * 4, 0: 64 * 32 * 4 + 64 * 4}


@pytest.mark.parametrize("text", ["a,b", "1,", "-1,2", "1;2"])
def test_parts_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="is no list of parts"):
        parts_of(llamacpp.ContextParams(tensor_split=text, cards=2))


def test_parts_of_cards() -> None:
    """As many as there are cards: what is missing is 0, zeros alone are even parts, one card with -sm none."""
    made = llamacpp.ContextParams
    assert parts_of(made(tensor_split="3,1", cards=3)) == (3, 1, 0)
    assert parts_of(made(tensor_split="0,0", cards=2)) == (1, 1)
    assert parts_of(made(split_mode="none", cards=4)) == (1,)


def test_fit_shortens_then_moves_layers() -> None:
    """What fits stays; a context nobody set is shortened, no further than 4,096 a stream; then layers of a dense model
    and experts of another go to the host; nothing that was set by hand moves.
    """
    whole = planned("-m qwen3.5-27b-Q4_K_M.gguf -c 8192", "rtx-4090")
    assert (whole.offloaded, whole.experts_on_host, whole.ready.n_ctx) == (None, 0, 8192)
    shorter = planned("-m qwen3.5-27b-Q4_K_M.gguf", "rtx-4090")
    assert shorter.offloaded is None and 4096 < shorter.ready.n_ctx < 262144 and shorter.ready.n_ctx % 256 == 0
    assert abs(shorter.rest.likely_gib * GIB - shorter.placement.caches) < 300 * MIB
    dense = planned("-m qwen3.5-27b-Q8_0.gguf -np 2", "rtx-4080")
    assert dense.offloaded is not None and 0 < dense.offloaded < 66 and dense.ready.n_ctx == 2 * 4096
    more = planned("-m qwen3.5-27b-Q8_0.gguf -np 2", "rtx-4090")
    assert more.offloaded is not None and more.offloaded > dense.offloaded
    moe = planned("-m qwen3.6-35b-a3b-Q4_K_M.gguf -c 32768", "rtx-4080")
    assert moe.offloaded is None and 0 < moe.experts_on_host < 41
    assert moe.placement.cards[0].layers == layers_in_all(moe.model) + 1


@pytest.mark.parametrize("flags", ["-ngl 99", "-ts 1", "-ot exps=CPU", "-sm row", "--fit off"])
def test_what_is_set_by_hand_stays_and_does_not_start_where_a_card_lacks_memory(flags: str) -> None:
    """--fit moves nothing that a flag places, and the fix is planned: it starts."""
    line = f"-m qwen3.5-27b-Q8_0.gguf -c 32768 {flags}"
    with pytest.raises(
        llamacpp.Refusal, match=r"(?m)^GPU 0 lacks 12\.9\d GiB: it is to hold 28\.\d\d of 15\.56$"
    ) as caught:
        planned(line, "rtx-4080")
    assert caught.value.rule == "HC204" and isinstance(caught.value.fix, Write)
    kept = line.replace("-ngl 99", "")
    assert planned(f"{kept} {caught.value.fix.flag} {caught.value.fix.value}", "rtx-4080").requests == 4


@pytest.mark.parametrize(("flags", "lacking", "fix"), [
    ("-ts 9,1 --fit off", "GPU 0", "leave out -ts"), ("-ts 1,9", "GPU 1", "leave out -ts"),
    ("-sm row -ts 9,1", "GPU 0", "leave out -ts"), ("-sm none -mg 1 --fit off", "GPU 1", "leave out -sm none"),
    ("-ot blk\\.[1-9].*exps=CUDA0", "GPU 0", "leave out -ot"),
])  # fmt: skip
def test_one_card_that_overflows_does_not_start(flags: str, lacking: str, fix: str) -> None:
    """Both cards together have room: the sums say nothing."""
    line = "-m Qwen3.6-35B-A3B-Q8_0.gguf -c 32768 -np 4"
    assert planned(line, "2xrtx-4090").requests == 4
    with pytest.raises(llamacpp.Refusal, match=f"^{lacking} lacks") as caught:
        planned(f"{line} {flags}", "2xrtx-4090")
    assert caught.value.fix == fix


def test_a_card_that_may_overflow_is_undecided() -> None:
    """Weights of a type mix are an interval, of which only the high end lacks memory."""
    plan = planned("-m Qwen3.6-27B-Q4_K_M.gguf -c 102400 -np 4 --fit off", "rtx-4090")
    [found] = [finding for finding in plan.findings if finding.rule == "HC204"]
    assert found.severity == "error" and "undecided by the estimate of memory" in found.message


@pytest.mark.parametrize(("pattern", "same"), [
    (".ffn_.*_exps.=CPU", "--cpu-moe"), ("exps=CPU", "--cpu-moe"), (r"blk\.[0-4]\.ffn_.*_exps=CPU", "--n-cpu-moe 5"),
])  # fmt: skip
def test_experts_that_are_moved_by_name_are_those_of_the_flags(pattern: str, same: str) -> None:
    """Of a preset by the names of its experts, in one part or several."""
    line = "-m Qwen3.6-35B-A3B-Q4_K_M.gguf -c 8192"
    named, flagged = (planned(f"{line} {flags}", "rtx-3090") for flags in (f"-ot {pattern}", same))
    assert named.placement == flagged.placement and not named.unmoved
    assert "HC218" not in [finding.rule for finding in named.findings]


@pytest.mark.parametrize(("device", "label"), [("CPU", "on the cards"), ("CUDA1", "all of it")])
def test_the_host_computes_with_what_is_moved_to_it_alone(device: str, label: str) -> None:
    """Experts that go to another card leave the whole model on the cards."""
    from hybridcalc.engines.llamacpp.view import figures

    plan = planned(f"-m Qwen3.6-35B-A3B-Q4_K_M.gguf -c 8192 -ngl 99 -ot blk.0.ffn_.*_exps={device}", "2xrtx-3090")
    assert figures(plan)[0].label == label


def test_cards_that_hold_nothing_are_not_listed() -> None:
    from hybridcalc.engines.llamacpp.view import figures

    names = [row.label for row in figures(planned("-m qwen3.5-27b-Q4_K_M.gguf -ngl 0 -c 4096", "3xrtx-4090"))]
    assert "host" in names and not any(name.startswith("GPU") for name in names)


def test_what_is_not_modelled_is_said() -> None:
    rows = planned("-m qwen3.5-27b-Q4_K_M.gguf -c 8192 -sm tensor", "2xrtx-4090").notes
    assert any(note.startswith("-sm tensor shares layers over the cards") for note in rows)
    named = planned("-m qwen3.5-27b-Q4_K_M.gguf -c 8192 -ot attn_q=CPU", "rtx-4090")
    assert any(note.startswith("-ot moves tensors whose sizes no name tells") for note in named.notes)
    assert "HC218" in [finding.rule for finding in named.findings]


@pytest.mark.needs("xllamacpp")
@pytest.mark.parametrize("unified", [False, True])
def test_fit_gives_every_stream_the_trained_length(unified: bool, tmp_path: Path) -> None:
    """A real server with --fit and no -c: 4 streams of 4,096 tokens each, or one that is shared."""
    path = write_tiny("qwen35", tmp_path / "t.gguf")
    starts, log = boot(path, n_ctx=0, n_parallel=4, kv_unified=unified, fit_params=True)
    assert starts, log[-2000:]
    flags = ["-m", str(path), "-np", "4", *(["-kvu"] if unified else [])]
    found = llamacpp.plan(load_model(str(path)), ENGINE.read(flags, {})[1])
    assert found.ready.n_ctx == (4096 if unified else 16384)
    printed = re.findall(r"(llama_kv_cache: size = .*?)\r?$", log, re.MULTILINE)
    assert printed[-1] == found.log_lines[0]


@pytest.mark.parametrize(
    ("line", "tokens"),
    [
        ("-np 4", 4 * 262_144),
        ("-np 4 -kvu", 262_144),
        ("-np 4 --fit off", 262_144),
        ("", 262_144),
        ("-np 4 -c 0", 4 * 262_144),
    ],
)
def test_without_a_length_every_stream_that_fit_sets_has_the_trained_one(line: str, tokens: int) -> None:
    model, args = ENGINE.read(f"-m Qwen3.5-9B-Q4_K_M.gguf {line}".split(), {})
    assert prepare(load_model(model or ""), args).n_ctx == tokens


MOE, DENSE = "qwen3.6-35b-a3b-Q4_K_M.gguf", "qwen3.6-27b-Q4_K_M.gguf"


@pytest.mark.parametrize(
    ("gpu", "override", "refused"),
    [("rtx4090", "exps=CUDA3", True), ("2xrtx4090", "exps=CUDA2", True), ("2xrtx4090", "exps=CUDA1", False)],
)
def test_a_device_that_is_not_there_is_refused(gpu: str, override: str, refused: bool) -> None:
    done = run("plan", "--gpu", gpu, "--", "llama-server", "-m", MOE, "-c", "65536", "-ot", override)
    assert (done.code == 2 and "GPU" in done.err and "numbered from 0" in done.err) is refused
    unknown = run("plan", "--", "llama-server", "-m", MOE, "-c", "65536", "-ot", override)
    assert unknown.code == 0, "without --gpu nobody says how many there are"


@pytest.mark.parametrize(
    ("model", "override", "said"),
    [(MOE, "foo=CPU", ["foo"]), (DENSE, "exps=CPU", ["exps"]), (MOE, "exps=CPU", []), (MOE, "token_embd=CPU", []),
     (DENSE, r"blk\.6.*=CPU,nothing=CPU", ["nothing"])],
)  # fmt: skip
def test_a_pattern_that_moves_nothing_is_said(model: str, override: str, said: list[str]) -> None:
    found = run("plan", "--json", "--", "llama-server", "-m", model, "-c", "65536", "-ot", override).document
    told = [one["message"] for one in found["findings"] if "is found in no tensor's name" in one["message"]]
    assert [text.split()[1] for text in told] == said


def test_a_card_that_may_overflow_is_not_called_fitting() -> None:
    line = ("--", "llama-server", "-m", "qwen3.6-27b-Q8_0.gguf", "-c", "65536", "-ngl", "99", "-ts")
    assert "GPU 0 may lack 1.09" in " ".join(run("plan", "--gpu", "2xrtx4090", *line, "3,1").out.split())
    assert "kept free: fits" in " ".join(run("plan", "--gpu", "2xrtx4090", *line, "1,1").out.split())


def test_the_fix_of_a_card_that_is_too_small_starts_for_certain() -> None:
    line = ("--", "llama-server", "-m", "qwen3.6-35b-a3b-Q8_0.gguf", "-c", "65536", "-ngl", "99", "--fit", "off")
    fix = run("plan", "--gpu", "rtx4090", "--json", *line).document["refusal"]["fix"]
    assert fix == "write --n-cpu-moe 17"
    assert run("plan", "--gpu", "rtx4090", *line, *fix.split()[1:]).code == 0
    assert run("plan", "--gpu", "rtx4090", *line, "--n-cpu-moe", "16").code == 1
