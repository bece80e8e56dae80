"""Which model classes does vLLM run, in which versions, and what does each class do in its own way?

`CLASSES` has the classes whose layers hold a recurrent state; those of attention alone need no entry. A class that is
not there yet or removed is refused, and so is a hybrid that no registry has; `NOT_MODELLED` are those that vLLM has and
nobody can plan here. Source: vLLM model_executor/models/registry.py, models/ (0.33.0, 0.22.1, and the registries of the
releases between them for the bounds).
"""

from typing import NamedTuple

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.engines.releases import is_later
from hybridcalc.errors import NotModelled, Refusal, with_release


class ModelClass(NamedTuple):
    """What vLLM does for one class.

    ``first`` and ``last`` bound the releases that have it ("" where no known release lies beyond). ``attention_first``:
    its attention layers register before its recurrent ones. ``caches_all``: 0.22.1 can keep a state at every block.
    ``class_omits_drafts``: in 0.22.1 the class sizes the page without the rows that drafts add to the layer.
    ``checkpoint``: the prefill kernel that exports states between blocks ("mamba2", "gdn" or "kda"; "" for none).
    ``state_dtype_obeyed``: a KDA layer that takes --mamba-ssm-cache-dtype. ``default_chunk``: 2,048 tokens, whatever
    the config says. ``ignores_window``: its window layers keep full KV. ``mtp_layers``: attention layers of its own
    draft model, where the config names no number.
    """

    first: str = ""
    last: str = ""
    attention_first: bool = False
    caches_all: bool = False
    class_omits_drafts: bool = False
    checkpoint: str = ""
    state_dtype_obeyed: bool = False
    default_chunk: bool = False
    ignores_window: bool = False
    mtp_layers: int = 0


_MAMBA2 = ModelClass(caches_all=True, checkpoint="mamba2")
_NEMOTRON = _MAMBA2._replace(mtp_layers=1)
_MAMBA1 = ModelClass(caches_all=True, default_chunk=True)
_QWEN = ModelClass(checkpoint="gdn", mtp_layers=1)

CLASSES: dict[str, ModelClass] = {
    "NemotronHForCausalLM": _NEMOTRON,
    "NemotronHPuzzleForCausalLM": _NEMOTRON,
    "NemotronH_Nano_VL_V2": _NEMOTRON,
    "NemotronH_Nano_Omni_Reasoning_V3": _NEMOTRON,
    "GraniteMoeHybridForCausalLM": _MAMBA2._replace(class_omits_drafts=True),
    "FalconH1ForCausalLM": _MAMBA2._replace(class_omits_drafts=True, attention_first=True),
    "Zamba2ForCausalLM": _MAMBA2._replace(class_omits_drafts=True, attention_first=True),
    "BambaForCausalLM": _MAMBA2._replace(class_omits_drafts=True, last="0.23.0"),
    "Mamba2ForCausalLM": _MAMBA2,
    "MambaForCausalLM": _MAMBA1,
    "FalconMambaForCausalLM": _MAMBA1,
    "JambaForCausalLM": _MAMBA1,
    "Plamo2ForCausalLM": ModelClass(last="0.26.0", ignores_window=True),
    "Qwen3NextForCausalLM": _QWEN,
    "Qwen3_5ForConditionalGeneration": _QWEN,
    "Qwen3_5MoeForConditionalGeneration": _QWEN,
    "Qwen3_5ForCausalLM": _QWEN._replace(first="0.27.0"),
    "Qwen3_5MoeForCausalLM": _QWEN._replace(first="0.27.0"),
    "OlmoHybridForCausalLM": ModelClass(),
    "KimiLinearForCausalLM": ModelClass(),
    "KimiK3ForConditionalGeneration": ModelClass(
        first="0.27.0", checkpoint="kda", state_dtype_obeyed=True, mtp_layers=1
    ),
    "BailingMoeV2_5ForCausalLM": ModelClass(mtp_layers=1),
    "BailingMoeV3ForCausalLM": ModelClass(first="0.28.0", mtp_layers=1),
    "MiniMaxForCausalLM": ModelClass(last="0.23.0"),
    "MiniMaxText01ForCausalLM": ModelClass(last="0.23.0"),
    "MiniMaxM1ForCausalLM": ModelClass(last="0.23.0"),
    "Lfm2ForCausalLM": ModelClass(),
    "Lfm2MoeForCausalLM": ModelClass(),
    "Lfm2VlForConditionalGeneration": ModelClass(),
}
"""Every class with a recurrent state that is modelled here. A new one is added here."""


NOT_MODELLED = frozenset({
    "Glm5NextForConditionalGeneration", "Glm5NextForCausalLM", "InklingForConditionalGeneration", "InklingForCausalLM",
    "Qwen4ExpForConditionalGeneration", "Qwen4ExpForCausalLM", "AliceAIForCausalLM",
    "MiniCPMV4_6ForConditionalGeneration", "BailingMoeV3VLForConditionalGeneration",
})  # fmt: skip
"""Classes that vLLM has and whose caches no plan here knows (index caches, several kinds of state)."""


def model_class(model: Architecture, version: str) -> ModelClass:
    """What the version does for the model's class. Raises Refusal for a class that it does not have, InputError
    for one that is not modelled.
    """
    name = model.architecture
    found = CLASSES.get(name)
    if found is None:
        if model.state is None:
            return ModelClass()
        if name in NOT_MODELLED:
            raise NotModelled(
                f"the hybrid class {name} is not modelled for vLLM",
                lacking=f"the hybrid class {name}",
                fix="plan it for SGLang: --engine sglang",
            )
        raise Refusal(
            f"vLLM {version} has no hybrid class {name}",
            stage="create_engine_config",
            rule="HC043",
            fix="plan it for SGLang: --engine sglang",
        )
    if found.last and is_later(version, found.last):
        raise Refusal(
            f"vLLM {version} no longer has {name}: the last version that had it is {found.last}",
            stage="create_engine_config",
            rule="HC043",
            fix=with_release(found.last),
            release=found.last,
        )
    if found.first and is_later(found.first, version):
        raise Refusal(
            f"vLLM {version} has no class {name} yet: the first version that has it is {found.first}",
            stage="create_engine_config",
            rule="HC043",
            fix=with_release(found.first),
            release=found.first,
        )
    return found
