"""A bar on stderr while something long is computed; none where stderr is no terminal, so that logs stay clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

Step = Callable[[int], None]
One = TypeVar("One")
SLOW_POINTS = 5_000
EVERY = 50
"""Steps between two looks of a bar."""


@contextmanager
def bars(total: int | None) -> Iterator[Callable[[str], Step | None]]:
    """A function that starts a bar of ``total`` steps under a name, and gives what moves it to the steps done."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        shown: list[int] = []

        def start(name: str) -> Step:
            for task in shown:
                progress.remove_task(task)  # type: ignore[arg-type]  # TaskID is an int by another name
            task = progress.add_task(name, total=total)
            shown[:] = [task]
            return lambda done: progress.update(task, completed=done)

        yield start


def counter(move: Step | None) -> Callable[[], None]:
    """What is called at each step of something of unknown length."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        if move is not None and done % EVERY == 0:
            move(done)

    return step


@contextmanager
def byte_bars(*, quiet: bool = False) -> Iterator[Callable[[Any, int], Step] | None]:
    """What is told of a server and the bytes to come, and gives what is told of each
    tensor's; None where nobody looks.
    """
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def watch(subject: Any, total: int) -> Step:
            for task in progress.task_ids:
                progress.remove_task(task)
            shown = progress.add_task(subject.model.name, total=total)
            return lambda done: progress.advance(shown, done)

        yield watch


def with_progress(points: Iterable[One], count: int) -> Iterator[One]:
    """The points as they come; a bar on stderr when there are many and someone is watching."""
    if count < SLOW_POINTS or not sys.stderr.isatty():
        yield from points
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(points, total=count, description="planning", console=Console(stderr=True))
