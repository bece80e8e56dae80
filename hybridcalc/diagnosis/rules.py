"""Every rule of ``hybridcalc log`` and ``ratio --log``: id, severity, title, the reason, and its source."""

from hybridcalc.findings import Finding, Rule

_POOL = "SGLang mem_cache/memory_pool.py"
_KCC = "SGLang mem_cache/kv_cache_configurator.py"
_VLLM = "vLLM v1/core/kv_cache_planning.py"

RULES = (
    Rule("HC100", "note", "the log matches the model",
         "K + 1 slots and T + page tokens of the model's exact sizes round to what is printed.", _POOL),
    Rule("HC101", "error", "the log does not match the model",
         "An exact size lies outside what the printed figure allows.", _POOL),
    Rule("HC102", "note", "several boots in the log", "Each start is answered by itself; ratio takes the last.", ""),
    Rule("HC103", "warning", "ranks differ in their pools",
         "Uneven heads or memory: the smallest rank decides, and no rank stands for another.", _POOL),
    Rule("HC104", "warning", "the log was not read to its end",
         "A damaged or cut gzip file, or a boot of more lines than are held.", ""),
    Rule("HC105", "error", "figures of one boot contradict each other",
         "Edited by hand, or lines of two boots mixed.", _KCC),
    Rule("HC106", "warning", "a figure that no machine can have", "A display bug or a slip: it is not used.", _POOL),
    Rule("HC107", "note", "no preset fits, or several do", "Printed figures are intervals.", ""),
    Rule("HC108", "error", "the flags cannot have produced this log",
         "A pinned K, a limit, a dtype or a fraction that the log's figures rule out.", _KCC),
    Rule("HC109", "note", "the tokens look pinned",
         "A small round T beside much larger states: --max-total-tokens, or a share of memory nobody asks for.",
         _KCC),
    Rule("HC110", "warning", "KV idles while the state pool binds", "Requests stop at K // S.", _KCC),
    Rule("HC111", "warning", "state slots idle while KV or the limit binds",
         "Slots beyond requests x S hold nothing but cached prefixes.", _KCC),
    Rule("HC112", "warning", "requests were clamped", "min(limit, T // 2, K // S) run, whatever was asked for.", _KCC),
    Rule("HC113", "warning", "draft states take more than the slots",
         "(R + 1) x D states are held whether drafts run or not.", _POOL),
    Rule("HC114", "note", "a draft model's pools", "The second weights, pool and KV lines are the draft's.", _POOL),
    Rule("HC115", "note", "figures are per data-parallel worker", "Totals are times the workers.", _KCC),
    Rule("HC116", "note", "memory between weights and pools does not add up to the cent",
         "Loaders free temporaries, or other tensors are allocated between the lines.", ""),
    Rule("HC117", "note", "figures that somebody tells",
         "A figure with its label beside it is read in a table or a sentence too; it may be rounded.", ""),
    Rule("HC120", "error", "no memory for the state pool", "rest x r / (1 + r) holds less than one slot.", _KCC),
    Rule("HC121", "error", "slots serve no request", "K // S is zero.", _KCC),
    Rule("HC122", "error", "no memory for KV", "Weights, states and slack leave nothing for tokens.", _KCC),
    Rule("HC123", "error", "slots ran out while serving",
         "Ping-pong tracking needs two free slots for each request that starts.", _POOL),
    Rule("HC124", "error", "the GPU ran out of memory", "What was not charged came out of the headroom.", ""),
    Rule("HC125", "error", "no blocks fit", "Budget minus weights and profiled peak is not above one block.", _VLLM),
    Rule("HC126", "error", "max_num_seqs above the state blocks",
         "Full CUDA graphs need a block for each sequence of the largest batch.", "vLLM config/compilation.py"),
    Rule("HC127", "error", "one request does not fit", "A request of max_model_len needs more blocks than there are.",
         _VLLM),
    Rule("HC128", "error", "an exception ended the boot", "The traceback's last line names it.", ""),
    Rule("HC129", "error", "the GPU is not free enough at the start",
         "The fraction is one of all its memory, and must be free before anything is loaded.",
         "vLLM v1/worker/gpu_worker.py"),
    Rule("HC130", "warning", "requests queue at a full state pool", "Slots, not tokens, are the wall.", _POOL),
    Rule("HC131", "note", "what a running request holds", "mamba num over running requests, cached states included.",
         _POOL),
    Rule("HC140", "note", "what the printed tokens mean",
         "Releases differ: concurrency x max_model_len, or the tokens of one group's blocks.", _VLLM),
    Rule("HC141", "warning", "padding of pages or layers wastes memory", "State pages are padded to attention pages.",
         _VLLM),
    Rule("HC142", "warning", "the graph estimate takes memory from KV", "What is estimated is charged.",
         "vLLM v1/worker/gpu_worker.py"),
    Rule("HC143", "warning", "graph sizes were capped to the blocks", "Batches beyond run without a graph.",
         "vLLM config/compilation.py"),
    Rule("HC151", "warning", "a request does not fit the cells", "A sequence holds at most as many tokens as there are "
         "cells.", "llama.cpp src/llama-kv-cache.cpp"),
    Rule("HC150", "note", "llama.cpp keeps its states in fp32", "R (convolution) and S of every cell.",
         "llama.cpp src/llama-memory-recurrent.cpp"),
    Rule("HC152", "note", "why so few layers are on the device",
         "What a load would take is held against what is free, less what is to be left free.",
         "llama.cpp common/fit.cpp"),
    Rule("HC153", "note", "host memory of prompts",
         "Context checkpoints hold a sequence's state, the prompt cache whole sequences.",
         "llama.cpp tools/server/server-context.cpp"),
    Rule("HC154", "note", "a failure that the start got over", "A retry with less went through.", ""),
    Rule("HC155", "warning", "fewer requests run than are wanted",
         "Slots, tokens or sequences admit fewer than -C asks for.", ""),
)  # fmt: skip
"""Every rule about logs."""
_BY_ID = {rule.id: rule for rule in RULES}


def finding(
    rule: str, message: str, fix: str = "", *, severity: str | None = None, mend: tuple[str, str] | None = None
) -> Finding:
    """A finding of ``rule``, with its own severity unless another is given; ``mend``: the flag and value of the fix."""
    return Finding(rule, severity or _BY_ID[rule].severity, message, fix, mend=mend)
