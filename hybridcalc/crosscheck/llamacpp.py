"""A plan against llama.cpp itself: the wheel xllamacpp lays a GGUF file out, and what it prints is compared.

--fit lays a model out without memory before it is loaded, so that a file of any size, and one of a header alone, is
checked in a second; the process is ended when the layout is complete. Nothing of torch is needed.
"""

import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

from hybridcalc.architecture import Architecture
from hybridcalc.deployment import Workload
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.engines.llamacpp.memory import compute_buffer, header_of, weights_of
from hybridcalc.engines.llamacpp.planner import Prepared
from hybridcalc.engines.llamacpp.server_plan import Plan, plan
from hybridcalc.errors import InputError, Refusal
from hybridcalc.findings import Quantity, View
from hybridcalc.units import GIB, MIB

PACKAGE = "xllamacpp"
MOST_LINES = 20_000
_CACHES = re.compile(r"((?:llama_kv_cache|llama_memory_recurrent): size = .*)")
_COMPUTE = re.compile(r"sched_reserve: +\S+ compute buffer size = +([\d.]+) MiB")
_OUTPUT = re.compile(r"llama_context: +\S+ +output buffer size = +([\d.]+) MiB")
_HOST = re.compile(r"- Host +\| +\d+ = +(\d+) \+ +(\d+) \+ +(\d+)")
_FAILED = re.compile(
    r"(?:llama_init_from_model|llama_model_load|llama_kv_cache|load): "
    r"(.*(?:failed|error|not support|requires|does not divide).*)"
)
_ERROR = re.compile(r" E \w+: (.*)")
MOST_SECONDS = 300.0
_NAMES = {"llama_kv_cache": "KV", "llama_memory_recurrent": "states"}


class BufferLine(NamedTuple):
    """One thing that the engine prints: what is planned, what is printed, and whether they agree."""

    name: str
    planned: str
    printed: str
    ok: bool


class Booted(NamedTuple):
    """What the engine laid out, beside the plan. ``refusal``: why neither starts."""

    model: str
    wheel: str
    lines: tuple[BufferLine, ...]
    notes: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def ok(self) -> bool:
        """Whether everything agrees."""
        return bool(self.lines) and all(line.ok for line in self.lines)

    @property
    def exit_code(self) -> int:
        """1 where something differs."""
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, Any]:
        """The keys of ``verify --json``."""
        return {
            "engine": "llama.cpp",
            "engine_version": f"{PACKAGE} {self.wheel}",
            "model": self.model,
            "device": "cpu",
            "lines": [line._asdict() for line in self.lines],
            "notes": list(self.notes),
            "ok": self.ok,
        }

    @property
    def view(self) -> View:
        """The answer as people read it."""
        differ = sum(not line.ok for line in self.lines)
        said = f"{len(self.lines)} of {len(self.lines)} agree" if self.ok else f"{differ} of {len(self.lines)} differ"
        figures = tuple(map(_figure, self.lines))
        meaning = f"llama.cpp of {PACKAGE} {self.wheel} lays {self.model} out"
        return View("verify", said, meaning, figures=figures, notes=self.notes, subject=self.refusal)


def _figure(line: BufferLine) -> Quantity:
    """A line of the answer: its size, what it is made of, and what is printed where that differs."""
    size, _, parts = line.planned.partition(" (")
    what = f"({parts}; " if parts else ""
    said = "printed so" if line.ok else f"printed: {line.printed}"
    return Quantity(line.name, size if parts else line.planned, "", f"{what}{said}")


def booted(model: Architecture, args: ContextParams, notes: tuple[str, ...] = ()) -> Booted:
    """The layout of a file by the engine, beside the plan of it. Raises InputError where there is no file or wheel."""
    path, wheel = _file(model), _wheel()
    try:
        planned = plan(model, args.changed(fit=False), workload=Workload())
    except Refusal as refused:
        log = _layout(path, None, args)
        said = next((found[1] for line in log if (found := _FAILED.search(line))), "")
        starts = any(_HOST.search(line) for line in log)
        line = BufferLine("refusal", refused.reason, "starts" if starts else said or "does not start", not starts)
        return Booted(model.name, wheel, (line,), notes, f"does not start: {refused.rule}")
    ready = planned.ready
    log = _layout(path, ready, ready.args)
    if not any(_HOST.search(line) for line in log):
        errors = [found[1] for line in log if (found := _ERROR.search(line))]
        said = (errors or log[-1:] or ["nothing"])[0][:300]
        raise InputError(f"llama.cpp does not lay {model.name} out; it says: {said}")
    return Booted(model.name, wheel, tuple(_compared(planned, log)), notes)


