"""Which lines of Toy's log are read."""

from hybridcalc.bootlog.boots import Grammar
from hybridcalc.bootlog.forms import Form

FORMS = (
    Form("toy_blocks", "toy: blocks", (("blocks", "blocks = {count}", "toy_blocks"),), 80, starts=True, settled=True),
    Form("toy_up", "toy: listening", (), 40, mark=True, up=True),
)
GRAMMAR = Grammar("toy", "Toy", FORMS)
