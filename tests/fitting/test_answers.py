"""What may be given up never costs requests, prices decide, and what loses says why."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import run

import hybridcalc
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Memory, Workload, exact_rest
from hybridcalc.engines import ENGINES
from hybridcalc.engines.better import Change
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.shapes import fitting_of, settings
from hybridcalc.errors import HybridcalcError, InputError, Refusal
from hybridcalc.fitting.answer import Fit, command_text, record
from hybridcalc.fitting.candidates import arguments
from hybridcalc.fitting.models import FitModels
from hybridcalc.fitting.pace import pace_of_one
from hybridcalc.fitting.question import checkpoints, engines, offers
from hybridcalc.fitting.view import lengths_picture
from hybridcalc.hardware import shipped_gpus
from hybridcalc.units import GIB


def fitted(*asked: str, **options: object) -> Fit:
    found = hybridcalc.fit(*asked, **options)  # type: ignore[arg-type]
    assert isinstance(found, Fit)
    return found


def models_on(**options: object) -> FitModels:
    found = hybridcalc.fit(**options)  # type: ignore[arg-type]
    assert isinstance(found, FitModels)
    return found


def test_sixteen_bit_qwen_does_not_fit_48_gb_and_fp8_does() -> None:
    """Qwen3.6-35B-A3B on one L40S: 66 GiB in bf16; in FP8 34.12 GiB under vLLM, 0.03 of it the rotary table."""
    rows = models_on(gpu="l40s", length=8192, engine="vllm").to_records()
    ours = {row["checkpoint"]: row for row in rows if row["name"] == "qwen3.6-35b-a3b"}
    assert "Qwen/Qwen3.6-35B-A3B" not in ours
    assert round(ours["Qwen/Qwen3.6-35B-A3B-FP8"]["weights_gib"], 2) == 34.12


@pytest.mark.parametrize("gpu", ["2xrtx-4090", "h100"])
def test_requests_never_fall_where_accuracy_is_allowed(gpu: str) -> None:
    """On the same GPUs, of each checkpoint; and what served without serves with."""
    exact = {row["checkpoint"]: row for row in models_on(gpu=gpu, length=65536).to_records()}
    bold = {row["checkpoint"]: row for row in models_on(gpu=gpu, length=65536, allow="accuracy").to_records()}
    assert exact.keys() <= bold.keys()
    assert all(bold[name]["requests_certain"] >= row["requests_certain"] for name, row in exact.items())
    assert all(row["risk"] != "accuracy" for row in exact.values())


def test_more_is_never_cheaper() -> None:
    """Longer requests, more of them, more to spare or fewer GPUs to choose from never cost less."""
    asked = {"length": 16384, "concurrency": 100, "gpu": "l40s,h100"}
    cost = fitted("qwen3.6-27b", **asked).deployments[0].cost
    for harder in ({"length": 65536}, {"concurrency": 300}, {"headroom": 0.5}, {"gpu": "l40s"}, {"max_tp": 1}):
        found = fitted("qwen3.6-27b", **{**asked, **harder}).deployments
        assert not found or found[0].cost >= cost, harder
    assert fitted("qwen3.6-27b", **asked, allow="accuracy,reuse").deployments[0].cost <= cost


def test_prices_decide_which_comes_first() -> None:
    cheap, dear = ({"l40s": low, "h100": high} for low, high in ((0.5, 9.0), (9.0, 0.5)))
    asked = {"length": 16384, "concurrency": 40}
    assert fitted("qwen3.6-27b", **asked, prices=cheap).deployments[0].offer.name == "l40s"
    first = fitted("qwen3.6-27b", **asked, prices=dear).to_records()[0]
    assert first["gpu"] == "h100"
    assert first["price_per_hour"] == 0.5 * first["gpus"]
    with pytest.raises(InputError, match="no price of h200"):
        fitted("qwen3.6-27b", **asked, prices=cheap, gpu="l40s,h200")


def test_servers_of_several_gpus_need_the_link_that_is_asked_for() -> None:
    """An L40S has no NVLink: with it asked for, a model of two cards does not fit."""
    asked = {"length": 8192, "concurrency": 4, "gpu": "l40s"}
    assert fitted("Qwen/Qwen3.6-27B-FP8", **asked, max_gpus=8).deployments
    assert not fitted("qwen3.5-397b-a17b", **asked, interconnect="nvlink").deployments
    assert fitted("qwen3.5-397b-a17b", **asked).deployments[0].shape.ranks > 1


def test_every_hardware_that_is_not_shown_says_why() -> None:
    """Each GPU, engine and checkpoint is either on a row or has a reason."""
    found = fitted("qwen3.6-35b-a3b", length=16384, concurrency=200, gpu="l40s,h100,t4", top=2)
    shown = {(row["gpu"], row["engine"]) for row in found.to_records()}
    lost = {(row["gpu"], row["engine"]) for row in found.to_dict()["refused"]}
    assert len(shown) == 2
    assert shown | lost == {(gpu, engine) for gpu in ("l40s", "h100", "t4") for engine in ("sglang", "vllm")}
    assert all(row["reason"] for row in found.to_dict()["refused"])


def test_requests_beyond_the_context_are_nobodys() -> None:
    ran = run("fit", "qwen3.6-35b-a3b", "-L", "1M", "-C", "1", "--gpu", "h200")
    assert ran.code == 1
    assert "1,048,576 tokens" in ran.out.replace("\n", " ")


@pytest.mark.parametrize("name", ["sglang", "vllm", "sglang@0.5.20"])
@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b", "kimi-linear-48b-a3b", "llama-3.1-8b"])
def test_nothing_that_is_tuned_leaves_more_memory(name: str, model: str) -> None:
    """The memory of the leanest arguments bounds that of every limit of requests: more never leave more."""
    served, one, work = engines([name])[0], load_model(model), Workload.at(8192)
    fitting, compared = fitting_of(served.engine), 0
    limit = "max_num_seqs" if served.engine.name == "vllm" else "max_running_requests"
    for offer in offers(("h200", "l40s", "b200", "rtx-pro-6000"), {}, None):
        for shape in fitting.shapes(one, 4, 16):
            args = arguments(served, shape, offer, work)
            with suppress(HybridcalcError):
                asked = (fitting.leanest(args), *(args.changed(**{limit: n}) for n in (1, 40, 200, 300, 5000)), args)
                left = [served.engine.memory(one, each, Memory(gpu=offer.gpu)) for each in asked]
                for end in ("low_gib", "likely_gib", "high_gib"):
                    sizes = [getattr(rest, end) for rest in left]
                    assert sizes[0] == max(sizes), (offer.name, shape)
                    assert sizes[1:6] == sorted(sizes[1:6], reverse=True), (offer.name, shape)
                compared += 1
    assert compared >= 4


def test_a_pace_bounds_requests_and_is_no_promise() -> None:
    """Rows may keep it by their floors, at fewer requests or on more GPUs; beyond any floor nothing serves."""
    asked = {"length": 65536, "concurrency": 200, "gpu": "h200"}
    free, slow = (fitted("Qwen/Qwen3.5-397B-A17B-FP8", **asked, **more) for more in ({}, {"pace": 50}))
    assert all(row["speed_tokens_per_second_per_request"] >= 50 for row in slow.to_records())
    assert any(row["speed_tokens_per_second_per_request"] < 50 for row in free.to_records())
    assert slow.deployments[0].cost > free.deployments[0].cost
    assert slow.to_dict()["deployments"][0]["speed"]["tokens_per_second_per_request"] >= 50
    ran = run("fit", "qwen3.5-397b-a17b", "-L", "64k", "-C", "1", "--gpu", "8xh200", "--pace", "5000")
    assert ran.code == 1
    assert "tokens/s at most" in ran.out
    assert "may serve" in run("fit", "qwen3.6-27b", "-L", "8k", "-C", "4", "--gpu", "h100", "--pace", "20").out


def test_a_limit_for_the_pace_stands_in_the_launch_line() -> None:
    """What a pace admits is what the server lets run, of both engines and of models on GPUs that are there."""
    for engine, flag in (("sglang", "--max-running-requests"), ("vllm", "--max-num-seqs")):
        found = fitted("qwen3.6-35b-a3b", length=1000, concurrency=20, gpu="h200", engine=engine, pace=150)
        row = found.to_records()[0]
        assert int(row["flags"][row["flags"].index(flag) + 1]) * row["servers"] == row["requests"]
    held = models_on(gpu="h200", length=1000, engine="vllm", pace=150).to_records()
    assert held
    assert all(row["speed_tokens_per_second_per_request"] >= 150 for row in held)
    assert len(held) < len(models_on(gpu="h200", length=1000, engine="vllm").to_records())


def test_a_gpu_without_rates_keeps_no_pace() -> None:
    asked = {"length": 1000, "concurrency": 4, "gpu": "mi308x"}
    assert fitted("qwen3.6-27b", **asked).to_records()[0]["speed_floor_ms"] is None
    lost = fitted("qwen3.6-27b", **asked, pace=10).to_dict()["refused"]
    assert {each["kind"] for each in lost} <= {"unknown", "refused", "gpus"}
    assert any("neither bandwidth nor peak rates" in each["reason"] for each in lost)


def test_all_presets_of_gpus_are_searched_by_default() -> None:
    assert {offer.name for offer in offers((), {}, None)} == set(shipped_gpus())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--gpu", ""), "--gpu names none"),
        (("--gpu", "2xh100,4xh100"), "h100 with two numbers"),
        (("--engine", "vllm@9.9"), "no rules of that release"),
        (("--price", "h100"), "is not GPU=PRICE"),
        (("--headroom", "-5%"), "is not a percentage"),
        (("--interconnect", "ib"), "write any or nvlink"),
        (("--pace", "0"), "no number of tokens a second"),
        (("--csv", "--json"), "exclude each other"),
        (("--emit", "cmd", "--csv"), "leave out --json"),
    ],
)
def test_options_that_say_nothing_are_refused(options: tuple[str, ...], said: str) -> None:
    given = ("--gpu", "h100") if "--gpu" not in options else ()
    ran = run("fit", "qwen3.6-27b", "-L", "8k", "-C", "1", *given, *options)
    assert ran.code == 2
    assert said in ran.err
    assert ran.err.count("\n") <= 2


def test_a_series_of_releases_is_its_newest() -> None:
    assert [served.version for served in engines(["vllm@0.25", "sglang@0.5.20"])] == ["0.25.1", "0.5.20"]
    assert len({served.version for served in engines(["vllm@all"])}) > 10


def test_prices_are_read_from_a_file(tmp_path: Path) -> None:
    """One a line, with comments; a GPU that has none is not searched."""
    file = tmp_path / "prices"
    file.write_text("# an hour\nl40s = 0.86\nh100: 2.49  # spot\n", encoding="utf-8")
    ran = run("fit", "qwen3.6-27b", "-L", "8k", "-C", "4", "--prices", str(file), "--json")
    rows = ran.document["deployments"]
    assert {row["gpu"] for row in rows} == {"l40s", "h100"}
    assert rows == sorted(rows, key=lambda row: row["price_per_hour"])


def test_pictures_draw_each_hardware_and_the_front(tmp_path: Path) -> None:
    target = tmp_path / "gpus.svg"
    asked = ("fit", "qwen3.6-27b", "-L", "8k", "-C", "40", "--gpu", "l40s,h100")
    assert run(*asked, "--save", str(target)).code == 0
    drawn = target.read_text(encoding="utf-8")
    assert all(name in drawn for name in ("l40s, vLLM", "h100, SGLang", "Pareto front"))


def test_models_are_drawn_over_the_length_of_requests(tmp_path: Path) -> None:
    """A curve for each checkpoint, to its longest; what is drawn at a length is what certainly runs there."""
    target = tmp_path / "models.svg"
    assert run("fit", "--gpu", "2xrtx-4090", "-L", "32k", "--save", str(target)).code == 0
    assert "Qwen3.6-35B-A3B-NVFP4" in target.read_text(encoding="utf-8")
    found = models_on(gpu="2xrtx-4090", length=32768)
    chart, made = lengths_picture(found, "models"), found.deployments[0]
    curve = dict(chart.series[0].points)
    assert max(curve) == found.longest(made)
    assert all(found.certain_at(made, int(length)) >= count for length, count in curve.items())
    assert list(curve.values()) == sorted(curve.values(), reverse=True)


def test_rows_carry_no_finding_of_requests_that_other_servers_run() -> None:
    """A launch that is started several times is to run its part alone."""
    found = fitted("qwen3.6-35b-a3b", length=16384, concurrency=300, gpu="a100-80gb")
    assert any(row["launches"] > 1 for row in found.to_records())
    assert [
        finding for row in found.to_records() for finding in row["findings"] if finding["severity"] == "error"
    ] == []


@pytest.mark.parametrize("model", ["llama-3.1-8b", "gpt-oss-120b", "deepseek-v3", "falcon-mamba-7b", "mamba-2.8b"])
def test_models_of_one_kind_of_layers_are_fitted_too(model: str) -> None:
    """KV alone has no ratio of pools, states alone no KV: both engines serve them all the same."""
    rows = fitted(model, length=2048, concurrency=20, gpu="h200").to_records()
    assert {row["engine"] for row in rows} == {"sglang", "vllm"}
    assert all(row["requests_certain"] >= 20 for row in rows)
    assert not any("--mamba-full-memory-ratio" in row["flags"] for row in rows)


@pytest.mark.parametrize(
    ("slots", "limit", "requests"),
    [(4, None, 0), (5, None, 1), (7, None, 1), (8, None, 2), (100, None, 32), (100, 7, 7)],
)
def test_states_alone_are_given_all_the_memory_but_a_slot(slots: int, limit: int | None, requests: int) -> None:
    """Falcon-Mamba under SGLang: 3 slots of 36,700,160 B a request, one that pads and one to spare; no KV."""
    engine, model, work = ENGINES["sglang"], load_model("falcon-mamba-7b"), Workload.at(1000)
    tuned, rest = fitting_of(engine).tuned, exact_rest(slots * 36_700_160 / GIB)
    if not requests:
        with pytest.raises(Refusal, match="hold no request's states for certain"):
            tuned(model, ServerArgs(), rest, work, limit)
        return
    found = tuned(model, ServerArgs(), rest, work, limit)
    assert (found.max_mamba_cache_size, found.max_running_requests) == (3 * requests, requests)
    assert engine.plan(model, found, rest, work).concurrency == requests


def test_where_the_request_limit_binds_slots_and_a_limit_admit_more() -> None:
    """SGLang runs 4,096 requests at most unless told: LFM2's states are small, and 60 GiB hold 9,781 of 500 tokens."""
    engine, model, work, rest = ENGINES["sglang"], load_model("lfm2-8b-a1b"), Workload.at(500), exact_rest(60)
    found = fitting_of(engine).tuned(model, ServerArgs(), rest, work, None)
    assert engine.plan(model, found, rest, work).concurrency == found.max_running_requests > 9000
    assert engine.plan(model, ServerArgs(mamba_full_memory_ratio=1), rest, work).concurrency <= 4096


