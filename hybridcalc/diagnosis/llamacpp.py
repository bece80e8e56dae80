"""A llama.cpp load: what a sequence's state and a token of KV weigh, where its buffers are, and which did not fit.

state of a sequence = (R + S) / sequences / copies       fp32 both; rs_seq extra copies serve drafts
KV of a token       = (K + V) / (cells x streams)        the cells that are printed are those of one stream

Context checkpoints hold a sequence's state, and KV of what is not kept elsewhere, in host memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from hybridcalc.architecture import Architecture
from hybridcalc.architecture.presets import load_model
from hybridcalc.bootlog import Printed, Record
from hybridcalc.bootlog.boots import Boot
from hybridcalc.bootlog.llamacpp import PLANNED
from hybridcalc.deployment import requests_text
from hybridcalc.diagnosis import Question, add_failures
from hybridcalc.diagnosis.answer import Constants, Derived, Diagnosis, Exact, whole_range
from hybridcalc.diagnosis.llamacpp_failures import CAUSES
from hybridcalc.diagnosis.llamacpp_fitted import estimated, fitted
from hybridcalc.diagnosis.llamacpp_models import (
    Cache,
    Fit,
    States,
    caches,
    context,
    fitting,
    mismatches,
    named,
    of_a_token,
    states,
)
from hybridcalc.diagnosis.names import Named
from hybridcalc.engines.llamacpp import ContextParams
from hybridcalc.units import GIB, format_bytes

KINDS = (("weights_buffer", "weights"), ("kv_buffer", "KV"), ("state_buffer", "states"), ("compute_buffer", "compute"),
         ("output_buffer", "output"))  # fmt: skip
TOTALS = {"kv_buffer": ("kv_total", "kv_self"), "state_buffer": ("state_total",)}
"""Lines that say what the buffers of a kind come to."""
_RESERVED_ANEW = ("compute_buffer", "output_buffer")
"""Kinds of which a device's last line counts: the others are one buffer a line."""
LOADERS = (("Ollama", (*PLANNED, "host_refused")), ("LM Studio", ("estimate", "guardrail")))
"""What starts a llama.cpp of its own, by kinds of lines that it alone prints."""
RECKONED = {"weights_buffer": "planned_weights", "kv_buffer": "planned_kv", "compute_buffer": "planned_compute"}
"""Lines that say what a loader reckoned with for the buffers of a kind."""
MOST_CACHES = 6


@dataclass(slots=True)
class LlamaDerived(Derived):
    """What follows from a load's figures: whole bytes, None where they do not say. ``buffers_bytes`` by kind."""

    state_bytes_per_sequence: int | None = None
    kv_bytes_per_cell: int | None = None
    sequences: int | None = None
    streams: int | None = None
    tokens_per_sequence: int | None = None
    state_copies: int | None = None
    buffers_bytes: dict[str, int] | None = None
    host_buffers_bytes: int | None = None
    checkpoint_state_bytes: int | None = None
    checkpoint_bytes_per_token: int | None = None
    checkpoints_bytes: int | None = None


def diagnose(boot: Boot, question: Question) -> Diagnosis:
    """The answer for one llama.cpp load."""
    derived = LlamaDerived()
    answer = Diagnosis(boot, derived=derived)
    failed = add_failures(answer, CAUSES)
    found, held = caches(boot), states(boot, _launched(question))
    kv = found[0] if found else None
    if held is not None and held.by_difference and not fitting(kv, held, _model(boot, question)):
        held = None  # buffers are padded, and lines left out
    fit = _identify(answer, kv, held, question)
    if held is not None and not held.counted and fit is not None and fit.copies:
        held = held._replace(sequences=fit.copies, copies=1, counted=True)
    totals = {"kv_buffer": kv.size if kv is not None else None, "state_buffer": held.size if held is not None else None}
    buffers = _buffers(answer, derived, totals, {cache.line for cache in found})
    parts = [*_states(answer, derived, held, fit), *_caches(answer, derived, found, fit)]
    if derived.state_bytes_per_sequence is not None and derived.kv_bytes_per_cell:
        equal = Fraction(derived.state_bytes_per_sequence) / derived.kv_bytes_per_cell
        parts.append(f"a state weighs {float(equal):,.0f} tokens")
    parts += buffers
    fitted(answer)
    _recovered(answer)
    parts += _checkpoints(answer, derived)
    parts[:0] = _requests(answer, derived, found, held, question, failed=failed)
    reckoned = estimated(answer)
    loader = next((name for name, kinds in LOADERS if any(boot.of(kind) for kind in kinds)), "llama.cpp")
    head = loader + (f", {answer.model_guess}" if answer.model_guess else "")
    answer.rows.sort(key=lambda row: int(row.place.removeprefix("line ")) if row.place.startswith("line ") else 10**9)
    if not parts and derived.buffers_bytes:
        parts = [f"{format_bytes(size)} of {name.replace('_', ' ')}" for name, size in derived.buffers_bytes.items()]
    answer.conclude(head, parts or reckoned or ["no cache line in it"], failed)
    return answer


