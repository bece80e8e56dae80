"""The smallest config of each model class that reads, its layer list left open for the test to state."""

from typing import Any

KV = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
MLA = {"hidden_size": 64, "num_attention_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
GDN = {
    "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_value_head_dim": 8, "linear_key_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
MAMBA2 = {
    "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_expand": 2,
}  # fmt: skip
JET = {"num_heads": 4, "head_dim": 96, "expand_v": 2.6666666667, "conv_size": 4}

FIELDS: dict[str, dict[str, Any]] = {
    "BailingMoeLinearV2ForCausalLM": KV | {"head_dim": 16},
    "BailingMoeV2_5ForCausalLM": MLA | {"head_dim": 16},
    "BailingMoeV3ForCausalLM": MLA | {"head_dim": 16, "short_conv_kernel_size": 4},
    "BambaForCausalLM": KV | MAMBA2,
    "DeepseekV3ForCausalLM": MLA,
    "FalconH1ForCausalLM": KV | MAMBA2 | {"mamba_d_ssm": 128},
    "FalconMambaForCausalLM": {"hidden_size": 64, "state_size": 16, "conv_kernel": 4},
    "Gemma2ForCausalLM": KV,
    "Gemma3ForCausalLM": KV,
    "Gemma3ForConditionalGeneration": KV,
    "GigaChat35ForCausalLM": GDN,
    "Glm5NextForConditionalGeneration": MLA,
    "GptOssForCausalLM": KV,
    "GraniteMoeHybridForCausalLM": KV | MAMBA2,
    "InklingForConditionalGeneration": KV | {"conv_kernel_size": 4, "sliding_window_size": 512},
    "JambaForCausalLM": KV | MAMBA2,
    "JetNemotronForCausalLM": KV | {"efficient_attention_config": {"jet": JET, "swa": {"window_size": 1152}}},
    "KimiLinearForCausalLM": MLA,
    "Lfm2ForCausalLM": KV | {"conv_L_cache": 3},
    "Mamba2ForCausalLM": {
        "hidden_size": 64, "num_heads": 8, "head_dim": 16, "state_size": 32, "n_groups": 1, "conv_kernel": 4
    },
    "MiniCPMSALAForCausalLM": KV,
    "MiniMaxText01ForCausalLM": KV,
    "NemotronHForCausalLM": KV
    | {"mamba_num_heads": 8, "mamba_head_dim": 16, "ssm_state_size": 32, "n_groups": 1, "conv_kernel": 4},
    "Olmo3ForCausalLM": KV,
    "Plamo2ForCausalLM": KV
    | {"mamba_num_heads": 8, "hidden_size_per_head": 16, "mamba_d_state": 32, "mamba_d_conv": 4, "mamba_step": 2},
    "Qwen3ForCausalLM": KV,
    "LaraMiniForCausalLM": KV | GDN,
    "Qwen3NextForCausalLM": KV | GDN | {"head_dim": 16},
    "Qwen4ExpForConditionalGeneration": KV | GDN | {"head_dim": 16},
    "Zamba2ForCausalLM": KV | {"n_mamba_heads": 8, "mamba_d_state": 32, "mamba_d_conv": 4},
    "ZayaForCausalLM": KV,
}  # fmt: skip


def small_config(architecture: str, layers: int | None, **fields: Any) -> dict[str, Any]:
    """A config of that class and number of layers (None: the number is not stated), with ``fields`` added."""
    count = {} if layers is None else {"num_hidden_layers": layers}
    return {"architectures": [architecture]} | FIELDS[architecture] | count | fields


def kda_config(layers: int, kda_layers: Any) -> dict[str, Any]:
    """A Kimi-Linear config, whose layer list sits in a table with the sizes."""
    table = {"kda_layers": kda_layers, "num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4}
    return small_config("KimiLinearForCausalLM", layers, linear_attn_config=table)
