"""Which reader understands which model class: the one place where a Hugging Face class is added."""

from collections.abc import Callable
from functools import partial

from hybridcalc.architecture.config_json import gdn, kda, lightning, mamba, shortconv
from hybridcalc.architecture.config_json.parts import Parts, dense
from hybridcalc.architecture.fields import Fields

HYBRID_READERS: dict[str, Callable[[Fields], Parts]] = {
    "KimiLinearForCausalLM": kda.kimi,
    "KimiK3ForConditionalGeneration": kda.kimi,
    "KimiK3LinearForCausalLM": kda.kimi,
    "Glm5NextForConditionalGeneration": kda.glm5_next,
    "BailingMoeV3ForCausalLM": kda.bailing_v3,
    "BailingMoeV2_5ForCausalLM": lightning.bailing_v2_5,
    "BailingMoeLinearV2ForCausalLM": lightning.bailing_linear_v2,
    "Qwen3NextForCausalLM": gdn.qwen_gdn,
    "Qwen3_5ForConditionalGeneration": gdn.qwen_gdn,
    "Qwen3_5MoeForConditionalGeneration": gdn.qwen_gdn,
    "Qwen3_5ForCausalLM": gdn.qwen_gdn,
    "Qwen3_5MoeForCausalLM": gdn.qwen_gdn,
    "OlmoHybridForCausalLM": gdn.linear_hybrid,
    "LaraMiniForCausalLM": gdn.linear_hybrid,
    "Qwen4ExpForConditionalGeneration": gdn.qwen4_exp,
    "GigaChat35ForCausalLM": gdn.gigachat,
    "JetNemotronForCausalLM": gdn.jet_nemotron,
    "JetVLMForConditionalGeneration": gdn.jet_nemotron,
    "NemotronHForCausalLM": mamba.nemotron_h,
    "NemotronH_Nano_VL_V2": mamba.nemotron_h,
    "NemotronH_Nano_Omni_Reasoning_V3": mamba.nemotron_h,
    "FalconH1ForCausalLM": mamba.falcon_h1,
    "GraniteMoeHybridForCausalLM": mamba.granite_hybrid,
    "BambaForCausalLM": mamba.bamba,
    "Zamba2ForCausalLM": mamba.zamba2,
    "Mamba2ForCausalLM": mamba.mamba2,
    "MambaForCausalLM": mamba.mamba1,
    "FalconMambaForCausalLM": mamba.mamba1,
    "JambaForCausalLM": mamba.jamba,
    "Plamo2ForCausalLM": mamba.plamo2,
    "MiniMaxText01ForCausalLM": lightning.minimax,
    "MiniMaxM1ForCausalLM": lightning.minimax,
    "MiniMaxForCausalLM": lightning.minimax,
    "MiniCPMSALAForCausalLM": lightning.minicpm_sala,
    "Lfm2ForCausalLM": shortconv.lfm2,
    "Lfm2MoeForCausalLM": shortconv.lfm2,
    "Lfm2VlForConditionalGeneration": shortconv.lfm2,
    "Lfm3ForCausalLM": shortconv.lfm2,
    "ZayaForCausalLM": shortconv.zaya,
    "InklingForConditionalGeneration": shortconv.inkling,
    "Inkling2ForConditionalGeneration": shortconv.inkling,
}
DENSE_ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Mistral3ForConditionalGeneration",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiVLForConditionalGeneration",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "GptOssForCausalLM",
    "Glm4ForCausalLM", "Glm4MoeForCausalLM", "Phi3ForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM",
    "GraniteForCausalLM", "GraniteMoeForCausalLM", "MiniMaxM2ForCausalLM", "SeedOssForCausalLM",
)  # fmt: skip
DRAFT_CLASSES = {
    **dict.fromkeys((
        "LlamaForCausalLMEagle", "LlamaForCausalLMEagle3", "EagleLlamaForCausalLM", "Eagle3LlamaForCausalLM",
        "PEagleDraftModel", "PeagleLlamaForCausalLM", "Eagle3MiniMaxM2ForCausalLM", "Eagle3Qwen2_5vlForCausalLM",
        "Eagle3Qwen3vlForCausalLM",
    ), "LlamaForCausalLM"),
    **dict.fromkeys((
        "Eagle3Qwen3ForCausalLM", "PeagleQwen3ForCausalLM", "DFlashDraftModel", "DFlashQwen3ForCausalLM",
        "DFlash2DraftModel", "DSparkDraftModel", "Qwen3DSparkModel",
    ), "Qwen3ForCausalLM"),
    "Eagle3DeepseekV2ForCausalLM": "DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM": "DeepseekV3ForCausalLM",
}  # fmt: skip
"""Classes of draft models -> the class whose attention their config.json describes. Source: vLLM
model_executor/models/registry.py (0.33.0), SGLang models/ (0.5.23).
"""
FULL_LAYER_PERIODS = {
    "Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6, "Gemma3ForConditionalGeneration": 6, "GptOssForCausalLM": 2,
    "Olmo3ForCausalLM": 4,
}  # fmt: skip
"""Classes whose config states a window and may leave out which layers have it: every n-th has not."""
WINDOW_READERS: dict[str, Callable[[Fields], Parts]] = {
    name: partial(dense, default_pattern=period) for name, period in FULL_LAYER_PERIODS.items()
}
READERS = HYBRID_READERS | dict.fromkeys(DENSE_ARCHITECTURES, dense) | WINDOW_READERS

