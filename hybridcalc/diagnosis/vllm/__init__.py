"""A boot of vLLM: what its tokens mean, which model has its pages, why it failed, what to set."""

from hybridcalc.diagnosis.vllm.boot import diagnose, launched

__all__ = ["diagnose", "launched"]
