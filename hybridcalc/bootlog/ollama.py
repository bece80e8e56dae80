"""Which lines of an Ollama log say what a model's memory is, beside those of the llama.cpp in it?

Ollama reckons before it loads: of each device its weights, caches and graph, and how many layers go to it. Runners of
its own have no other lines; llama.cpp's runner prints its buffers later, which count then. Sizes have one decimal.
What a runner is asked for is tried first ("fit", "alloc"): only the commit is what it does. Source:
lines of public logs of Ollama 0.6 to 0.15.
"""

from __future__ import annotations

from hybridcalc.bootlog.forms import Form

_OFFLOAD = (
    ("layers", "layers.offload={count}"), ("of", "layers.model={count}"), ("free", 'memory.available="[{rest}'),
    ("needed", 'memory.required.full="{size}'), ("partial", 'memory.required.partial="{size}'),
    ("kv", 'memory.required.kv="{size}', "planned_kv_mib"),
    ("weights", 'memory.weights.total="{size}', "planned_weights_mib"),
    ("graph", 'memory.graph.full="{size}', "planned_compute_mib"),
)  # fmt: skip

FORMS = (
    Form("planned_weights", 'msg="model weights"',
         (("device", "device={device}"), ("size", 'size="{size}', "planned_weights_mib")), 120, repeats=True),
    Form("planned_kv", 'msg="kv cache"',
         (("device", "device={device}"), ("size", 'size="{size}', "planned_kv_mib")), 120, repeats=True, settled=True),
    Form("planned_compute", 'msg="compute graph"',
         (("device", "device={device}"), ("size", 'size="{size}', "planned_compute_mib")), 120, repeats=True),
    Form("planned_total", 'msg="total memory"', (("size", 'size="{size}', "planned_total_mib"),), 80, repeats=True),
    Form("planned_offload", "msg=offload", _OFFLOAD, 1000, repeats=True, settled=True),
    Form("planned_offload", 'msg="offload to', _OFFLOAD, 1000),
    Form("free_on_device", 'msg="gpu memory"', (("free", 'available="{size}'),), 240, repeats=True, mark=True),
    Form("context", 'msg=load request="{Operation:commit',
         (("n_ctx", "KvSize:{count}"), ("n_seq_max", "Parallel:{count}"), ("n_ubatch", "BatchSize:{count}")), 300),
    Form("model_name", 'msg="" architecture=', (("name", 'name="{text}'), ("name", "name={word}")), 240),
    Form("host_refused", "model requires more system memory",
         (("needed", "system memory ({size})"), ("free", "than is available ({size})")), 120, bare=True,
         error="system_memory"),
    Form("ready", "llama runner started in", (), 60),
)  # fmt: skip
PLANNED = tuple(dict.fromkeys(form.kind for form in FORMS if form.kind.startswith("planned")))
