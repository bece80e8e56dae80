"""What a page needs to simulate a prefix cache in the browser: cyclic prompts or agents, slots and KV to try.

The browser repeats the simulation for prompts that share nothing with each other, one request at a time in turn, under
SGLang's extra buffers (output/pictures/web/prefixes.js). Any other workload, policy or cache has no such page.
"""

from hybridcalc.engines.play import Control, Play
from hybridcalc.reuse.answer import Reuse
from hybridcalc.reuse.policy import NO_CAP
from hybridcalc.reuse.workloads import values_of

MOST_PLAYED, MOST_SLOTS, MOST_KV = 300, 100_000, 10**9
"""Prompts at a time; slots; KV tokens."""
RESULTS = {
    "reused": "prompt tokens reused, %", "hit": "requests with a hit", "recomputed": "tokens computed",
    "lost": "states given up", "lost-kv": "of these since KV lacked",
}  # fmt: skip
CHARTS = {"tried": "Hits against slots, with these settings"}
ABSENT = ("system", "tail", "zipf", "preempt", "rate")


def play_of(answer: Reuse) -> Play | None:
    """The settings of the page; None where the browser does not repeat the simulation."""
    setup, policy = answer.setup, answer.setup.policy
    own = (
        setup.checkpoint_slots is not None
        or setup.running
        or setup.has_host
        or setup.pool is not None
        or setup.server is not None
    )
    plain = policy.page == 1 and policy.path_cap == NO_CAP and not (policy.at_ends or policy.on_blocks)
    if not answer.workload.asked:
        return None
    kind, given = values_of(answer.workload.asked)
    if own or not plain or kind not in ("cyclic", "agents") or any(given.get(name) for name in ABSENT):
        return None
    if kind == "cyclic" and given["output"] > 1:
        return None
    cyclic = kind == "cyclic"
    sessions = Control("sessions", "prompts in turn" if cyclic else "agents at a time", "", 1, MOST_PLAYED)
    first = Control("first", "tokens of each" if cyclic else "tokens of the first prompt", "", 1, 2**20)
    numbers = {
        "sessions": int(given["prefixes" if cyclic else "n"]),
        "first": int(given["tokens" if cyclic else "history"]),
        "slots": setup.slots,
        "kv": setup.kv_tokens or MOST_KV,
    }
    controls = [sessions, first]
    if not cyclic:
        numbers |= {"turns": int(given["turns"]), "added": int(given["tool"])}
        controls += [
            Control("turns", "turns of each", "", 1, 100),
            Control("added", "tokens that a tool adds", "", 1, 2**17),
        ]
    controls += [
        Control("slots", "slots for states (--slots)", "", 1, MOST_SLOTS),
        Control("kv", "KV tokens (--max-total-tokens)", "", 1, MOST_KV),
    ]
    if any(not control.low <= numbers[control.name] <= control.high for control in controls):
        return None
    filled = tuple(control._replace(value=str(numbers[control.name])) for control in controls)
    constants = {"grid": policy.grid, "chunk": min(policy.prefill_chunk, 2**40), "interval": policy.decode_grid}
    fixed = {"turns": 1, "added": 1, "growth": 0, "output": int(given["output"]), "rounds": int(given["rounds"])}
    if not cyclic:
        fixed["growth"] = int(given["growth"])
    data = {
        "engine": "reuse",
        "table": {},
        "constants": constants,
        "fixed": fixed,
        "kind": kind,
        "kvUnlimited": MOST_KV,
        "launch": {"argv": ["hybridcalc", "reuse"], "env": {}, "flags": {}},
    }
    return Play(filled, RESULTS, CHARTS, data)
