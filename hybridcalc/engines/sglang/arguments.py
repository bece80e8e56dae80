"""Are SGLang's arguments ones that its command line would take, and do they mean something together?

What each may be is a row of flags.py; what flags do to each other at start-up is the planner's business.
"""

from hybridcalc.engines.arguments import Bounds
from hybridcalc.engines.sglang.config import OWN_DRAFT_CELL, ServerArgs
from hybridcalc.engines.sglang.flags import ELSEWHERE, FLAGS
from hybridcalc.errors import InputError

BOUNDS = Bounds(ServerArgs, (*FLAGS, *ELSEWHERE))
check_arguments = BOUNDS.check


def check_together(args: ServerArgs) -> None:
    """Raise InputError for arguments that contradict each other, or of which one says nothing without another."""
    algorithm = args.speculative_algorithm
    if algorithm is None:
        if args.speculative_num_draft_tokens is not None:
            raise InputError(
                "--speculative-num-draft-tokens has no effect alone", fix="add --speculative-algorithm NAME"
            )
    elif args.speculative_num_draft_tokens is None:
        raise InputError(
            f"--speculative-algorithm {algorithm} needs a number of draft tokens",
            fix="add --speculative-num-draft-tokens D",
        )
    elif args.draft_kv_bytes_per_token is not None and algorithm not in OWN_DRAFT_CELL:
        raise InputError(f"SGLang prices the KV of an {algorithm} draft by its layers", fix="give --draft-layers N")
    _ = args.attn_tp_size  # raises InputError where the workers do not share the ranks evenly
