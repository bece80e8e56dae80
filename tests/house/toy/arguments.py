"""Whether Toy's command line would take its arguments."""

from hybridcalc.engines.arguments import Bounds
from toy.command import FLAGS
from toy.config import ToyArgs

check_arguments = Bounds(ToyArgs, FLAGS).check