def test_variables_of_several_settings_are_set_together() -> None:
    one, other = (Change(f"{name}=1", {"env": {name: "1"}}, name) for name in "AB")
    flag = Change("--c", {"c": 2}, "c")
    (found,) = settings(((one,), (other,), (flag,)))
    assert (found.fields, found.flags) == ({"env": {"A": "1", "B": "1"}, "c": 2}, "A=1 B=1 --c")
    (alone,) = settings(((flag,),))
    assert alone.fields == {"c": 2}


def test_nvfp4_is_not_offered_on_amd() -> None:
    """There are no kernels for it: the FP8 checkpoint is, and the other says why not."""
    found = fitted("qwen3.6-35b-a3b", length=16384, concurrency=40, gpu="mi300x,h200")
    of = {row["gpu"]: row["checkpoint"] for row in found.to_records() if row["engine"] == "vllm"}
    assert of["h200"].endswith("NVFP4")
    assert of["mi300x"].endswith("FP8")


def test_a_class_that_a_release_dropped_is_named_with_the_release_that_has_it() -> None:
    """MiniMax-M1 left vLLM after 0.23.0: no memory is the reason."""
    ran = run("fit", "minimax-m1-80k", "-L", "8k", "-C", "8", "--engine", "vllm", "--gpu", "b200")
    assert ran.code == 1
    assert "vllm@0.23.0" in ran.out
    assert run("fit", "minimax-m1-80k", "-L", "8k", "-C", "8", "--engine", "vllm@0.23.0", "--gpu", "b200").code == 0


