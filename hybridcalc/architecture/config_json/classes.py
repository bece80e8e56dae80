"""Which reader understands which model class: the one place where a Hugging Face class is added."""

from collections.abc import Callable
from functools import partial

from hybridcalc.architecture.config_json import hybrid
from hybridcalc.architecture.config_json.attention import dense
from hybridcalc.architecture.config_json.fields import Fields


def _dense(fields: Fields, *, default_pattern: int = 0) -> hybrid.Parts:
    layers, attention, window = dense(fields, default_pattern=default_pattern)
    return hybrid.Parts(layers, None, attention, window)


HYBRID_READERS: dict[str, Callable[[Fields], hybrid.Parts]] = {
    "KimiLinearForCausalLM": hybrid.kimi,
    "KimiK3ForConditionalGeneration": hybrid.kimi,
    "KimiK3LinearForCausalLM": hybrid.kimi,
    "Glm5NextForConditionalGeneration": hybrid.glm5_next,
    "BailingMoeV3ForCausalLM": hybrid.bailing_v3,
    "BailingMoeV2_5ForCausalLM": hybrid.bailing_v2_5,
    "BailingMoeLinearV2ForCausalLM": hybrid.bailing_linear_v2,
    "Qwen3NextForCausalLM": hybrid.qwen_gdn,
    "Qwen3_5ForConditionalGeneration": hybrid.qwen_gdn,
    "Qwen3_5MoeForConditionalGeneration": hybrid.qwen_gdn,
    "Qwen3_5ForCausalLM": hybrid.qwen_gdn,
    "Qwen3_5MoeForCausalLM": hybrid.qwen_gdn,
    "OlmoHybridForCausalLM": hybrid.linear_hybrid,
    "LaraMiniForCausalLM": hybrid.linear_hybrid,
    "Qwen4ExpForConditionalGeneration": hybrid.qwen4_exp,
    "GigaChat35ForCausalLM": hybrid.gigachat,
    "JetNemotronForCausalLM": hybrid.jet_nemotron,
    "JetVLMForConditionalGeneration": hybrid.jet_nemotron,
    "NemotronHForCausalLM": hybrid.nemotron_h,
    "NemotronH_Nano_VL_V2": hybrid.nemotron_h,
    "NemotronH_Nano_Omni_Reasoning_V3": hybrid.nemotron_h,
    "FalconH1ForCausalLM": hybrid.falcon_h1,
    "GraniteMoeHybridForCausalLM": hybrid.granite_hybrid,
    "BambaForCausalLM": hybrid.bamba,
    "Zamba2ForCausalLM": hybrid.zamba2,
    "Mamba2ForCausalLM": hybrid.mamba2,
    "MambaForCausalLM": hybrid.mamba1,
    "FalconMambaForCausalLM": hybrid.mamba1,
    "JambaForCausalLM": hybrid.jamba,
    "Plamo2ForCausalLM": hybrid.plamo2,
    "MiniMaxText01ForCausalLM": hybrid.minimax,
    "MiniMaxM1ForCausalLM": hybrid.minimax,
    "MiniMaxForCausalLM": hybrid.minimax,
    "MiniCPMSALAForCausalLM": hybrid.minicpm_sala,
    "Lfm2ForCausalLM": hybrid.lfm2,
    "Lfm2MoeForCausalLM": hybrid.lfm2,
    "Lfm2VlForConditionalGeneration": hybrid.lfm2,
    "Lfm3ForCausalLM": hybrid.lfm2,
    "ZayaForCausalLM": hybrid.zaya,
    "InklingForConditionalGeneration": hybrid.inkling,
    "Inkling2ForConditionalGeneration": hybrid.inkling,
}
DENSE_ARCHITECTURES = (
    "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "Mistral3ForConditionalGeneration",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
    "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM", "KimiVLForConditionalGeneration",
    "Gemma2ForCausalLM", "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "GptOssForCausalLM",
    "Glm4ForCausalLM", "Glm4MoeForCausalLM", "Phi3ForCausalLM", "Olmo2ForCausalLM", "Olmo3ForCausalLM",
    "GraniteForCausalLM", "GraniteMoeForCausalLM", "MiniMaxM2ForCausalLM", "SeedOssForCausalLM",
)  # fmt: skip
FULL_LAYER_PERIODS = {
    "Gemma2ForCausalLM": 2, "Gemma3ForCausalLM": 6, "Gemma3ForConditionalGeneration": 6, "GptOssForCausalLM": 2,
    "Olmo3ForCausalLM": 4,
}  # fmt: skip
"""Classes whose config states a window and may leave out which layers have it: every n-th has not."""
WINDOW_READERS: dict[str, Callable[[Fields], hybrid.Parts]] = {
    name: partial(_dense, default_pattern=period) for name, period in FULL_LAYER_PERIODS.items()
}
READERS = HYBRID_READERS | dict.fromkeys(DENSE_ARCHITECTURES, _dense) | WINDOW_READERS

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
