"""``hybridcalc verify`` under torchrun, and ended while it runs."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import Ran, run
from verified import complaint

from hybridcalc.cli import verify
from hybridcalc.crosscheck import run as crosscheck_run
from hybridcalc.crosscheck.ranks import Process


def test_a_world_that_is_no_number_is_named() -> None:
    ran = run("verify", "kimi-k3", WORLD_SIZE="four")
    assert (ran.code, ran.out) == (2, "")
    assert "WORLD_SIZE='four' is no number" in ran.err


def test_ctrl_c_ends_quietly_while_memory_is_touched() -> None:
    """Interrupted in the middle of 60 GiB of address space on cpu: no traceback, exit code 130."""
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    try:
        started.stdout.readline()
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=120)
    finally:
        started.kill()  # what was not interrupted would touch memory for ever
    assert (started.returncode, err) == (130, "")
    assert out == "resident memory is back\n"


SLOW = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job starts with it ignored
from hybridcalc.crosscheck import devices
from hybridcalc.cli.app import execute

write_all = devices.write_all
before = None

def announce(tensor):
    global before
    if before is None:
        before = devices.resident_bytes()
        print("touching", flush=True)
    while True:
        write_all(tensor)

devices.write_all = announce
code = execute(["verify", "qwen3.5-0.8b", "--device", "cpu", "--memory", "300MiB"])
if devices.resident_bytes() - before < 64 * 2**20:
    print("resident memory is back")
sys.exit(code)
"""


class World:
    """Four processes of torchrun in one: each rank runs in turn, the first last, and hears what the others sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[Any] = [None] * 4
        self.monkeypatch = monkeypatch

    @contextmanager
    def processes(self, device: str) -> Iterator[Any]:
        rank = int(os.environ["RANK"])
        yield SimpleNamespace(rank=rank, world=4, sharers=4, mine=Process(rank, 4).mine, gather=self.gather)

    def gather(self, result: Any) -> Any:
        self.sent[int(os.environ["RANK"])] = pickle.loads(pickle.dumps(result))
        return self.sent if os.environ["RANK"] == "0" else [result]

    def verify(self, *arguments: str) -> Ran:
        """What the first rank prints; the others print nothing, or their own trouble after it."""
        self.monkeypatch.setattr(crosscheck_run, "processes", self.processes)
        self.monkeypatch.setattr(time, "sleep", lambda seconds: None)
        for rank in "321":
            assert run("verify", *arguments, RANK=rank).out == ""
        return run("verify", *arguments, RANK="0")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    return World(monkeypatch)


def test_every_rank_is_gathered(world: Any) -> None:
    """Two stages of two ranks: each process its own shard, one document, and the stages differ in layers."""
    ran = world.verify(
        "kimi-linear-48b-a3b", *["--tp", "2", "--pp", "2", "--device", "cpu", "--memory", "480MiB", "--json"]
    )
    assert ran.code == 0, ran.err
    document = ran.document
    assert (document["processes"], document["ok"]) == (4, True)
    assert [(rank["rank"], rank["stage"], rank["tp_rank"]) for rank in document["ranks"]] == [
        (0, 0, 0),
        (1, 0, 1),
        (2, 1, 0),
        (3, 1, 1),
    ]
    sizes = [rank["totals"]["full_bytes"] for rank in document["ranks"]]
    assert sizes[0] == sizes[1] != sizes[2] == sizes[3]
    assert document["totals"]["all_ranks_full_bytes"] == sum(sizes)
    assert all(rank["memory_stats"]["resident_held_bytes"] for rank in document["ranks"])


def test_fewer_processes_than_ranks_take_turns(world: Any) -> None:
    """Eight ranks with attention over two workers on four processes."""
    ran = world.verify("kimi-k3", "--tp", "8", "--dp", "2", "--enable-dp-attention", "--device", "meta", "-v")
    assert ran.code == 0, ran.err
    rows = [line.split() for line in ran.out.split("rank  stage")[1].splitlines()[1:9]]
    assert [(row[0], row[2], row[3]) for row in rows] == [(str(i), str(i), str(i // 4)) for i in range(8)]


def test_a_rank_that_fails_gives_way_to_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits to be ended, and speaks only where nobody ends it: torchrun takes the first exit for the whole."""
    waited: list[float] = []
    monkeypatch.setattr(time, "sleep", waited.append)
    monkeypatch.setenv("RANK", "3")
    assert "error: rank 3: --tp 5 does not divide" in complaint("kimi-k3", "--tp", "5", code=1)
    assert waited == [verify.GIVE_WAY_SECONDS]
    monkeypatch.setenv("RANK", "0")
    assert "error: --tp 5 does not divide" in complaint("kimi-k3", "--tp", "5", code=1)
    assert len(waited) == 1


def test_too_little_memory_says_who_shares_it(world: Any) -> None:
    ran = world.verify(
        "kimi-linear-48b-a3b", *["--tp", "4", "--device", "cpu", "--memory", "400MiB", "--scale", "full"]
    )
    assert ran.code == 2
    assert "may be taken by each of the 4 processes that share it" in ran.err
    assert ran.err.startswith("error: --scale full needs")


def test_under_torchrun_an_error_is_said_once() -> None:
    """As the answer of a real one stands in docs/verify.md, whose examples are run."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*launcher, "-m", "hybridcalc", "verify", "kimi-k3", "--tp", "5", "--device", "meta"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    assert ran.returncode == 1
    assert ran.stderr.count("--tp 5 does not divide") == 1
