"""What does SGLang refuse of ReplaySSM, for decoding and for verifying drafts?

Mirrors arg_groups/attention_hook.py handle_linear_attn_backend (0.5.23), and server_args.py
_handle_linear_attn_backend, _validate_gdn_replayssm_spec_ring (0.5.16).
"""

from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.refusals import refused
from hybridcalc.engines.sglang.releases import RuleSet
from hybridcalc.errors import Drop, Either, Refusal, Write, WriteAll
from hybridcalc.formulas import ring_length_problem, smallest_ring

REPLAY_BACKENDS = ("triton", "flashinfer")
DECODE_REPLAY_BACKENDS = ("triton", "helion")


def check_replayssm(args: ServerArgs, strategy: str, rules: RuleSet) -> None:
    """Raise Refusal for what ReplaySSM does not run with, under a resolved strategy: decoding, verification."""
    decode = args.linear_decode_backend
    if args.enable_linear_replayssm and args.enable_linear_replayssm_spec:
        reason = "--enable-linear-replayssm and --enable-linear-replayssm-spec exclude each other"
        raise refused(
            "HC006", reason, Either(Drop("--enable-linear-replayssm"), Drop("--enable-linear-replayssm-spec"))
        )
    if args.enable_linear_replayssm:
        if decode not in DECODE_REPLAY_BACKENDS:
            raise refused(
                "HC006",
                f"ReplaySSM decoding does not run on the {decode} backend",
                Write("--linear-attn-decode-backend", "triton"),
                "--linear-attn-decode-backend",
            )
        if args.radix_cache and strategy.startswith("extra_buffer"):
            fix = Either(
                WriteAll("--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule"),
                WriteAll("--disable-radix-cache"),
            )
            raise refused("HC006", "ReplaySSM decoding does not run with extra buffers", fix)
        if args.disaggregation_mode != "null":
            raise refused(
                "HC006", "ReplaySSM decoding does not run on disaggregated servers", Drop("--enable-linear-replayssm")
            )
    if args.enable_linear_replayssm_spec:
        if args.speculative_eagle_topk not in (None, 1):
            raise refused(
                "HC006",
                f"ReplaySSM verification needs a linear draft chain, not topk {args.speculative_eagle_topk}",
                Write("--speculative-eagle-topk", 1),
            )
        if rules.strict_verification:
            _check_strictly(args, strategy, rules)
        if decode not in REPLAY_BACKENDS:
            raise refused(
                "HC006",
                f"ReplaySSM verification does not run on the {decode} backend",
                Write("--linear-attn-decode-backend", "triton", " or flashinfer"),
                "--linear-attn-decode-backend",
            )
        if args.disaggregation_mode == "prefill":
            raise refused(
                "HC006",
                "ReplaySSM verification does not run on prefill servers",
                Drop("--enable-linear-replayssm-spec"),
            )


def _check_strictly(args: ServerArgs, strategy: str, rules: RuleSet) -> None:
    """Raise Refusal for what the first release of verification does not run with, whatever the model's class."""
    release = f"ReplaySSM verification of SGLang {rules.version}"
    if args.linear_decode_backend != "triton":
        reason = f"{release} does not run on the {args.linear_decode_backend} backend"
        raise refused("HC006", reason, Write("--linear-attn-decode-backend", "triton"), "--linear-attn-decode-backend")
    if args.radix_cache and strategy.startswith("extra_buffer"):
        fix = WriteAll("--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule")
        raise Refusal(f"{release} does not run with extra buffers", stage="arguments", rule="HC006", fix=fix)
    if args.disaggregation_mode != "null":
        reason = f"{release} does not run on disaggregated servers"
        raise refused("HC006", reason, Drop("--enable-linear-replayssm-spec"))
    problem = ring_length_problem(args.linear_replayssm_cache_len, args.most_draft_tokens)
    if problem:
        ring = Write("--linear-replayssm-cache-len", smallest_ring(args.most_draft_tokens))
        raise refused("HC006", problem, ring)
    if args.mamba_ssm_dtype not in (None, "float32"):
        reason = f"{release} needs states of float32, not {args.mamba_ssm_dtype}"
        raise refused("HC006", reason, Drop("--mamba-ssm-dtype"), "--mamba-ssm-dtype")
