"""vLLM: what its layers keep per sequence."""

from hybridcalc.engines.vllm.config import NEWEST_VERSION, EngineArgs
from hybridcalc.engines.vllm.states import layer_state, state_bytes_per_layer

__all__ = ["NEWEST_VERSION", "EngineArgs", "layer_state", "state_bytes_per_layer"]
