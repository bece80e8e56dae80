"""Compile presets/models/*.yaml and presets/gpus/*.yaml into the JSON that the package carries.

What only weights follow from goes into a file of its own, weights.json. A checkpoint there says its method of
quantisation in words, which a plan shows without reading how each module is stored.

python tools/compile_presets.py            write hybridcalc/presets/models.json, weights.json and gpus.json
python tools/compile_presets.py --check    exit 1 when they are not what the YAML says
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from hybridcalc.architecture.preset_schema import read_gpu_preset, read_preset
from hybridcalc.architecture.quantization_config import read_quantization

ROOT = Path(__file__).resolve().parent.parent


OF_WEIGHTS = ("config", "checkpoints")


def compiled(folder: str) -> dict[str, str]:
    """All presets of a folder as JSON documents by name, one line a preset."""
    read = read_preset if folder == "models" else read_gpu_preset
    presets = {}
    for path in sorted((ROOT / "presets" / folder).glob("*.yaml")):
        preset = read(path.read_text(encoding="utf-8"), path.name)
        if path.stem != preset["id"]:
            sys.exit(f"{path.name}: holds the preset {preset['id']}")
        for checkpoint in preset.get("checkpoints", ()):
            if checkpoint.get("quantization"):
                found = read_quantization({"quantization_config": checkpoint["quantization"]})
                checkpoint["method"] = found.method if found is not None else ""
        presets[preset["id"]] = preset
    documents = {folder: presets}
    if folder == "models":
        documents["weights"] = {
            name: {key: preset.pop(key) for key in OF_WEIGHTS if key in preset} for name, preset in presets.items()
        }
    return {name: _lines(document) for name, document in documents.items()}


def _lines(presets: dict[str, dict[str, Any]]) -> str:
    lines = (f"{json.dumps(name)}: {json.dumps(preset, separators=(',', ':'))}" for name, preset in presets.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write or check both files."""
    stale = 0
    for folder in ("models", "gpus"):
        for name, text in compiled(folder).items():
            target = ROOT / "hybridcalc" / "presets" / f"{name}.json"
            if "--check" not in sys.argv:
                target.write_text(text, encoding="utf-8")
            elif not target.exists() or target.read_text(encoding="utf-8") != text:
                print(f"{target.name} is not what presets/{folder} says: run python tools/compile_presets.py")
                stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main())
