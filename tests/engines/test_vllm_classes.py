"""Which model classes vLLM runs in which versions: removed and missing ones are refused with the version to use."""

import pytest

from hybridcalc import load_model
from hybridcalc.architecture.presets import model_names
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.families import CLASSES, NOT_MODELLED, model_class
from hybridcalc.engines.vllm.planner import prepare
from hybridcalc.errors import InputError, Refusal

NOWHERE = "no other engine known here has it"


def refusal(model: str, version: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        prepare(load_model(model), EngineArgs(engine_version=version))
    assert (caught.value.stage, caught.value.rule) == ("create_engine_config", "HC043")
    return caught.value


@pytest.mark.parametrize(
    ("model", "last", "after"),
    [
        ("bamba-9b", "0.23.0", "0.23.1"),
        ("bamba-9b", "0.23.0", "0.33.0"),
        ("minimax-m1-80k", "0.23.0", "0.24.0"),
        ("plamo-2-1b", "0.26.0", "0.33.0"),
    ],
)
def test_a_removed_model_is_refused_with_the_version_that_last_had_it(model: str, last: str, after: str) -> None:
    """Bamba and MiniMax went after 0.23.0, Plamo2 after 0.26.0; under that version it is planned."""
    found, name = refusal(model, after), load_model(model).architecture
    assert found.message == f"vLLM {after} no longer has {name}: the last version that had it is {last}"
    assert found.fix == f"use --engine-version {last}"
    assert prepare(load_model(model), EngineArgs(engine_version=last)).bytes_per_block > 0


@pytest.mark.parametrize(("model", "first"), [("kimi-k3", "0.27.0"), ("ling-3.0-flash", "0.28.0")])
def test_a_model_that_came_later_is_refused_with_the_version_that_first_had_it(model: str, first: str) -> None:
    found = refusal(model, "0.22.1")
    assert found.message.endswith(f"yet: the first version that has it is {first}")
    assert found.fix == f"use --engine-version {first}"
    assert prepare(load_model(model), EngineArgs(engine_version=first)).bytes_per_block > 0


@pytest.mark.parametrize("name", sorted(NOT_MODELLED))
def test_a_hybrid_that_is_not_modelled_is_no_refusal_of_the_engine(name: str) -> None:
    """vLLM has it; what it keeps is not known here, so nothing is said about whether it would start."""
    with pytest.raises(InputError, match=rf"(?m)^the hybrid class {name} is not modelled for vLLM$") as caught:
        prepare(load_model("inkling")._replace(architecture=name), EngineArgs())
    has = name in ("BailingMoeV3VLForConditionalGeneration", "MiniCPMV4_6ForConditionalGeneration")
    assert caught.value.fix == ("SGLang 0.5.23 has it: --engine sglang" if has else NOWHERE)


@pytest.mark.parametrize("version", ["0.33.0", "0.22.1"])
@pytest.mark.parametrize("model", ["jet-nemotron-2b", "zaya1-8b", "lara-4-mini", "lfm3-1.7b"])
def test_a_hybrid_that_no_registry_has_is_refused(model: str, version: str) -> None:
    """No entry of vLLM's registry names the class: the server does not start."""
    found, name = refusal(model, version), load_model(model).architecture
    assert found.message == f"vLLM {version} has no hybrid class {name}"
    has = model in ("jet-nemotron-2b", "zaya1-8b")
    assert found.fix == ("SGLang 0.5.23 has it: --engine sglang" if has else NOWHERE)


def test_no_class_is_both_modelled_and_not() -> None:
    assert not NOT_MODELLED.keys() & CLASSES.keys()


def test_a_class_is_refused_by_releases_before_it() -> None:
    """Inkling came with 0.26, Qwen4-Exp with 0.29: before, vLLM says no, and not hybridcalc."""
    for name, release, before in (
        ("InklingForCausalLM", "0.26.0", "0.25.1"),
        ("Qwen4ExpForCausalLM", "0.29.0", "0.28.0"),
    ):
        model = load_model("inkling")._replace(architecture=name)
        with pytest.raises(Refusal, match=rf"(?m)has no class {name} yet: the first version that has it is {release}$"):
            model_class(model, before)
        assert model_class(model, release) is CLASSES[name]


def test_a_class_is_not_bounded_on_both_sides_the_wrong_way() -> None:
    for kind in CLASSES.values():
        assert not (kind.first and kind.last)


@pytest.mark.parametrize("name", model_names())
def test_every_preset_is_planned_in_a_version_that_has_it(name: str) -> None:
    """A hybrid whose class has an entry, and every model of attention alone."""
    model = load_model(name)
    if model.state is not None and model.architecture not in CLASSES:
        if model.architecture in NOT_MODELLED:
            with pytest.raises(InputError, match=r"(?m)is not modelled for vLLM$"):
                prepare(model, EngineArgs())
        else:
            refusal(name, "0.33.0")
        return
    version = CLASSES[model.architecture].last or "0.33.0" if model.state is not None else "0.33.0"
    assert prepare(model, EngineArgs(engine_version=version)).bytes_per_block > 0
