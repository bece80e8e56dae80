"""The command line: one module a command; each parses, calls the library and prints. Everything else is below."""

import os
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line; Ctrl-C ends it quietly, during the imports as well."""
    try:
        from hybridcalc.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)
