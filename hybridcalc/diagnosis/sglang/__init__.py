"""A boot of SGLang: what its pools say of the model, what binds, why it failed, what to set."""

from hybridcalc.diagnosis.sglang.boot import diagnose
from hybridcalc.diagnosis.sglang.consistency import together
from hybridcalc.diagnosis.sglang.evidence import launched

__all__ = ["diagnose", "launched", "together"]
