"""The command line: one module a command; each parses, calls the library and prints. Everything else is below."""

import gc
import os
import sys
from typing import NoReturn

OBJECTS_BETWEEN_COLLECTIONS = 60_000
"""Python looks for circles of garbage after every 700 objects: 80 times while modules are loaded, which make none."""


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends it quietly, during the imports as well."""
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    try:
        if "_HYBRIDCALC_COMPLETE" in os.environ:
            from hybridcalc.cli.completion import answer

            code = answer()
            if code is not None:
                sys.exit(code)
        from hybridcalc.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)