def _launched(question: Question) -> int | None:
    """The sequences that the launch line asks for; None where there is none, or it leaves them to the server."""
    launch = question.launch
    if launch is None or not isinstance(launch.args, ContextParams):
        return None
    asked = any(word.partition("=")[0] in ("-np", "--parallel") for word in launch.words)
    return launch.args.n_seq_max if asked else None


def _model(boot: Boot, question: Question) -> Architecture | None:
    """The model that is asked about, or that the log names."""
    said = named(boot)
    return question.model or (load_model(said[1]) if said is not None and said[1] is not None else None)


def _by_hints(answer: Diagnosis, fits: list[Fit], question: Question) -> list[Fit]:
    """Those of the models that fit which the text around the log speaks of, where it does."""
    said, hints = named(answer.boot), question.hints
    if question.model is not None or (said is not None and said[1] is not None):
        return fits
    spoken = [fit for fit in fits if fit.candidate.model in hints.presets]
    told = hints.named() if said is None and hints.model is not None else None
    chosen = bool(spoken) and len(spoken) < len(fits)
    by_log = Named(said[0], None) if said is not None else None
    hints.note(answer, title="", release=False, model=chosen and told is not None, by_log=by_log)
    return spoken or fits


def _identify(answer: Diagnosis, kv: Cache | None, held: States | None, question: Question) -> Fit | None:
    """The model that the log names, or those that store just what is printed; the likeliest."""
    said, model = named(answer.boot), _model(answer.boot, question)
    fits = fitting(kv, held, model) if kv is not None or held is not None else []
    if model is not None and not fits and (kv is not None or held is not None):
        why = "; ".join(mismatches(model, kv, held)) or "its layers are others"
        if question.model is not None:
            answer.find("HC101", f"the log does not match {model.name}: {why}")
            return None
        answer.find("HC107", f"the log names {said[0] if said else model.name}, and is not of its sizes: {why}")
        fits = fitting(kv, held, None)
    fits = _by_hints(answer, fits, question)
    if not fits:
        if model is not None and question.model is None:
            answer.model_guess = model.name
        return None
    answer.candidates = tuple(fit.candidate for fit in fits)
    sizes = {candidate.sizes for candidate in answer.candidates}
    best = fits[0]
    names = answer.names
    if said is not None and said[1] is None and question.model is None:
        answer.model_guess = said[0]
        answer.find("HC107", f"{said[0]} is no preset; it has the same caches as {names}")
    elif len(sizes) == 1:
        answer.model_guess = best.candidate.model if len(fits) == 1 else f"caches as of {names}"
    else:
        answer.find("HC107", f"fits {names}: the printed figures do not decide", "--model says which it is")
        return None
    exact = Exact(best.candidate.model, best.candidate.state_bytes, best.candidate.kv_bytes or None, True)
    each = held.size.interval if held is not None and best.copies else None
    slot = (
        whole_range((each[0] / held.sequences / best.copies, each[1] / held.sequences / best.copies))
        if each is not None and held is not None and best.copies
        else None
    )
    cell = whole_range((kv.size.interval[0] / kv.tokens, kv.size.interval[1] / kv.tokens)) if kv is not None else None
    answer.constants = Constants(slot, kv_bytes_per_token=cell, exact=exact)
    return best