def test_a_folder_is_loaded_as_a_folder() -> None:
    """The launch line names the folder, whose config.json alone no engine loads."""
    found = fitted("examples/qwen3.5-27b", length=8192, concurrency=4, gpu="h100", engine="vllm")
    assert found.to_records()[0]["launch"]["argv"][2] == "examples/qwen3.5-27b"


def test_a_server_has_room_for_an_answer() -> None:
    """A request of one token is a prompt; --max-model-len 1 would leave none for what follows."""
    made = hybridcalc.fit("qwen3.6-27b", length=1, concurrency=1, gpu="h100", engine="vllm").deployments[0]
    words = made.launch["argv"]
    assert words[words.index("--max-model-len") + 1] == "2"


@pytest.mark.parametrize(
    ("name", "several"),
    [("nemotron-3-super", True), ("qwen3.6-35b", True), ("Qwen/Qwen3.6-35B-A3B", False),
     ("qwen3.6-35b-a3b-fp8", False), ("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8", False)],
)  # fmt: skip
def test_a_name_of_the_model_means_all_its_checkpoints_and_one_of_a_checkpoint_that_one(
    name: str, several: bool
) -> None:
    assert (len(checkpoints(load_model(name))) > 1) is several


def test_a_checkpoint_that_is_named_is_not_replaced_and_the_answer_says_which_others_there_are() -> None:
    """By its full id, the preset's own too; the short name searches them all."""
    asked = ("-L", "32k", "-C", "60", "--gpu", "h100")
    _, own, _ = run("fit", "Qwen/Qwen3.6-27B", *asked)
    assert "vllm serve Qwen/Qwen3.6-27B --" in own and "bf16" in own and "nvfp4" not in own
    assert "fit qwen3.6-27b tries Qwen/Qwen3.6-27B-FP8 and 1 more too" in own
    _, every, _ = run("fit", "qwen3.6-27b", *asked)
    assert "vllm serve nvidia/Qwen3.6-27B-NVFP4" in every and "stored   " not in every


