"""The command line: one module a command; each parses, calls the library and prints. Everything else is below."""

from hybridcalc.cli.app import main

__all__ = ["main"]