def _states(answer: Diagnosis, derived: LlamaDerived, held: States | None, fit: Fit | None) -> list[str]:
    """The state pool: what a sequence holds of it."""
    if held is None:
        return []
    place, many = f"line {held.line}", requests_text(held.sequences).replace("request", "sequence")
    copies = held.copies or (fit.copies if fit is not None else None)
    if copies is None:
        answer.row(place, f"states of {many}", f"{held.size} MiB")
        why = "a draft context is there: the state buffer holds copies to roll back to, and how many is not printed"
        answer.find("HC150", why if held.counted else "of how many sequences the states are is not printed")
        return []
    each = held.size.value / held.sequences / copies
    derived.state_bytes_per_sequence, derived.state_copies = int(each), copies
    shown = format_bytes(each)
    if held.copies is None and fit is not None:
        derived.state_bytes_per_sequence = fit.candidate.state_bytes
        shown = format_bytes(fit.candidate.state_bytes)
    times = f"{held.sequences} x {copies} copies" if copies > 1 else f"{held.sequences}"
    answer.row(place, f"states of {many}", f"{times} x {shown} = {held.size} MiB")
    said = f"a sequence's state is {shown}, all of it fp32"
    if copies > 1 and held.counted:
        said += f"; it is there {copies} times, to roll back {copies - 1} draft tokens"
    answer.find("HC150", said)
    return [f"{shown} of state a sequence"]


def _caches(answer: Diagnosis, derived: LlamaDerived, found: list[Cache], fit: Fit | None) -> list[str]:
    """The KV caches: what a token takes of each."""
    for cache in found[:MOST_CACHES]:
        types = "" if cache.types is None else f" ({' and '.join(dict.fromkeys(cache.types))})"
        cells = f"{cache.cells:,} KV cells" + (f" x {cache.streams} streams" if cache.streams > 1 else "")
        total = f"{format_bytes(cache.per_token)} a token = {cache.size} MiB{types}"
        answer.row(f"line {cache.line}", cells, total)
    if not found:
        return []
    first, beside = found[0], of_a_token(found)[1:]
    derived.streams, derived.sequences, derived.tokens_per_sequence = first.streams, first.sequences, first.cells
    own = Fraction(fit.candidate.kv_bytes) if fit is not None and fit.candidate.kv_bytes else first.per_token
    derived.kv_bytes_per_cell = int(own + sum(cache.per_token for cache in beside))
    if beside:
        parts = " + ".join(format_bytes(cache.per_token) for cache in (first, *beside))
        return [f"{format_bytes(derived.kv_bytes_per_cell)} of KV a token: {parts}, in caches of the same layers"]
    each = list(dict.fromkeys(format_bytes(cache.per_token) for cache in found[:MOST_CACHES]))
    return [f"{' or '.join(each)} of KV a token"]


def _totalled(answer: Diagnosis, sums: dict[str, int], kind: str, name: str, told: set[int]) -> None:
    """Add the totals of caches whose buffers no line prints; those that stand on no ``told`` line are a draft's."""
    for record in [one for total in TOTALS.get(kind, ()) for one in answer.boot.of(total)]:
        size = record.size("size")
        if size is None or not size.value:
            continue
        draft = kind == "kv_buffer" and record.count("cells") is not None and record.line not in told
        words = f"draft {name}" if draft else name
        key = words.replace(" ", "_")
        sums[key] = sums.get(key, 0) + int(size.value)
        if draft:
            answer.row(f"line {record.line}", f"{words} {format_bytes(size.value)}", f"{size} MiB")


def _buffers(answer: Diagnosis, derived: LlamaDerived, totals: dict[str, Printed | None], told: set[int]) -> list[str]:
    """The buffers of each kind over all devices, and what they come to; ``totals`` are told elsewhere, those of caches
    on the lines ``told``.
    """
    drafts = answer.boot.grammar.of_draft(answer.boot)
    sums, host, said = dict[str, int](), Fraction(0), list[str]()
    shared = {"KV": "KV and states"} if answer.boot.of("kv_self") and totals["state_buffer"] is not None else {}
    for kind, name in KINDS:
        name = shared.get(name, name)
        sized = [record for record in answer.boot.of(kind) if record.size("size") is not None]
        if not sized:
            _totalled(answer, sums, kind, name, told)
            sized, name = _planned(answer, kind, name)
        target = [record for record in sized if id(record) not in drafts]
        if kind in _RESERVED_ANEW or (sized and sized[0].kind in PLANNED):
            target = list({record.word("device"): record for record in target}.values())
        for records, words in ((target, name), ([one for one in sized if id(one) in drafts], f"draft {name}")):
            total = _sum(records)
            printed = totals.get(kind) if records is target and name not in shared.values() else None
            if total and printed is not None and not _agree(total, printed, len(records)):
                sums[words.replace(" ", "_")] = int(printed.value)  # the buffers are those of some devices alone
                continue
            if not total:
                continue
            sums[words.replace(" ", "_")] = int(total)
            host += _sum([record for record in records if _on_host(record)])
            if printed is None or len(records) > 1:
                answer.row(f"line {records[0].line}", f"{words} {format_bytes(total)}", _parts(records))
            if kind in totals and printed is None and records is target:
                said.append(f"{format_bytes(total)} of {name}")
    if sums:
        derived.buffers_bytes, derived.host_buffers_bytes = sums, int(host)
        of_host = f"{format_bytes(host)} of it on the host" if host else ""
        if len(sums) > 1:
            answer.row("in all", format_bytes(sum(sums.values())), of_host)
    return said


