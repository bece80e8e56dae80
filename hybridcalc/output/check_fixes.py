"""The fixes of findings that are one value, as a patch, and made."""

import os
import stat
import sys
from collections.abc import Callable
from typing import TextIO

from hybridcalc.checks.fix import diff, edits_by_file, mended, write
from hybridcalc.checks.run import Report
from hybridcalc.errors import InputError, printable
from hybridcalc.output.check_report import in_workflow


def fixed(report: Report, again: Callable[[], Report], *, apply: bool, patch: TextIO) -> Report:
    """Show the edits as a diff, and apply them: then the report of what is left."""
    changed = 0
    for path, edits in edits_by_file(report.findings).items():
        if not edits:
            continue
        try:
            before, after = mended(path, edits)
            exact = _is_file(patch)
            shown = diff(path, before, after, exact=exact)
            harmless = shown.replace("::", ":\u200b:").replace("##[", "##\u200b[")
            patch.write(harmless if in_workflow() and not exact else shown)
            if apply:
                write(path, after)
        except (InputError, OSError) as error:
            message = error.message if isinstance(error, InputError) else f"{printable(path)}: cannot be rewritten"
            fix = error.fix if isinstance(error, InputError) else (error.strerror or str(error)).lower()
            print(f"error: {message}\n       {fix}", file=sys.stderr)
            continue
        changed += len(edits)
    done = "made" if apply else "possible"
    print(f"{changed} fix{'' if changed == 1 else 'es'} {done}", file=sys.stderr)
    return again() if apply and changed else report


def _is_file(stream: TextIO) -> bool:
    """Whether a stream ends in a file, which takes any character, rather than in a terminal or a log."""
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False
