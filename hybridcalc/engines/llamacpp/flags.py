"""Which flags of llama-server and llama-cli does a plan read, and which model and ContextParams do they ask for?

    llama-server -m qwen3.5-27b.gguf -c 32768 -np 4 -> MODEL, ContextParams(n_ctx=32768, n_seq_max=4)

`FLAGS` is the one place where a flag is added, with its field, kind and bounds; `VARIABLES` has the variable
(LLAMA_ARG_*) that sets what no flag does; `OTHER_FLAGS` are ignored. Read as the server reads it: without -np it has 4
slots that share one cache, with -np N a cache is in N streams unless -kvu joins them; --kv-unified-per-slot M without
-c makes a cache of N x M. Mirrors common/arg.cpp and tools/server/server.cpp (b11434).
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybridcalc.engines.llamacpp import ALL_LAYERS, AUTO_LAYERS, KNOWN_ENVIRONMENT, VERBS, ContextParams
from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.flags import Flag, FlagTable, among, environment
from hybridcalc.units import LARGEST_TOKENS, MOST_RANKS

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
SWITCHED = ("on", "off", "auto", "enabled", "disabled", "true", "false", "0", "1", "-1")
MOST_LAYERS, MOST_SLOTS = 2**20, 2**20

FLAGS = (
    Flag("model", ("--model", "-m"), "str"),
    Flag("hf_repo", ("--hf-repo", "-hf", "-hfr"), "str"),
    Flag("n_ctx", ("--ctx-size", "-c"), "int", 0, LARGEST_TOKENS),
    Flag("n_seq_max", ("--parallel", "-np"), "int", -1, MOST_SLOTS),
    Flag("kv_unified_per_slot", ("--kv-unified-per-slot",), "int", 1, LARGEST_TOKENS),
    Flag("kv_unified", ("--kv-unified", "-kvu"), "switch"),
    Flag("kv_apart", ("-no-kvu",), "flag"),
    Flag("n_batch", ("--batch-size", "-b"), "int", 1, 2**20),
    Flag("n_ubatch", ("--ubatch-size", "-ub"), "int", 1, 2**20),
    Flag("type_k", ("--cache-type-k", "-ctk"), "str", choices=TYPES),
    Flag("type_v", ("--cache-type-v", "-ctv"), "str", choices=TYPES),
    Flag("flash_attn_type", ("--flash-attn", "-fa"), "str", choices=SWITCHED),
    Flag("swa_full", ("--swa-full",), "flag"),
    Flag("spec_type", ("--spec-type",), "str"),
    Flag("draft_n_max", ("--spec-draft-n-max", "--draft-max", "--draft", "--draft-n"), "int", 0, 1024),
    Flag("n_gpu_layers", ("--n-gpu-layers", "--gpu-layers", "-ngl"), "str"),
    Flag("offload_kqv", ("--kv-offload", "-kvo"), "switch"),
    Flag("kv_on_host", ("-nkvo",), "flag"),
    Flag("split_mode", ("--split-mode", "-sm"), "str", choices=("none", "layer", "row", "tensor")),
    Flag("main_gpu", ("--main-gpu", "-mg"), "int", 0, MOST_RANKS),
    Flag("tensor_split", ("--tensor-split", "-ts"), "str"),
    Flag("override_tensor", ("--override-tensor", "-ot"), "str"),
    Flag("cpu_moe", ("--cpu-moe", "-cmoe"), "flag"),
    Flag("n_cpu_moe", ("--n-cpu-moe", "-ncmoe"), "int", 0, MOST_LAYERS),
    Flag("ctx_checkpoints", ("--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"), "int", 0, 2**20),
    Flag("checkpoint_min_step", ("--checkpoint-min-step", "-cms"), "int", 0, 2**30),
    Flag("cache_prompt", ("--cache-prompt",), "switch"),
    Flag("slot_prompt_similarity", ("--slot-prompt-similarity", "-sps"), "float", -1, 1),
    Flag("cache_ram_mib", ("--cache-ram", "-cram"), "int", -1, 2**30),
    Flag("fit", ("--fit", "-fit"), "str", choices=SWITCHED[:2] + SWITCHED[3:9]),
    Flag("fit_ctx", ("--fit-ctx", "-fitc"), "int", 0, LARGEST_TOKENS),
)

ELSEWHERE = (
    Flag("n_seq_max", ("--parallel",), "int", 1, MOST_SLOTS),
    Flag("kv_unified_per_slot", ("--kv-unified-per-slot",), "int", 0, LARGEST_TOKENS),
    Flag("flash_attn_type", ("--flash-attn",), "int", -1, 1),
    Flag("n_gpu_layers", ("--n-gpu-layers",), "int", -2, MOST_LAYERS),
    Flag("fit", ("--fit",), "switch"),
    Flag("n_rs_seq", ("--spec-draft-n-max",), "int", 0, 1024),
    Flag("quantization", ("--model",), "str"),
    Flag("cards", ("--gpu",), "int", 1, MOST_RANKS),
    Flag("gpu_bytes", ("--gpu",), "int", 0, 2**60),
    Flag("command_line", ("llama-server",), "flag"),
    Flag("ollama", ("ollama",), "flag"),
)
"""Arguments from Python, where they are not what a flag of their name takes."""

VARIABLES = {
    "LLAMA_ARG_MODEL": "--model", "LLAMA_ARG_HF_REPO": "--hf-repo", "LLAMA_ARG_CTX_SIZE": "--ctx-size",
    "LLAMA_ARG_N_PARALLEL": "--parallel", "LLAMA_ARG_BATCH": "--batch-size", "LLAMA_ARG_UBATCH": "--ubatch-size",
    "LLAMA_ARG_SWA_FULL": "--swa-full", "LLAMA_ARG_CTX_CHECKPOINTS": "--ctx-checkpoints",
    "LLAMA_ARG_CACHE_RAM": "--cache-ram", "LLAMA_ARG_CACHE_PROMPT": "--cache-prompt",
    "LLAMA_ARG_KV_UNIFIED": "--kv-unified",
    "LLAMA_ARG_KV_UNIFIED_PER_SLOT": "--kv-unified-per-slot", "LLAMA_ARG_FLASH_ATTN": "--flash-attn",
    "LLAMA_ARG_KV_OFFLOAD": "--kv-offload", "LLAMA_ARG_CACHE_TYPE_K": "--cache-type-k",
    "LLAMA_ARG_CACHE_TYPE_V": "--cache-type-v", "LLAMA_ARG_N_GPU_LAYERS": "--n-gpu-layers",
    "LLAMA_ARG_SPEC_TYPE": "--spec-type", "LLAMA_ARG_SPEC_DRAFT_N_MAX": "--spec-draft-n-max", "LLAMA_ARG_FIT": "--fit",
    "LLAMA_ARG_FIT_CTX": "--fit-ctx", "LLAMA_ARG_OVERRIDE_TENSOR": "--override-tensor",
    "LLAMA_ARG_CPU_MOE": "--cpu-moe", "LLAMA_ARG_N_CPU_MOE": "--n-cpu-moe", "LLAMA_ARG_TENSOR_SPLIT": "--tensor-split",
    "LLAMA_ARG_SPLIT_MODE": "--split-mode", "LLAMA_ARG_MAIN_GPU": "--main-gpu",
}  # fmt: skip
"""Variable -> the flag that it sets, where the command line does not."""
TRUE, FALSE = ("on", "enabled", "true", "1"), ("off", "disabled", "false", "0")

OTHER_FLAGS = frozenset({
    "--adaptive-decay", "--adaptive-target", "--agent", "--alias", "--api-key", "--api-key-file", "--api-prefix",
    "--attention", "--audio", "--backend-sampling", "--binary-file", "--cache-idle-slots", "--cache-list",
    "--cache-reuse", "--cache-type-k-draft", "--cache-type-v-draft", "--chat-template",
    "--chat-template-file", "--chat-template-kwargs", "--check", "--check-tensors",
    "--chunk", "--chunk-separator", "--chunk-size", "--chunks", "--cls-separator", "--color", "--completion-bash",
    "--cont-batching", "--context-file", "--context-shift", "--control-vector", "--control-vector-layer-range",
    "--control-vector-scaled", "--conversation", "--cors-credentials", "--cors-headers", "--cors-methods",
    "--cors-origins", "--cpu-mask", "--cpu-mask-batch", "--cpu-mask-batch-draft", "--cpu-mask-draft",
    "--cpu-moe-draft", "--cpu-range", "--cpu-range-batch", "--cpu-range-batch-draft", "--cpu-range-draft",
    "--cpu-strict", "--cpu-strict-batch", "--cpu-strict-batch-draft", "--cpu-strict-draft", "--defrag-thold",
    "--device", "--device-draft", "--dflash", "--diffusion-add-gumbel-noise", "--diffusion-alg-temp",
    "--diffusion-algorithm", "--diffusion-block-length", "--diffusion-cfg-scale", "--diffusion-eps",
    "--diffusion-steps", "--diffusion-visual", "--display-prompt", "--docker-repo", "--draft-min", "--draft-n-min",
    "--draft-p-min", "--draft-p-split", "--dry-allowed-length", "--dry-base", "--dry-multiplier",
    "--dry-penalty-last-n", "--dry-sequence-breaker", "--dynatemp-exp", "--dynatemp-range", "--eagle3",
    "--embd-gemma-default", "--embd-normalize", "--embd-output-format", "--embd-separator", "--embedding",
    "--embeddings", "--epochs", "--escape", "--file", "--fim-qwen-1.5b-default", "--fim-qwen-14b-spec",
    "--fim-qwen-30b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default", "--fim-qwen-7b-spec", "--fit-print",
    "--fit-target", "--frequency-penalty", "--from-chunk", "--gpt-oss-120b-default", "--gpt-oss-20b-default",
    "--gpu-layers-draft", "--grammar", "--grammar-file", "--grp-attn-n", "--grp-attn-w", "--hellaswag",
    "--hellaswag-tasks", "--help", "--hf-file", "--hf-repo-draft", "--hf-token", "--host", "--ids", "--ignore-eos",
    "--image", "--image-max-tokens", "--image-min-tokens", "--in-file", "--in-prefix", "--in-prefix-bos",
    "--in-suffix", "--interactive", "--interactive-first", "--jinja", "--json-schema", "--json-schema-file",
    "--junk", "--keep", "--kl-divergence", "--kl-divergence-base", "--lazy-mode", "--learning-rate",
    "--learning-rate-decay-epochs", "--learning-rate-min", "--list-devices", "--load-mode", "--log-colors",
    "--log-disable", "--log-file", "--log-jsonl", "--log-prefix", "--log-prompts-dir", "--log-timestamps",
    "--log-verbose", "--log-verbosity", "--logit-bias", "--logits-output-dir", "--lookup-cache-dynamic",
    "--lookup-cache-static", "--lora", "--lora-init-without-apply", "--lora-scaled",
    "--mcp-servers-config", "--mcp-servers-json", "--media-path", "--method", "--metrics", "--min-p", "--mirostat",
    "--mirostat-ent", "--mirostat-lr", "--mmproj", "--mmproj-auto", "--mmproj-device", "--mmproj-offload",
    "--mmproj-url", "--model-draft", "--model-url", "--models-autoload", "--models-dir", "--models-max",
    "--models-preset", "--mtmd-batch-max-tokens", "--mtp", "--multiline-input", "--multiple-choice",
    "--multiple-choice-tasks", "--n-cpu-ffn", "--n-cpu-moe-draft", "--n-gpu-layers-draft", "--n-predict",
    "--negative-file", "--nextn", "--no-agent", "--no-bos", "--no-cache-idle-slots",
    "--no-cont-batching", "--no-context-shift", "--no-conversation", "--no-cors-credentials", "--no-display-prompt",
    "--no-escape", "--no-host", "--no-jinja", "--no-log-jsonl", "--no-log-prefix", "--no-log-timestamps",
    "--no-mmproj", "--no-mmproj-auto", "--no-mmproj-offload", "--no-models-autoload", "--no-op-offload",
    "--no-parse-special", "--no-perf", "--no-ppl", "--no-prefill-assistant", "--no-reasoning-preserve",
    "--no-repack", "--no-show-timings", "--no-skip-chat-parsing", "--no-slots", "--no-spec-draft-backend-sampling",
    "--no-ui", "--no-ui-mcp-proxy", "--no-warmup", "--no-webui", "--no-webui-mcp-proxy", "--numa", "--offline",
    "--op-offload", "--optimizer", "--output", "--output-file", "--output-format", "--output-frequency",
    "--override-kv", "--override-tensor-draft", "--parse-special", "--path", "--pca-batch", "--pca-iter", "--perf",
    "--poll", "--poll-batch", "--poll-batch-draft", "--poll-draft", "--pooling", "--port", "--pos",
    "--positive-file", "--ppl", "--ppl-output-type", "--ppl-stride", "--predict", "--prefill-assistant",
    "--presence-penalty", "--print-token-count", "--prio", "--prio-batch", "--prio-batch-draft", "--prio-draft",
    "--process-output", "--prompt", "--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro", "--props",
    "--reasoning", "--reasoning-budget", "--reasoning-budget-message", "--reasoning-effort", "--reasoning-format",
    "--reasoning-preserve", "--repack", "--repeat-last-n", "--repeat-penalty", "--rerank", "--reranking",
    "--reuse-port", "--reverse-prompt", "--rope-freq-base", "--rope-freq-scale", "--rope-scale", "--rope-scaling",
    "--rpc", "--sampler-seq", "--samplers", "--sampling-seq", "--save-all-logits", "--save-frequency",
    "--save-logits", "--seed", "--sequences", "--server-base", "--show-count", "--show-statistics",
    "--show-timings", "--simple-io", "--single-turn", "--skip-chat-parsing", "--sleep-idle-seconds",
    "--slot-save-path", "--slots", "--spec-default", "--spec-draft-backend-sampling",
    "--spec-draft-cpu-mask", "--spec-draft-cpu-mask-batch", "--spec-draft-cpu-moe", "--spec-draft-cpu-range",
    "--spec-draft-cpu-range-batch", "--spec-draft-cpu-strict", "--spec-draft-cpu-strict-batch",
    "--spec-draft-device", "--spec-draft-hf", "--spec-draft-model", "--spec-draft-n-cpu-moe", "--spec-draft-n-min",
    "--spec-draft-ncmoe", "--spec-draft-ngl", "--spec-draft-override-tensor", "--spec-draft-p-min",
    "--spec-draft-p-split", "--spec-draft-poll", "--spec-draft-poll-batch", "--spec-draft-prio",
    "--spec-draft-prio-batch", "--spec-draft-sampling", "--spec-draft-threads", "--spec-draft-threads-batch",
    "--spec-draft-type-k", "--spec-draft-type-v", "--spec-ngram-map-k-min-hits", "--spec-ngram-map-k-size-m",
    "--spec-ngram-map-k-size-n", "--spec-ngram-map-k4v-min-hits", "--spec-ngram-map-k4v-size-m",
    "--spec-ngram-map-k4v-size-n", "--spec-ngram-min-hits", "--spec-ngram-mod-n-match", "--spec-ngram-mod-n-max",
    "--spec-ngram-mod-n-min", "--spec-ngram-simple-min-hits", "--spec-ngram-simple-size-m",
    "--spec-ngram-simple-size-n", "--spec-ngram-size-m", "--spec-ngram-size-n", "--spec-synth-len",
    "--spec-synth-rates", "--special", "--spm-infill", "--sse-ping-interval", "--ssl-cert-file", "--ssl-key-file",
    "--stdin", "--system-prompt", "--system-prompt-file", "--tags", "--temp", "--temperature", "--tensor-filter",
    "--threads", "--threads-batch", "--threads-batch-draft", "--threads-draft", "--threads-http", "--timeout",
    "--tools", "--tools-runtime", "--top-k", "--top-n-sigma", "--top-nsigma", "--top-p", "--tts-lang",
    "--tts-speaker-file", "--typical", "--typical-p", "--ui", "--ui-config", "--ui-config-file", "--ui-mcp-proxy",
    "--usage", "--val-split", "--verbose", "--verbose-prompt", "--verbosity", "--version", "--video",
    "--video-ffmpeg-dir", "--video-fps", "--video-timestamp-interval", "--vision-gemma-12b-default",
    "--vision-gemma-4b-default", "--warmup", "--webui", "--webui-config", "--webui-config-file",
    "--webui-mcp-proxy", "--weight-decay", "--winogrande", "--winogrande-tasks", "--xtc-probability",
    "--xtc-threshold", "--yarn-attn-factor", "--yarn-beta-fast", "--yarn-beta-slow", "--yarn-ext-factor",
    "--yarn-orig-ctx", "-C", "-Cb", "-Cbd", "-Cd", "-Cr", "-Crb", "-Crbd", "-Crd", "-a", "-ag", "-bf", "-bs", "-cb",
    "-cl", "-cmoed", "-cnv", "-co", "-ctkd", "-ctvd", "-decay-epochs", "-dev", "-devd", "-dr", "-dt", "-e",
    "-epochs", "-f", "-fitp", "-fitt", "-gan", "-gaw", "-h", "-hfd", "-hff", "-hfrd", "-hft", "-i", "-if", "-j",
    "-jf", "-l", "-lcd", "-lcs", "-lm", "-lr", "-lr-min", "-lv", "-lzm", "-md", "-mli", "-mm", "-mmdev",
    "-mmu", "-mu", "-n", "-ncffn", "-ncmoed", "-ngld", "-no-ag", "-no-cnv", "-nocb", "-npl", "-npp", "-nr", "-ns",
    "-ntg", "-o", "-ofreq", "-opt", "-otd", "-p", "-pps", "-ptc", "-r", "-rea", "-s", "-sp", "-st", "-sys",
    "-sysf", "-t", "-tb", "-tbd", "-td", "-tgs", "-to", "-v", "-val-split", "-wd",
})  # fmt: skip
"""What else the servers register."""
UNCOUNTED = {
    name: why
    for names, why in (
        ("--lora --lora-scaled", "adapters take memory that is not counted"),
        ("--mmproj -mm --mmproj-url -mmu", "its vision tower is not counted"),
        ("--model-draft -md --spec-draft-model --hf-repo-draft -hfd -hfrd --spec-draft-hf",
         "the draft model's weights and KV are not counted"),
        ("--n-cpu-ffn -ncffn", "the weights that it moves to the host are counted as on the GPU"),
        ("--fit-target -fitt", "it is not read: --fit is taken to leave 1 GiB of each card free"),
        ("--device -dev", "it is not read: every card is taken to be used"),
    )
    for name in names.split()
}  # fmt: skip
"""Those of them that bear on the memory of a GPU in a way that no plan here knows, and what that is."""


SLOTS = 4
"""Slots of a server that is not told how many."""
LAYER_WORDS = {"auto": AUTO_LAYERS, "all": ALL_LAYERS}

TABLE = FlagTable(
    "llama.cpp", FLAGS, OTHER_FLAGS, (), read_tokens=lambda text: int(text) if text.isdecimal() else None, multiples="",
    leading_digits=True,
)  # fmt: skip


def from_words(
    words: Sequence[str], env: Mapping[str, str], *, unknown: list[str] | None = None
) -> tuple[str | None, ContextParams]:
    """MODEL (None where no word names it) and ContextParams of the words after a launcher, under ``env``.

    Raises InputError, naming the flag, for a value that cannot be its own or that a shell would decide, and for a
    misspelt flag. ``unknown`` collects the flags that are ignored although no list of llama.cpp's has them.
    """
    env = environment(env, KNOWN_ENVIRONMENT)
    if words and words[0] in VERBS:
        from hybridcalc.engines.llamacpp.ollama import from_words as of_ollama

        return of_ollama(words, env, _fields(_of_variables(env)), unknown=unknown)
    given = {**_of_variables(env), **TABLE.read(words, unknown=unknown)}
    model = given.get("--model", given.get("--hf-repo", given.get("")))
    taken = among(words, UNCOUNTED)
    return model, ContextParams(**_slots(_fields(given)), command_line=True, env=env, uncounted=taken)


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by their names, of values by the spellings of flags."""
    names = {flag.spellings[0]: flag.field for flag in FLAGS[2:]}
    fields: dict[str, Any] = {names[name]: value for name, value in given.items() if name in names}
    if fields.pop("kv_apart", False):
        fields["kv_unified"] = False
    if fields.pop("kv_on_host", False):
        fields["offload_kqv"] = False
    if "flash_attn_type" in fields:
        typed = fields["flash_attn_type"]
        fields["flash_attn_type"] = 1 if typed in TRUE else 0 if typed in FALSE else -1
    if "fit" in fields:
        fields["fit"] = fields["fit"] in TRUE
    if "n_gpu_layers" in fields:
        fields["n_gpu_layers"] = _layers(fields["n_gpu_layers"])
    return fields


