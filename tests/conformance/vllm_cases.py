"""The recorded results of vLLM's own classes, release by release: inputs as engine arguments, and what starts there.

A file of tests/data/vectors/releases has the cases of one release or of one subject; vllm.json those of 0.33.0 and
0.22.1. A case is its model's geometry, vLLM's own arguments and environment, the memory for the cache, what the classes
computed (a refused one: what they had by then) and the lines they printed.
"""

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from hybridcalc import Architecture
from hybridcalc.engines.vllm import EngineArgs, Refusal
from hybridcalc.engines.vllm.planner import outputs, prepare, size

DATA = Path(__file__).resolve().parent.parent / "data" / "vectors"
ABOUT_CACHES = re.compile(
    r"Updating mamba|Mamba cache mode|Setting attention|Setting kv cache|Padding mamba|Add \d+ padding|"
    r"Overriding num|Auto-fit|GPU KV cache|Maximum conc|kv cache group|kv lcm|Warning: Prefix|Hybrid or mamba|"
    r"Using \w+ KV cache layout"
)


class Case(NamedTuple):
    """A recorded start-up, and the file that holds it."""

    file: str
    given: dict[str, Any]

    @property
    def id(self) -> str:
        """Its name, with the release."""
        return f"{self.given['vllm']}-{self.given['id']}"

    @property
    def model(self) -> Architecture:
        """The model, with the fields that --hf-overrides replaces."""
        overrides = json.dumps(self.given["args"].get("hf_overrides") or {})
        return _model(self.file, self.given["geometry"], overrides)

    @property
    def args(self) -> EngineArgs:
        """vLLM's arguments."""
        given = self.given
        return EngineArgs(
            **given["args"], env=given["env"], engine_version=given["vllm"], gpu_capability=given["gpu_capability"]
        )

    @property
    def stage(self) -> str | None:
        """The stage that refused; None where it starts. What is called retention here is the block managers' check."""
        stage: str | None = (self.given.get("error") or {}).get("stage")
        return "retention" if stage == "coordinator" else stage

    @property
    def message(self) -> str:
        """What it said where it was refused."""
        return str((self.given.get("error") or {}).get("message", ""))

    @property
    def available_bytes(self) -> int:
        """The memory for the cache."""
        return int(self.given["available_bytes"])

    @property
    def recorded(self) -> dict[str, Any]:
        """What the classes computed, layers of pipeline stages apart (`layers_per_stage`)."""
        outputs = self.given.get("outputs") or {}
        named = {RENAMED.get(name, name): value for name, value in outputs.items()}
        named.pop("layers_per_stage", None)
        return named

    @property
    def printed(self) -> list[str]:
        """The recorded lines about caches, without level and place."""
        lines = [line.split(" ", 2)[2] for line in self.given.get("log", ())]
        return [line for line in lines if ABOUT_CACHES.match(line)]

    def start_up(self) -> tuple[Refusal | None, dict[str, Any]]:
        """What stops the start-up here, if anything does, and what it had settled by then."""
        try:
            ready = prepare(self.model, self.args)
            sizing = size(ready, self.available_bytes)
        except Refusal as refusal:
            return refusal, refusal.outputs
        return None, outputs(ready, sizing)


@cache
def read(file: str) -> dict[str, Any]:
    """A file of vectors."""
    raw = (DATA / file).read_bytes()
    found: dict[str, Any] = json.loads(lzma.decompress(raw) if file.endswith(".xz") else raw)
    return found


def cases(file: str) -> list[Case]:
    """The cases of a file."""
    return [Case(file, case) for case in read(file)["cases"]]


@cache
def _model(file: str, geometry: str, overrides: str) -> Architecture:
    return Architecture.from_hf_config(read(file)["geometries"][geometry] | json.loads(overrides), name=geometry)


NEWEST = "vllm.json"
RENAMED = {"global_group_sizes": "group_sizes"}
"""Outputs that go by another name where stages have groups of their own."""
FILES = tuple(f"releases/{path.name}" for path in sorted((DATA / "releases").glob("vllm-*")))
"""Every file of one release or subject, beside that of 0.33.0 and 0.22.1."""