def _agree(total: Fraction, printed: Printed, parts: int) -> bool:
    """Whether buffers, each rounded as the total is, are all of it: each is half a digit off at most."""
    return 2 * abs(total - printed.value) <= (parts + 1) * (printed.interval[1] - printed.interval[0])


def _sum(records: Iterable[Record]) -> Fraction:
    return sum((size.value for record in records if (size := record.size("size"))), Fraction(0))


def _on_host(record: Record) -> bool:
    device = record.word("device") or ""
    return device.startswith("CPU") or device.endswith("_Host")


def _parts(records: Iterable[Record]) -> str:
    """``CUDA0 48.00 + CUDA1 64.00 MiB``: each device's share, with its unit where they are not all of one."""
    sizes = [(record.word("device"), size) for record in records if (size := record.size("size")) is not None]
    units = ["GiB" if size.unit_bytes == GIB else "MiB" for _, size in sizes]
    last = range(len(sizes) - 1)
    alike = len(set(units)) == 1
    texts = [(device, size.text, "" if alike and n in last else units[n]) for n, (device, size) in enumerate(sizes)]
    return " + ".join(" ".join(filter(None, text)) for text in texts)


def _planned(answer: Diagnosis, kind: str, name: str) -> tuple[list[Record], str]:
    """What a loader reckoned with for the buffers of a kind, where no line prints them; and what it is then called."""
    if kind not in RECKONED or any(answer.boot.of(total) for total in TOTALS.get(kind, ())):
        return [], name
    name = "caches" if kind == "kv_buffer" else name
    planned = [one for one in answer.boot.of(RECKONED[kind]) if one.size("size") is not None]
    figure = RECKONED[kind].removeprefix("planned_").replace("compute", "graph")
    for told in () if planned else ("planned_offload", "breakdown"):
        found = {one.word("device") or "": (one, size) for one in answer.boot.of(told) if (size := one.size(figure))}
        for device, (one, size) in found.items():
            planned += (
                [replace(one, kind=RECKONED[kind], figures=(("device", device), ("size", size)))] if size.value else []
            )
    return planned, name


def _recovered(answer: Diagnosis) -> None:
    """A buffer that did not fit, where the load went on without it."""
    recovered = answer.boot.recovered
    if not recovered:
        return
    failed = next((one for one in recovered if one.size("tried") is not None), recovered[0])
    tried, device = failed.size("tried"), failed.count("device")
    what = f"{format_bytes(tried.value)} did not fit" if tried is not None else "a compute buffer did not fit"
    what += f" on device {device}" if device is not None else ""
    how = "without pipeline parallelism " if answer.boot.of("retried") else ""
    answer.find("HC154", f"{what}; the retry {how}went through", "less -ub or -c makes room for it")


def _checkpoints(answer: Diagnosis, derived: LlamaDerived) -> list[str]:
    """What context checkpoints and the prompt cache take of host memory."""
    boot, said = answer.boot, list[str]()
    taken = [(_tokens_of(one), one.size("size"), one) for one in boot.of("checkpoint")]
    sized = {tokens: (size, one) for tokens, size, one in taken if tokens is not None and size is not None}
    limit = boot.size("prompt_cache", "limit")
    slots = boot.count("slots", "n_slots") or 1
    if sized:
        (first, (low, one)), (last, (high, _)) = min(sized.items()), max(sized.items())
        per = (high.value - low.value) / (last - first) if last > first else Fraction(0)
        base = low.value - per * first
        most = boot.count("checkpoint", "most")
        if base >= 0 and per >= 0:
            derived.checkpoint_state_bytes, derived.checkpoint_bytes_per_token = int(base), round(per)
            each = f"{format_bytes(base)} of state" + (f" and {format_bytes(per)} a token" if per > 0 else "")
        else:  # a line is damaged: no state and no token is below zero
            each = f"{low} MiB at {first:,} tokens, which no state and bytes a token make with another"
        answer.row(f"line {one.line}", "a context checkpoint", f"{each}: {high} MiB at {last:,} tokens")
        many = "how many a slot keeps is not printed"
        if most is not None:
            derived.checkpoints_bytes = int(most * slots * high.value)
            held = format_bytes(derived.checkpoints_bytes)
            many = f"up to {most} a slot are kept, {held} of host memory at that length"
        answer.find("HC153", f"a context checkpoint takes {each}; {many}", "--ctx-checkpoints keeps fewer")
        said.append(f"a context checkpoint takes {format_bytes(high.value)} of host memory")
    if limit is not None and limit.value > 0:
        said_of = f"prompts that are done are kept in up to {format_bytes(limit.value)} of host memory"
        answer.find("HC153", said_of, "--cache-ram sets the limit, 0 turns it off")
    return said


