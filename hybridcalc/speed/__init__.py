"""Floors of time: what a decode step, a prompt and a lost prefix must take at least, from bytes and operations."""

from hybridcalc.speed.floor import EXPERTS as EXPERTS
from hybridcalc.speed.floor import HEAD as HEAD
from hybridcalc.speed.floor import KV as KV
from hybridcalc.speed.floor import PROMPT_SHARES as PROMPT_SHARES
from hybridcalc.speed.floor import STATE as STATE
from hybridcalc.speed.floor import USUAL_SHARES as USUAL_SHARES
from hybridcalc.speed.floor import WEIGHTS as WEIGHTS
from hybridcalc.speed.floor import Floor as Floor
from hybridcalc.speed.floor import Part as Part
from hybridcalc.speed.prompt import Boundary as Boundary
from hybridcalc.speed.prompt import Recomputed as Recomputed
from hybridcalc.speed.prompt import boundaries as boundaries
from hybridcalc.speed.prompt import prefill as prefill
from hybridcalc.speed.prompt import prefill_of as prefill_of
from hybridcalc.speed.prompt import recompute as recompute
from hybridcalc.speed.prompt import recompute_of as recompute_of
from hybridcalc.speed.step import Moved as Moved
from hybridcalc.speed.step import decode_step as decode_step
from hybridcalc.speed.step import move as move
from hybridcalc.speed.step import step_of as step_of
