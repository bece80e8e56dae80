"""``python -m hybridcalc``."""

from hybridcalc.cli import main

main()
