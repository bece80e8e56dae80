"""Which lines of LM Studio say what a load takes, beside those of the llama.cpp in it?

It reckons before it loads, and its guardrail refuses a load by that estimate; sizes are of 10**9 and 10**6 bytes.
Source: lines of public logs of LM Studio 0.3 to 0.4.
"""

from __future__ import annotations

from hybridcalc.bootlog.forms import Form

FORMS = (
    Form("model_name", "lms load", (("name", "lms load {path}"),), 120),
    Form("estimate", "Model load size estimate with",
         (("layers", "offload layers '{word}"), ("n_ctx", "context length '{count}'"), ("weights", "Model: {size}"),
          ("caches", "Context: {size}"), ("total", "Total: {size}")), 240, repeats=True),
    Form("estimate", "Estimated GPU Memory:",
         (("device", "GPU Memory: {size}"), ("total", "Total Memory: {size}")), 160),
    Form("guardrail", "Model loading was stopped due to insufficient system resources",
         (("needed", "approximately {size} of memory"),), 240, bare=True, repeats=True, error="system_memory"),
)  # fmt: skip
