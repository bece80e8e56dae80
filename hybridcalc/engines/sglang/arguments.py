"""Is every SGLang argument one that its command line would take, and do they make sense together?"""

from hybridcalc.engines.arguments import Bounds
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.flags import ELSEWHERE, FLAGS
from hybridcalc.engines.sglang.kv import OWN_DRAFT_CELL
from hybridcalc.errors import InputError

BOUNDS = Bounds(ServerArgs, (*FLAGS, *ELSEWHERE))
check_arguments = BOUNDS.check


def check_together(args: ServerArgs) -> None:
    """Raise InputError for arguments that contradict each other, or of which one says nothing without another."""
    if not 0 < args.mamba_full_memory_ratio <= 1e6:
        raise InputError(
            f"--mamba-full-memory-ratio {args.mamba_full_memory_ratio:g} is not a usable ratio",
            fix="write a number above 0",
        )
    algorithm = args.speculative_algorithm
    if args.speculative and args.speculative_num_draft_tokens is None:
        raise InputError(
            f"--speculative-algorithm {algorithm} needs a number of draft tokens",
            fix="add --speculative-num-draft-tokens D",
        )
    if args.speculative_num_draft_tokens is not None and not args.speculative:
        raise InputError("--speculative-num-draft-tokens has no effect alone", fix="add --speculative-algorithm NAME")
    if args.dp_size == 1 or args.enable_dp_attention:
        _ = args.attn_tp_size  # raises when the workers do not share out the ranks
    if args.draft_kv_bytes_per_token is not None and algorithm not in (None, *OWN_DRAFT_CELL):
        raise InputError(f"SGLang prices the KV of an {algorithm} draft by its layers", fix="give --draft-layers N")
