"""A progress bar on stderr while tensors are allocated: one a model, gone when it is done; none without a TTY."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Callable[[Any, int], Callable[[int], None]] | None]:
    """What is told of a server and its bytes, and gives what is told of each tensor; None where nobody looks."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bars:

        def watch(subject: Any, total: int) -> Callable[[int], None]:
            for task in bars.task_ids:
                bars.remove_task(task)
            task = bars.add_task(subject.model.name, total=total)
            return lambda done: bars.advance(task, done)

        yield watch
