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


@pytest.fixture
def within() -> Callable[[float], AbstractContextManager[None]]:
    """``with within(seconds):`` fails the test when its body takes longer, and stops the body then."""

    @contextmanager
    def limit(seconds: float) -> Iterator[None]:
        def stop(signum: int, frame: FrameType | None) -> None:
            pytest.fail(f"not done within {seconds} s")

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    return limit
