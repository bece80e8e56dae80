"""Which ways out of flags that are refused together does a start-up take?

A fix of a refusal is tried as the start-up would judge it. Ways that are refused in turn are left out; where none of
its own is left, it is the first of `WAYS` that starts, or that at least breaks another rule.
"""

from collections.abc import Callable, Iterable
from typing import Any

from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.errors import Drop, Either, HybridcalcError, Refusal, Write, WriteAll, flags_of

WAYS = (
    Drop("--attention-backend"),
    Drop("--page-size"),
    Drop("--mamba-radix-cache-strategy"),
    WriteAll("--disable-overlap-schedule"),
    Drop("--disable-overlap-schedule"),
    WriteAll("--mamba-radix-cache-strategy no_buffer --disable-overlap-schedule"),
    Drop("--mamba-radix-cache-strategy", "--page-size"),
    Write("--page-size", 1),
    Drop("--mamba-track-interval"),
    Drop("--kv-cache-dtype"),
    WriteAll("--disable-radix-cache"),
    Drop("--enable-dp-attention"),
)
"""What may start where flags do not, the least loss first."""


def changed_by(way: str, args: ServerArgs) -> ServerArgs | None:
    """The arguments with what a fix of flags says; None where it says none, or changes nothing."""
    from hybridcalc.engines.sglang import ENGINE

    if isinstance(way, Drop):
        dropped = (ENGINE.flags.by_spelling[flag].field for flag in way.flags)
        made = args.changed(**{name: args.defaults[name][1] for name in dropped})
    elif flags_of(way):
        made = ENGINE.changed(args, flags_of(way))
    else:
        return None
    return None if made == args else made


def mended(refusal: Refusal, args: ServerArgs, judge: Callable[[ServerArgs], Any]) -> Refusal:
    """The refusal of ``args`` with a fix that ``judge``, which raises Refusal, takes."""

    def breaks(way: str) -> str | None:
        """The rule that the arguments break then, empty for none; None where nothing changes."""
        try:
            made = changed_by(way, args)
            if made is not None:
                judge(made)
            return None if made is None else ""
        except Refusal as next_one:
            return next_one.rule
        except HybridcalcError:
            return None

    own = refusal.fix.ways if isinstance(refusal.fix, Either) else (refusal.fix,)
    said = [way for way in own if way and not (isinstance(way, Drop) or flags_of(way))]
    refusal.fix = _first(said + [way for way in own if breaks(way) == ""]) or _other(refusal, own, breaks)
    return refusal


def _first(ways: Iterable[str]) -> str:
    found = tuple(ways)
    return Either(*found) if len(found) > 1 else found[0] if found else ""


def _other(refusal: Refusal, own: Iterable[str], breaks: Callable[[str], str | None]) -> str:
    """The first way that starts, else the first that breaks another rule; the fix as it is where there is neither."""
    broken = {way: breaks(way) for way in (*own, *WAYS)}
    starts = (way for way, rule in broken.items() if rule == "")
    differs = (way for way, rule in broken.items() if rule not in (None, refusal.rule))
    return next(starts, "") or next(differs, "") or refusal.fix