@pytest.mark.parametrize(("concurrency", "gpu"), [(60, "h100"), (200, "l40s")])
def test_tokens_a_second_are_those_of_the_plan_of_the_same_line_at_the_requests_that_are_asked_for(
    concurrency: int, gpu: str
) -> None:
    """Of one server its own plan with -C; of several, each its part of the requests."""
    for made in hybridcalc.fit("qwen3.6-35b-a3b", length="16k", concurrency=concurrency, gpu=gpu).deployments:
        pace, part = pace_of_one(made), -(-concurrency // made.servers)
        assert pace is not None and pace.step.batch == min(part, made.one.requests)
        if made.servers == 1:
            asked = ("-L", "16k", "-C", str(concurrency), "--gpu", f"{made.gpus}x{gpu}", "--json", "--")
            said = run("plan", *asked, command_text(made.launch)).out
            assert json.loads(said)["speed"]["floor_ms"] == pace.to_dict()["floor_ms"]


def test_where_memory_lacks_the_answer_names_a_way_out() -> None:
    """More ranks than were asked for, where they do; else GPUs of more memory, with a launch line that serves."""
    ran = run("fit", "Qwen/Qwen3.6-27B", "-L", "8k", "-C", "2", "--gpu", "rtx-3060-12gb", "--max-tp", "1")
    assert ran.code == 1 and re.search(r"enough   \d+ x RTX 3060 12GB run", ran.out)
    ran = run("fit", "kimi-k3", "-L", "64k", "-C", "10", "--gpu", "16xh100", "--engine", "vllm")
    named = re.search(r"enough   (\d+) x (\w+) run (\d+) requests", ran.out)
    assert ran.code == 1 and named is not None and int(named[1]) > 16 and int(named[3]) >= 10
    ran = run("fit", "kimi-k3", "-L", "64k", "-C", "10", "--gpu", "l40s", "--engine", "vllm")
    named = re.search(r"enough   (\d+) x (\w+) run (\d+) requests", ran.out)
    assert ran.code == 1 and named is not None and named[2] != "L40S" and int(named[3]) >= 10


@pytest.mark.parametrize(
    ("gpu", "count", "engine", "stages", "contexts"),
    [
        ("16xh200", 100, "vllm", 2, 8),
        ("16xb200", 100, "sglang", 2, 8),
        ("24xh200", 200, "vllm", 3, 8),
        ("48xh20", 40, "vllm", 3, 8),
        ("48xh20", 40, "sglang", 4, 8),
        ("32xh100", 40, "vllm", 2, 16),
    ],
)
def test_stages_whose_ranks_share_kv_serve_what_no_single_stage_does(
    gpu: str, count: int, engine: str, stages: int, contexts: int
) -> None:
    """Kimi-K3 on two nodes and more, of up to 32 GPUs a server."""
    made = hybridcalc.fit("kimi-k3", length="64k", concurrency=count, gpu=gpu, engine=engine).deployments[0]
    found = record(made)
    assert (found["pp_size"], found["dcp_size"], made.launches) == (stages, contexts, 1)
    assert made.certain >= count


def test_a_deployment_says_in_python_what_serves() -> None:
    found = hybridcalc.fit("nemotron-h-8b", length=8192, concurrency=20, gpu="h100", engine="vllm")
    first = found.deployments[0]
    assert repr(first) == f"<{first.gpus} x h100, vLLM, {first.shape.ranks} a server: {first.requests:,} requests>"
