"""One answer a path, in the order of the paths, from several processes.

Paths go round in chunks: of n processes, each has every n-th chunk and sends one answer a path through a pipe of its
own. It waits while the pipe is full, so that answers nobody has asked for yet take no more memory than pipes hold. A
process that is ended costs the path it was at: what ended it is the answer, and another process goes on behind it.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

CHUNK = 16
"""Neighbours that go to one process: files of a folder share what was read beside them."""
ENDED_FIX = "leave the file out with exclude, or check it with more memory"
DEFECT_FIX = "this is a defect of hybridcalc; leave the file out with exclude, and report it"

Answer = TypeVar("Answer")
Failed = Callable[[str, str, str], Answer]
"""(path, what happened, what to do) -> the answer of a path that has none of its own."""


def answers(
    paths: Sequence[str], check: Callable[[str], Answer], failed: Failed[Answer], processes: int
) -> Iterator[Answer]:
    """``check`` of every path. Raises OSError where no process can be started."""
    shares: list[_Share[Answer]] = []
    try:
        for number in range(processes):
            own = [
                path for at in range(number * CHUNK, len(paths), processes * CHUNK) for path in paths[at : at + CHUNK]
            ]
            shares.append(_Share(own, check, failed))
        for at in range(len(paths)):
            yield shares[at // CHUNK % processes].answer()
    finally:
        for share in shares:
            share.end()


class _Share(Generic[Answer]):
    """The paths of one process at a time, and the pipe that its answers come through."""

    def __init__(self, paths: Sequence[str], check: Callable[[str], Answer], failed: Failed[Answer]) -> None:
        self._paths, self._check, self._failed, self._at = paths, check, failed, 0
        self._start()

    def _start(self) -> None:
        from multiprocessing import get_context

        context: Any = get_context("fork" if sys.platform == "linux" else "spawn")
        self._pipe, sending = context.Pipe(duplex=False)
        arguments = (sending, self._paths[self._at :], self._check, self._failed)
        self._process = context.Process(target=_send, args=arguments, daemon=True)
        self._process.start()
        sending.close()  # the process has the only other end: it closes when the process ends

    def answer(self) -> Answer:
        """The answer of the next path."""
        path = self._paths[self._at]
        self._at += 1
        try:
            answer: Answer = self._pipe.recv()
            return answer
        except (EOFError, OSError):
            self.end()
            why = f"the process that read it was ended by {_cause(self._process.exitcode)}"
            if self._at < len(self._paths):
                self._start()
            return self._failed(path, why, ENDED_FIX)
        except Exception as failure:
            return self._failed(path, described(failure), DEFECT_FIX)

    def end(self) -> None:
        """End the process, if it still runs."""
        self._pipe.close()
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()


def _send(pipe: "Connection", paths: Sequence[str], check: Callable[[str], Answer], failed: Failed[Answer]) -> None:
    try:
        for path in paths:
            try:
                pipe.send(check(path))
            except BrokenPipeError:  # whoever asked is gone
                return
            except Exception as failure:
                pipe.send(failed(path, described(failure), DEFECT_FIX))
    except KeyboardInterrupt:  # the terminal sends it to every process: the one that asked says so
        os._exit(1)


def described(failure: Exception) -> str:
    """An exception on one line."""
    return f"{type(failure).__name__}: {' '.join(str(failure).split())[:160]}"


def _cause(code: int | None) -> str:
    """What ended a process, by its exit code: a signal where it is negative."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"{name}, as a rule for want of memory" if name == "SIGKILL" else name
