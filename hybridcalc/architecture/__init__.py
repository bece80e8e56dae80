"""WHAT a model stores: geometry, per-rank shapes, presets and Hugging Face configs. Knows no engine."""

from hybridcalc.architecture.geometry import FAMILIES, Architecture

__all__ = ["FAMILIES", "Architecture"]
