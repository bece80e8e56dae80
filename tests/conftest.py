"""Hypothesis profiles, and measures of work: what an answer costs, and how that grows with its input."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("landing", deadline=None, derandomize=True, max_examples=100)
settings.register_profile(
    "explore", deadline=None, max_examples=3000, suppress_health_check=[HealthCheck.too_slow]
)  # pytest --hypothesis-profile=explore
settings.load_profile("landing")

os.environ["OLLAMA_MODELS"] = os.devnull  # names mean presets, whatever is stored where the tests run


def pytest_runtest_setup(item: pytest.Item) -> None:
    """``@pytest.mark.needs("torch")`` skips a test where that extra is not installed."""
    for mark in item.iter_markers("needs"):
        pytest.importorskip(mark.args[0])


HANGS = 300
"""Seconds after which a test hangs. The only time limit there is: what a test bounds is work, by ``steps``, ``growth``
or what it counts itself.
"""


@pytest.fixture(autouse=True)
def _a_hang_is_a_failure() -> Iterator[None]:
    def stop(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"hangs: not done after {HANGS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(HANGS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def steps() -> Callable[[Callable[[], object]], int]:
    """``steps(body)``: how many functions the body calls, Python's and C's. The same number on every machine."""

    def count(body: Callable[[], object]) -> int:
        called = 0

        def note(frame: FrameType, event: str, argument: object) -> None:
            nonlocal called
            called += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            body()
        finally:
            sys.setprofile(before)
        return called

    return count


@pytest.fixture
def growth() -> Callable[[Callable[[], object], Callable[[], object]], float]:
    """``growth(small, large)``: how many times the processor time of ``small`` the ``large`` body takes, each at its
    best of three runs. For work inside one call (a regular expression), which no count of calls sees.
    """

    def cost(body: Callable[[], object]) -> float:
        start = time.process_time()
        body()
        return time.process_time() - start

    def compare(small: Callable[[], object], large: Callable[[], object]) -> float:
        pairs = [(cost(small), cost(large)) for _ in range(3)]
        return min(pair[1] for pair in pairs) / min(pair[0] for pair in pairs)

    return compare
