"""Hypothesis profiles, and a limit on the time a test may take to be answered or refused."""

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("landing", deadline=None, derandomize=True, max_examples=100)
settings.register_profile(
    "explore", deadline=None, max_examples=3000, suppress_health_check=[HealthCheck.too_slow]
)  # pytest --hypothesis-profile=explore
settings.load_profile("landing")


HANGS = 8
"""Times its processor time that a body may take on the clock: tests share a machine."""


@pytest.fixture
def within() -> Callable[[float], AbstractContextManager[None]]:
    """``with within(seconds):`` fails the test when its body takes more processor time, and stops the body then; a body
    that waits for something is stopped after HANGS times as long on the clock.
    """

    @contextmanager
    def limit(seconds: float) -> Iterator[None]:
        def stop(signum: int, frame: FrameType | None) -> None:
            pytest.fail(f"not done within {seconds} s")

        before = {number: signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)}
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, HANGS * seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    return limit
