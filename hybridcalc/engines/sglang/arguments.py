"""Is every SGLang argument one that its command line would take? For arguments that came without a command line.

`FLAGS` (flags.py) says what each may be: the kind, the bounds and the choices. The command line is held to them as it
is read (shell/flags.py); here ServerArgs from Python or from a saved plan are. What flags do to each other is the
planner's business. Arguments at their defaults cost next to nothing, since every plan passes here.
"""

from collections.abc import Mapping
from dataclasses import fields
from itertools import compress
from operator import attrgetter, is_not

from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.flags import ELSEWHERE, FLAGS
from hybridcalc.engines.sglang.kv import OWN_DRAFT_CELL
from hybridcalc.errors import InputError, quoted
from hybridcalc.shell.flags import holds, wanted

DEFAULTS = ServerArgs()
NAMES = tuple(field.name for field in fields(ServerArgs) if field.name not in ("env", "engine_version"))
BOUNDS = {flag.field: flag for flag in reversed((*FLAGS, *ELSEWHERE))}
"""The first flag of every field: others that set it are spelt or counted another way."""
_OWN = tuple(getattr(DEFAULTS, name) for name in NAMES)
_values = attrgetter(*NAMES)


def check_arguments(args: ServerArgs) -> None:
    """Raise InputError for an argument whose type, bound or choice the command line would refuse."""
    values = _values(args)
    for name, value in compress(zip(NAMES, values, strict=True), map(is_not, values, _OWN)):
        flag = BOUNDS[name]
        if not holds(flag, value):
            raise InputError(f"{name} {quoted(value)} is not {wanted(flag)}")
    if args.engine_version is not None and not isinstance(args.engine_version, str):
        raise InputError(f"engine_version {quoted(args.engine_version)} is not text", fix="write one like 0.5.23")
    env = args.env
    if type(env) is not dict and not isinstance(env, Mapping):
        raise InputError(f"env {quoted(env)} is not a mapping", fix='write one like {"NAME": "value"}')
    for name, value in env.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InputError(f"env: {quoted(name)}: {quoted(value)} is not text", fix="variables hold text")


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
