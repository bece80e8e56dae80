"""WHAT a model stores: geometry, per-rank shapes, presets and Hugging Face configs. Knows no engine."""

from hybridcalc.architecture.families import FAMILIES
from hybridcalc.architecture.geometry import Architecture

__all__ = ["FAMILIES", "Architecture"]