def _slots(fields: dict[str, Any]) -> dict[str, Any]:
    """The server's own defaults of what a context has no default for."""
    slots = fields.pop("n_seq_max", -1)
    if slots == 0:
        raise InputError(
            "--parallel 0: llama-server refuses it", fix="write a number of slots, or leave it out", flag="--parallel"
        )
    if slots < 0:
        fields["kv_unified"] = True
    fields["n_seq_max"] = slots = SLOTS if slots < 0 else slots
    each = fields.get("kv_unified_per_slot", 0)
    if each and not fields.get("n_ctx") and fields.get("kv_unified"):
        fields["n_ctx"] = slots * each
    return fields


def _layers(text: str) -> int:
    """``auto``, ``all`` or a number of layers, of which ``std::stoi`` (common/arg.cpp) reads no more than digits."""
    if text in LAYER_WORDS:
        return LAYER_WORDS[text]
    number = re.match(r"[+-]?[0-9]{1,6}(?![0-9])", text)
    if number is None:
        raise InputError(
            f"--n-gpu-layers {quoted(text)} is not a number of layers",
            fix="write a number, auto or all",
            flag="--n-gpu-layers",
        )
    return max(int(number[0]), ALL_LAYERS)


def _of_variables(env: Mapping[str, str]) -> dict[str, Any]:
    """What variables set, by the flags that they stand for. Raises InputError naming one whose value is none."""
    found: dict[str, Any] = {}
    for name, spelling in VARIABLES.items():
        if name not in env:
            continue
        flag, value = TABLE.by_spelling[spelling], env[name]
        if flag.kind in ("flag", "switch"):
            if value not in (*TRUE, *FALSE):
                raise InputError(f"{name}={quoted(value)} is neither true nor false", fix="write 1 or 0")
            found[spelling] = value in TRUE
        else:
            found[spelling] = TABLE.value(flag, name, value)
    return found