def _file(model: Architecture) -> Path:
    header = header_of(model)
    if header is None:
        raise InputError(
            f"llama.cpp is verified by booting a GGUF file, and {model.name} is none",
            fix="give a FILE.gguf; its header and a sparse file of its size are enough",
        )
    return Path(model.asked).expanduser()


def _wheel() -> str:
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        raise InputError(
            "verify boots llama.cpp, which is not installed", fix="pip install 'hybridcalc[llamacpp]'"
        ) from None


def _layout(path: Path, ready: Prepared | None, args: ContextParams) -> list[str]:
    """The lines of a start, until the layout is complete or the process ends."""
    settings: dict[str, Any] = {
        "file": str(path),
        "n_ctx": ready.n_ctx if ready is not None else args.n_ctx,
        "n_parallel": args.n_seq_max,
        "kv_unified": args.kv_unified,
        "n_batch": args.n_batch,
        "n_ubatch": args.n_ubatch,
        "cache_type_k": args.type_k,
        "cache_type_v": args.type_v,
        "flash_attn_type": args.flash_attn_type,
        "swa_full": args.swa_full,
        "drafts": ready.copies if ready is not None else args.copies_asked,
    }
    command = [sys.executable, "-m", "hybridcalc.crosscheck.llamacpp_boot", json.dumps(settings)]
    lines: list[str] = []
    with subprocess.Popen(  # noqa: S603  this Python, on a module of this package
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
    ) as run:
        bound = Timer(MOST_SECONDS, run.kill)
        bound.start()
        try:
            for line in run.stderr or ():
                lines.append(line.rstrip())
                if _HOST.search(line) or len(lines) > MOST_LINES:
                    break
        finally:
            bound.cancel()
            run.kill()
    return lines


def _compared(planned: Plan, log: list[str]) -> "list[BufferLine]":
    """Every figure that the layout prints."""
    ready, found = planned.ready, list[BufferLine]()
    expected = [line for line in planned.log_lines if _CACHES.search(line)]
    printed = [match[1] for line in log if (match := _CACHES.search(line))]
    for at in range(max(len(expected), len(printed))):
        one, other = (lines[at] if at < len(lines) else "nothing" for lines in (expected, printed))
        name = next((name for name in _NAMES if name in one + other), "")
        found.append(BufferLine(_NAMES.get(name, "more"), _short(one), _short(other), one == other))
    sums = next((match for line in log if (match := _HOST.search(line))), None)
    if sums is not None:
        weights, context = weights_of(ready), ready.kv_bytes + ready.state_bytes
        if weights is not None:
            found.append(_whole("weights", weights.likely * GIB, sums[1]))
        found.append(_whole("KV and states", context, sums[2]))
    compute = next((float(match[1]) for line in log if (match := _COMPUTE.search(line))), None)
    bounds = compute_buffer(ready)
    if compute is not None and bounds is not None:
        low, high = bounds.low / MIB, bounds.high / MIB
        within = low <= compute + 0.005 and compute - 0.005 <= high
        found.append(BufferLine("compute buffer", f"{low:,.2f} to {high:,.2f} MiB", f"{compute:,.2f} MiB", within))
    return found


def _short(line: str) -> str:
    """A line of a cache without its name and the blanks that align it."""
    return re.sub(r" +", " ", line.partition("size = ")[2] or line).strip().replace("( ", "(")


def _whole(name: str, size: float, printed: str) -> BufferLine:
    """A size that is printed in whole MiB, cut off; alignment between tensors adds less than one."""
    planned = size / MIB
    return BufferLine(name, f"{planned:,.2f} MiB", f"{printed} MiB", -0.01 <= int(printed) + 1 - planned <= 2)
