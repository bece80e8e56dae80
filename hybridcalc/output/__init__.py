"""Answers -> text and JSON. Only this package and pictures import rich."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def in_workflow() -> bool:
    """Whether a workflow of GitHub runs this."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


@contextmanager
def no_commands() -> Iterator[None]:
    """Keep what files hold from being taken for commands of a GitHub workflow, which a line of a log may be."""
    if not in_workflow():
        yield
        return
    from secrets import token_hex

    token = token_hex(16)
    sys.stdout.write(f"::stop-commands::{token}\n")
    yield
    sys.stdout.write(f"::{token}::\n")
