"""How many requests of a vLLM boot run, of the length that is asked for or of max_model_len, and are they enough?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hybridcalc.deployment import Workload, requests_text
from hybridcalc.diagnosis import Shared
from hybridcalc.diagnosis.answer import Diagnosis
from hybridcalc.diagnosis.vllm.candidates import Figures

if TYPE_CHECKING:
    from hybridcalc.diagnosis.vllm import VllmDerived
    from hybridcalc.engines.vllm import EngineArgs


def answer_wanted(
    answer: Diagnosis, derived: VllmDerived, said: Figures, workload: Workload, share: Shared, args: EngineArgs
) -> None:
    """Whether the requests that are asked for run, of their length or else of max_model_len; no more than max_num_seqs
    on a worker, where that is given. Requests longer than max_model_len are refused, which is said of their length.
    """
    limit = args.max_num_seqs
    if said.length is not None and (workload.mean_length or 0) > said.length:
        return
    wanted, run, of = share.each, derived.requests, workload.describe()
    least = int(said.concurrency.value) if said.concurrency is not None else None
    if workload.mean_length is None:
        run, of = least, f"{said.length:,} tokens" if said.length is not None else ""
    elif run is None:
        run = least
        shorter = said.length is None or workload.mean_length < said.length
        more = least is not None and wanted > least and (limit is None or limit > least)
        if more and shorter:
            many = f"{share.said} of {of} are wanted: the blocks hold {least:,} at least"
            fix = "--model says which it is"
            answer.find("HC155", f"{many}; whether so many is not known without the model", fix, severity="note")
            return
    blocks = answer.boot.first("seqs_exceed_blocks", "blocks")
    if run is None and isinstance(blocks, int):
        many = f"{share.said} are wanted: each needs a block, and there are {blocks:,}"
        fix = args.seqs_flags(wanted) if wanted <= blocks else "more memory for the cache"
        answer.find("HC155", many, fix, severity="note" if wanted <= blocks else None)
    if run is None:
        return
    limited, short = limit is not None and limit < wanted, run < wanted and answer.binding != "limit"
    run = min(run, limit) if limit is not None else run
    blocks, each = derived.num_blocks, derived.blocks_per_request
    takes = f", {wanted * each:,} blocks of {blocks:,}" if each and blocks and workload.mean_length is None else ""
    said_of = f"{share.said} of {of} are wanted{takes}: {run * share.workers:,} run at once"
    if run >= wanted:
        answer.find("HC155", said_of, severity="note")
        return
    fixes = [args.seqs_flags(wanted)] if limited or answer.binding == "limit" else []
    if short:
        less = [] if any(c.kv_dtype == "fp8" for c in answer.candidates) else ["fp8 KV"]
        less += ["a shorter --max-model-len"] if workload.mean_length is None else []
        fixes.append(", or ".join(["more memory for the cache", *less]))
    several = answer.suggestions and answer.suggestions[0].before > run
    answer.short(said_of, share.wanted if several else wanted, " with ".join(fixes))


def of_length(
    answer: Diagnosis, derived: VllmDerived, said: Figures, workload: Workload, limit: int | None
) -> list[str]:
    """How many requests of the length that is asked for fit: by the plan, else no fewer than of max_model_len; and no
    more than ``limit`` in either.
    """
    length = workload.mean_length
    if length is None or said.length is None:
        return []
    if length > said.length:
        over = f"requests of {workload.describe()} are refused: max_model_len is {said.length:,}"
        answer.find("HC155", over, f"--max-model-len {int(length)}")
        return [over]
    if derived.requests is not None:
        return [f"{requests_text(derived.requests)} of {workload.describe()} fit"]
    if said.concurrency is None or said.concurrency.value < 1:
        return []
    least = int(said.concurrency.value)
    if limit is not None and limit <= least:
        return [f"{requests_text(limit)} of {workload.describe()} run at once"]
    return [f"the blocks hold at least {requests_text(least)} of {workload.describe()}"]
