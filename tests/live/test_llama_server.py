"""`live` beside a real llama-server with more requests than slots: its figures are those of /metrics, /slots and /props
and of the plan; what it says to set then runs all requests.
"""

import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import run

from hybridcalc import llamacpp, load_model

sys.path.insert(0, str(Path(__file__).parents[1] / "engines"))
from llamacpp_server import PROMPT, serving, write_tiny

pytestmark = pytest.mark.needs("xllamacpp")
CONTEXT = 131_072
"""Tokens that the tiny model was trained on, so that requests last as long as a test."""


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text = answer.read().decode()
    if not url.endswith("/metrics"):
        return json.loads(text)
    return dict(line.split() for line in text.splitlines() if line and not line.startswith("#"))


def ask(url: str, number: int, tokens: int) -> None:
    asked = {"prompt": PROMPT * (number + 1), "n_predict": tokens, "ignore_eos": True, "cache_prompt": True}
    request = urllib.request.Request(
        f"{url}/completion", json.dumps(asked).encode(), {"Content-Type": "application/json"}
    )
    with suppress(OSError):  # the server is stopped when the test has seen enough
        urllib.request.urlopen(request, timeout=120).read()


@contextmanager
def busy(path: Path, requests: int, **settings: Any) -> Iterator[str]:
    """A server with so many requests, those that fit in its slots being processed."""
    with serving(path, **settings) as url:
        for number in range(requests):
            threading.Thread(target=ask, args=(url, number, CONTEXT), daemon=True).start()
        slots = get(f"{url}/props")["total_slots"]
        until = time.monotonic() + 60
        while time.monotonic() < until:
            counts = [int(get(f"{url}/metrics")[f"llamacpp:requests_{state}"]) for state in ("processing", "deferred")]
            if counts == [min(slots, requests), max(0, requests - slots)]:
                break
        yield url


def held(url: str) -> float:
    slots = [slot for slot in get(f"{url}/slots") if slot["is_processing"]]
    return float(sum(slot["n_prompt_tokens"] for slot in slots)) / len(slots)


@pytest.mark.parametrize("kind", ["qwen35", "nemotron_h_moe", "llama"])
def test_figures_are_those_of_a_real_server_and_of_the_plan(kind: str, tmp_path: Path) -> None:
    path = write_tiny(kind, tmp_path / "tiny.gguf", context_length=CONTEXT)
    line = f"llama-server -m {path} -np 3 -c {3 * 16384}"
    plan = llamacpp.plan(load_model(str(path)), llamacpp.ContextParams(n_ctx=3 * 16384, n_seq_max=3))
    with busy(path, 5, n_ctx=3 * 16384, n_parallel=3) as url:
        least = held(url)
        code, out, _ = run("live", url, "--command", line, "--json")
        most, metrics, props = held(url), get(f"{url}/metrics"), get(f"{url}/props")
    found = json.loads(out)
    assert code == 0
    assert found["requests_running"] == int(metrics["llamacpp:requests_processing"]) == plan.ready.sequences == 3
    assert found["requests_queued"] == int(metrics["llamacpp:requests_deferred"]) == 2
    assert found["per_worker"][0]["limit"] == props["total_slots"] == plan.ready.sequences
    assert found["T"] == 3 * props["default_generation_settings"]["n_ctx"] == plan.engine_figures["n_ctx"]
    assert round(least, 4) <= found["tokens_per_request"] <= round(most, 4)
    assert found["usage"]["kv"] == pytest.approx(3 * found["tokens_per_request"] / found["T"], abs=1e-4)
    assert (found["binding"], found["planned_from"], found["model"]) == ("limit", "the launch line", str(path))
    (more,) = found["suggestions"]
    assert more["flags"] == ["--parallel", "5", "--ctx-size", str(5 * 16384)]
    assert (more["requests_before"], more["requests_after"]) == (3, 5)


def test_what_it_says_to_set_runs_all_requests(tmp_path: Path) -> None:
    path = write_tiny("qwen35", tmp_path / "tiny.gguf", context_length=CONTEXT)
    with busy(path, 5, n_ctx=5 * 16384, n_parallel=5) as url:
        found = json.loads(run("live", url, "--json")[1])
    assert (found["requests_running"], found["requests_queued"], found["binding"]) == (5, 0, None)


def test_slots_that_share_their_cells_are_not_counted_each(tmp_path: Path) -> None:
    path = write_tiny("qwen35", tmp_path / "tiny.gguf", context_length=CONTEXT)
    with busy(path, 6, n_ctx=65536, n_parallel=4, kv_unified=True) as url:
        assert {slot["n_ctx"] for slot in get(f"{url}/slots")} == {65536}
        alone = json.loads(run("live", url, "--json")[1])
        told = json.loads(run("live", url, "--command", f"llama-server -m {path} -c 65536", "--json")[1])
        other = json.loads(run("live", url, "--command", f"llama-server -m {path} -c 8192 -np 4", "--json")[1])
    assert (alone["T"], alone["usage"], alone["binding"]) == (None, {}, "limit")
    assert alone["tokens_per_request"] > 0
    assert told["T"] == 65536
    assert "--kv-unified" in told["suggestions"][0]["flags"]
    assert other["planned_from"] == "the launch line is another server's: n_ctx_slot is 65,536 here, planned 2,048"


def test_prefixes_that_a_real_server_finds_again_are_counted(tmp_path: Path) -> None:
    path = write_tiny("llama", tmp_path / "tiny.gguf")
    with serving(path, n_ctx=4096, n_parallel=1) as url:
        for _ in range(3):
            ask(url, 7, 4)
        metrics, found = get(f"{url}/metrics"), json.loads(run("live", url, "--json")[1])
        slots = get(f"{url}/slots")
    cached, computed = (int(metrics[f"llamacpp:prompt_tokens_{name}"]) for name in ("cached_total", "total"))
    assert cached > 0
    assert found["hit_rate"] == pytest.approx(cached / (cached + computed), abs=1e-4)
    assert (found["requests_running"], found["binding"]) == (0, None)
    assert found["cached"] == {"kv": slots[0]["n_prompt_tokens"]}


def test_a_key_opens_a_server_and_is_never_printed(tmp_path: Path) -> None:
    path = write_tiny("llama", tmp_path / "tiny.gguf")
    with serving(path, n_ctx=4096, api_keys=["s3cret"]) as url:
        code, out, err = run("live", url)
        assert (code, out) == (2, "")
        assert "HTTP 401" in err
        assert "--header" in err
        code, out, err = run("live", url, "--json", "--header", "Authorization: Bearer s3cret")
    assert (code, err) == (0, "")
    assert json.loads(out)["engine"] == "llama.cpp"
    assert "s3cret" not in out
