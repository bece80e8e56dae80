"""vLLM's engine arguments that decide the recurrent state, under the engine's own names and with its own defaults.

``model_dtype`` is the dtype argument's effect: "auto" takes the model's. ``num_speculative_tokens`` is the value inside
--speculative-config. ``engine_version`` selects a rule set; an unknown version takes the nearest lower known one.
Source: vLLM engine/arg_utils.py, config/cache.py (0.33.0; 0.22.1 where it differs).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hybridcalc.units import version_numbers

NEWEST_VERSION = "0.33.0"


@dataclass(frozen=True, slots=True)
class EngineArgs:
    """Arguments of ``vllm serve``."""

    tensor_parallel_size: int = 1
    dtype: str = "auto"
    mamba_cache_dtype: str = "auto"
    mamba_ssm_cache_dtype: str = "auto"
    num_speculative_tokens: int = 0
    use_replayssm: bool = False
    replayssm_buffer_len: int = 16
    mamba_backend: str = "triton"
    env: Mapping[str, str] = field(default_factory=dict)
    engine_version: str = NEWEST_VERSION

    @property
    def before_0_33(self) -> bool:
        """Whether the rules of 0.22.1 apply."""
        return version_numbers(self.engine_version) < (0, 33)