def _tokens_of(checkpoint: Record) -> int | None:
    """The tokens that a checkpoint is of: as printed, or by the position of the last one, which counts from 0."""
    tokens, last = checkpoint.count("tokens"), checkpoint.count("last")
    return tokens if tokens is not None else last + 1 if last is not None else None


def _requests(
    answer: Diagnosis,
    derived: LlamaDerived,
    found: list[Cache],
    held: States | None,
    question: Question,
    *,
    failed: bool,
) -> list[str]:
    """What the slots, the states and the cells admit of the length and the requests that are asked for: of a load that
    ``failed`` none.
    """
    states_of = held.sequences if held is not None and (held.counted or derived.state_copies == 1) else None
    slots = answer.boot.count("slots", "n_slots") or derived.sequences or states_of
    slots = slots or answer.boot.count("context", "n_seq_max")
    length, wanted = question.workload.mean_length, question.workload.wanted
    said, admitted = list[str](), slots
    cells, streams = (found[0].cells, found[0].streams) if found else context(answer.boot, slots)
    if cells and length is not None:
        tokens, model = f"{int(length):,} tokens", _model(answer.boot, question)
        slot = answer.boot.count("slots", "n_ctx_slot") or (model.max_context if model is not None else None)
        if slot is not None and slot < length <= cells:
            over = f"a request of {tokens} does not fit a slot of {slot:,} tokens"
            unused = cells * max(1, streams) - slot * (slots or 1)
            more = f", as trained: {unused:,} cells are never used" if unused > 0 else ""
            fix = "shorten the requests" if more else "fewer slots (-np), or a larger -c"
            answer.find("HC151", f"{over}{more}", fix)
            said.append(over)
            admitted = 0
        elif 0 < cells < length:
            many = " of a stream" if streams > 1 else ""
            need = f"-c {int(length) * max(1, streams)}" + (
                " at least" if streams > 1 else " at least for each sequence"
            )
            answer.find("HC151", f"a request of {tokens} does not fit {cells:,} cells{many}", need)
            said.append(f"requests of {tokens} do not fit {cells:,} cells")
            admitted = 0
        elif streams == 1:
            admitted = min(slots or int(cells // length), int(cells // length))
    if failed and not answer.boot.served:
        if wanted is not None and slots and wanted > slots:
            answer.find("HC155", f"{requests_text(wanted)} are wanted: the load does not start with {slots}")
        return said
    derived.requests = admitted
    if wanted is None:
        fit = f"{requests_text(admitted)} of {int(length):,} tokens fit" if admitted and length is not None else ""
        fit += "s" if fit and admitted == 1 else ""
        if length is not None and not cells and (held is not None or derived.buffers_bytes):
            fit = f"how many requests of {int(length):,} tokens fit is not known: no line prints the KV cells"
            return [*said, fit]
        return [*said, fit] if fit and cells else said
    if admitted and wanted > admitted:
        over = f"{requests_text(wanted)} are wanted, {admitted} run at once"
        fix = f"-np {wanted}" + (f" -c {int(length) * wanted}" if length is not None else "")
        if derived.state_bytes_per_sequence:
            all_states = wanted * (derived.state_copies or 1) * derived.state_bytes_per_sequence
            fix += f": the states then take {format_bytes(all_states)}"
            if length is not None and derived.kv_bytes_per_cell:
                fix += f", KV {format_bytes(int(length) * wanted * derived.kv_bytes_per_cell)}"
        answer.find("HC155", over, fix)
        said.append(over)
    elif admitted:
        said.append(f"{requests_text(wanted)} fit {admitted} slots")
    return said