BY_MODEL_TYPE = {
    "kimi_linear": "KimiLinearForCausalLM", "kimi_k3": "KimiK3ForConditionalGeneration",
    "glm5_next": "Glm5NextForConditionalGeneration", "glm5_next_text": "Glm5NextForConditionalGeneration",
    "bailing_moe_linear": "BailingMoeLinearV2ForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "qwen3_5": "Qwen3_5ForConditionalGeneration", "qwen3_5_text": "Qwen3_5ForCausalLM",
    "qwen3_5_moe": "Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe_text": "Qwen3_5MoeForCausalLM",
    "qwen4_exp": "Qwen4ExpForConditionalGeneration", "qwen4_exp_text": "Qwen4ExpForConditionalGeneration",
    "olmo_hybrid": "OlmoHybridForCausalLM", "lara_mini": "LaraMiniForCausalLM", "gigachat3_5": "GigaChat35ForCausalLM",
    "jet_nemotron": "JetNemotronForCausalLM", "nemotron_h": "NemotronHForCausalLM", "falcon_h1": "FalconH1ForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM", "bamba": "BambaForCausalLM", "zamba2": "Zamba2ForCausalLM",
    "mamba2": "Mamba2ForCausalLM", "mamba": "MambaForCausalLM", "falcon_mamba": "FalconMambaForCausalLM",
    "jamba": "JambaForCausalLM", "plamo2": "Plamo2ForCausalLM",
    "minimax_text_01": "MiniMaxText01ForCausalLM", "minimax_m1": "MiniMaxM1ForCausalLM",
    "minimax": "MiniMaxForCausalLM",
    "minicpm_sala": "MiniCPMSALAForCausalLM", "lfm2": "Lfm2ForCausalLM", "lfm2_moe": "Lfm2MoeForCausalLM",
    "lfm2_vl": "Lfm2VlForConditionalGeneration", "lfm3": "Lfm3ForCausalLM", "zaya": "ZayaForCausalLM",
    "inkling": "InklingForConditionalGeneration", "inkling_model": "InklingForConditionalGeneration",
    "inkling_mm_model": "InklingForConditionalGeneration", "inkling2": "Inkling2ForConditionalGeneration",
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "mixtral": "MixtralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen2_moe": "Qwen2MoeForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM", "deepseek_v2": "DeepseekV2ForCausalLM", "deepseek_v3": "DeepseekV3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForConditionalGeneration", "gemma3_text": "Gemma3ForCausalLM",
    "gpt_oss": "GptOssForCausalLM", "glm4": "Glm4ForCausalLM", "glm4_moe": "Glm4MoeForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM", "olmo3": "Olmo3ForCausalLM", "granite": "GraniteForCausalLM",
    "granitemoe": "GraniteMoeForCausalLM", "minimax_m2": "MiniMaxM2ForCausalLM", "seed_oss": "SeedOssForCausalLM",
}  # fmt: skip
