"""Why does a load of llama.cpp have so few layers on the device, and what did its loader reckon with?"""

from __future__ import annotations

import re
from fractions import Fraction

from hybridcalc.bootlog.boots import Boot
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.llamacpp_failures import as_reckoned
from hybridcalc.units import GIB, MIB, format_bytes

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ([MG])i?B")


def _reckoned(boot: Boot) -> tuple[Fraction, Fraction] | None:
    """What all of a model was reckoned to take, and what was free of all devices; None where it is not printed."""
    offload = next(iter(reversed(boot.of("planned_offload"))), None)
    needed = (offload.size("needed") if offload is not None else None) or boot.size("planned_total", "size")
    listed = (offload.word("free") or "").partition("]")[0] if offload is not None else ""
    free = sum((Fraction(n) * (GIB if unit == "G" else MIB) for n, unit in _SIZE.findall(listed)), Fraction(0))
    free = free or sum((size.value for one in boot.of("free_on_device") if (size := one.size("free"))), Fraction(0))
    return (needed.value, free) if needed is not None and free else None


def fitted(answer: Diagnosis) -> None:
    """Why so many layers are on the device: what was projected, free, and to be left free."""
    boot = answer.boot
    offloaded = next(iter(reversed(boot.of("offloaded") or boot.of("planned_offload"))), None)
    layers = [offloaded.count(name) for name in ("layers", "of")] if offloaded is not None else [None, None]
    on_device = f"{layers[0]} of {layers[1]} layers are on the device" if None not in layers else ""
    use, free = boot.size("fit_projected", "use"), boot.size("fit_projected", "free")
    if on_device and layers[0] != layers[1] and (reckoned := _reckoned(boot)) is not None:
        needed, left = map(format_bytes, reckoned)
        fix = "a smaller quantization, OLLAMA_KV_CACHE_TYPE=q8_0 or a smaller num_ctx leave room for more"
        if layers[0] == 0 and reckoned[0] <= reckoned[1]:
            fix = "no GPU is used: the server's first lines say which it found"
        answer.find("HC152", f"{on_device}: {needed} are needed for all, {left} are free", fix)
        return
    if use is None or free is None:
        _projected(answer)
        if on_device and offloaded is not None and layers[0] != layers[1]:
            answer.row(f"line {offloaded.line}", on_device, "")
        return
    target, reduced = boot.size("fit_target", "target"), boot.of("fit_context")
    said = f"{_mib(use.value)} MiB were projected, {_mib(free.value)} MiB are free"
    said += f", {_mib(target.value)} MiB of it to be left" if target is not None else ""
    for one in reduced[:1]:
        said += f"; the context went from {one.get('from'):,} to {one.get('to'):,} tokens"
    few = layers[0] is not None and layers[1] is not None and layers[0] < layers[1]
    fix = "a smaller quantization, -ctk q8_0 -ctv q8_0 or a shorter -c leave room for more" if few else ""
    answer.find("HC152", f"{on_device}: {said}" if on_device else said, fix)


def _projected(answer: Diagnosis) -> None:
    """Devices that a rehearsal of the load overfills: what it counts is not allocated, so the device lacks it."""
    for one in answer.boot.of("breakdown"):
        own, free, lacking = one.size("own"), one.size("free"), one.size("lacking")
        if own is None or free is None or lacking is None or own.value <= free.value or 2 * lacking.value < own.value:
            continue
        said = f"{one.word('device')}: {_mib(own.value)} MiB are projected, {_mib(free.value)} MiB are free"
        answer.find("HC152", f"{said}; nothing of it is loaded", "fewer layers on it (-ngl, -ts), or a shorter -c")


def _mib(size: Fraction) -> str:
    return f"{float(size / MIB):,.0f}"


def estimated(answer: Diagnosis) -> list[str]:
    """What LM Studio reckoned with before it loaded, in its own units."""
    for one in answer.boot.of("estimate")[-1:]:
        parts = [(name, one.size(name)) for name in ("weights", "caches", "device")]
        said = [f"{name} {as_reckoned(size)}" for name, size in parts if size is not None]
        n_ctx, total = one.count("n_ctx"), one.size("total")
        of = f" at a context of {n_ctx:,}" if n_ctx else ""
        what = f"{as_reckoned(total)} reckoned" if total is not None else "reckoned"
        answer.row(f"line {one.line}", what, ", ".join(said))
        return [f"{what} before the load{of}"]
    return []
