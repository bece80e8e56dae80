"""What may be given up never costs requests, prices decide, and what loses says why."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import run

import hybridcalc
from hybridcalc.architecture.geometry import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.deployment import Workload
from hybridcalc.engines.shapes import Fitting, fitting_of, settings
from hybridcalc.errors import HybridcalcError, InputError
from hybridcalc.fitting.answer import Fit
from hybridcalc.fitting.candidates import arguments, on_card
from hybridcalc.fitting.models import FitModels
from hybridcalc.fitting.question import checkpoints, engines, offers
from hybridcalc.hardware import shipped_gpus


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


@pytest.mark.parametrize("model", ["qwen3.6-35b-a3b", "kimi-linear-48b-a3b", "glm-5.3-flash", "lfm2-8b-a1b"])
def test_gpus_of_one_kind_hold_the_same(model: str) -> None:
    """The first bound is of the first GPU of a kind: requests are the same on every other of it. And
    weights never take less than where no GPU is named.
    """
    work, seen, compared = Workload.at(20_000), dict[object, object](), 0
    for served in engines(()):
        fitting = fitting_of(served.engine)
        for offer in offers((), {}, None):
            card = fitting.card(on_card(served, offer))
            for one in checkpoints(load_model(model)):
                for shape in fitting.shapes(one, 2, 16):
                    args = arguments(served, shape, offer, work)
                    key = (served.engine.name, card, one.asked, tuple(shape.fields.items()))
                    held = _held(fitting, one, args, work)
                    with suppress(HybridcalcError):
                        bare = served.engine.weights(one, arguments(served, shape, None, work))
                        assert served.engine.weights(one, args).low >= bare.low, (offer.name, shape)
                    compared += key in seen
                    assert seen.setdefault(key, held) == held, (offer.name, shape)
    assert compared > 100


def _held(fitting: Fitting, model: Architecture, args: Any, work: Workload) -> tuple[object, ...]:
    """A request with every setting; what is refused with its reason."""
    found: list[object] = []
    try:
        changes = list(settings(fitting.axes(model, args, frozenset({"accuracy", "reuse"}))))
    except HybridcalcError as error:
        return (error.message,)
    for change in changes:
        try:
            found.append(fitting.request_bytes(model, args.changed(**change.fields), work))
        except HybridcalcError as error:
            found.append(error.message)
    return tuple(found)


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


def test_rows_carry_no_finding_of_requests_that_other_servers_run() -> None:
    """A launch that is started several times is to run its part alone."""
    found = fitted("qwen3.6-35b-a3b", length=16384, concurrency=300, gpu="a100-80gb")
    assert any(row["launches"] > 1 for row in found.to_records())
    assert [
        finding for row in found.to_records() for finding in row["findings"] if finding["severity"] == "error"
    ] == []


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
