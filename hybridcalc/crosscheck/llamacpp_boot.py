"""Starts the llama-server of the wheel xllamacpp in this process, as one JSON object on the command line says.

Run as a module, in a process of its own: the engine ends a process where something is wrong with a file. --fit lays a
model out without memory before anything is loaded, and the log has every buffer.
"""

import json
import sys
from typing import Any

GGML_TYPES = {
    "f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "iq4_nl": 20, "bf16": 30,
}  # fmt: skip
"""Types of K and V -> their number in ggml.h."""


def start(settings: dict[str, Any]) -> None:
    """Load a model on the CPU; all it says goes to stderr."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = settings.pop("file")
    params.port, params.warmup, params.fit_params, params.verbosity = 0, False, True, 9
    drafts = settings.pop("drafts", 0)
    if drafts:
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max = drafts
    for name, value in settings.items():
        setattr(params, name, GGML_TYPES.get(value, value) if name.startswith("cache_type") else value)
    xllamacpp.Server(params)


if __name__ == "__main__":
    start(json.loads(sys.argv[1]))
