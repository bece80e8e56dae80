"""--download, against a server on this machine that plays the Hugging Face Hub."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from hybridcalc.architecture import hub as hub_module
from hybridcalc.errors import InputError, ModelNotFound

pytest.importorskip("huggingface_hub")

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128, "intermediate_size": 256, "tie_word_embeddings": True,
}  # fmt: skip
PARAMETERS = 131_392
HEADER = json.dumps({"x": {"dtype": "BF16", "shape": [PARAMETERS], "data_offsets": [0, 2 * PARAMETERS]}}).encode()
QUANT = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
MODELS: dict[str, dict[str, bytes]] = {
    "org/sharded": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors.index.json": json.dumps({"metadata": {"total_size": 2 * PARAMETERS}}).encode(),
    },
    "org/single": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + b"\0" * 64,
    },
    "org/tiny-FP8": {"config.json": json.dumps(LLAMA).encode(), "hf_quant_config.json": json.dumps(QUANT).encode()},
    "org/unsummed": {
        "config.json": json.dumps(LLAMA).encode(),
        "model.safetensors.index.json": json.dumps(
            {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
        ).encode(),
        "a.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + b"\0" * 64,
        "b.safetensors": struct.pack("<Q", 2) + b"{}" + b"\0" * 64,
    },
    "org/moved": {"config.json": json.dumps(LLAMA).encode()},
    "org/huge": {"config.json": b"{" + b" " * (9 * 2**20) + b"}"},
}
COMMIT = "a" * 40


class _Hub(BaseHTTPRequestHandler):
    """Files of MODELS under /ORG/NAME/resolve/main/FILE, whole or by range."""

    asked: ClassVar[list[str]] = []

    def _answer(self, body: bool) -> None:
        path = self.path.removeprefix("/moved").removeprefix("/behind/a/proxy")
        model, _, file = path.strip("/").partition("/resolve/main/")
        data = MODELS.get(model, {}).get(file)
        self.asked.append(f"{self.command} {model} {file} {self.headers.get('authorization', '')}".strip())
        if model == "org/gated":
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if model == "org/moved" and not self.path.startswith("/moved"):
            self.send_response(302)
            self.send_header("Location", f"/moved{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if data is None:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound" if model in MODELS else "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = self.headers.get("Range", "")
        part = data
        if wanted.startswith("bytes="):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last or len(data)) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("ETag", f'"{file}-1"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if body:
            self.wfile.write(part)

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def log_message(self, *_: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    _Hub.asked.clear()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def _run(home: Path, endpoint: str, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HYBRIDCALC", "COLUMNS"))}
    env = (
        kept
        | {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "NO_PROXY": "127.0.0.1", "HF_HUB_DISABLE_XET": "1"}
        | more
    )
    command = [sys.executable, "-m", "hybridcalc", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)


def test_a_model_is_fetched_once(tmp_path: Path, hub: str) -> None:
    """Its config and index; later commands find them in the cache, offline."""
    ran = _run(tmp_path, hub, "weights", "org/sharded", "--download", "--json", HF_TOKEN="hf_secret")
    found = json.loads(ran.stdout)
    assert (found["parameters"], found["checkpoint_bytes"]) == (PARAMETERS, 2 * PARAMETERS), ran.stderr
    assert "the index of" in found["weights_from"]
    assert any(line == "GET org/sharded config.json Bearer hf_secret" for line in _Hub.asked)
    assert not any("model-0" in line for line in _Hub.asked)
    again = _run(tmp_path, "http://127.0.0.1:9", "weights", "org/sharded", "--json")
    assert json.loads(again.stdout)["checkpoint_bytes"] == 2 * PARAMETERS


def test_one_file_is_sized_by_its_header(tmp_path: Path, hub: str) -> None:
    """By range requests: the tensors themselves are not there."""
    ran = _run(tmp_path, hub, "weights", "org/single", "--json", HYBRIDCALC_DOWNLOAD="1")
    found = json.loads(ran.stdout)
    assert found["checkpoint_bytes"] == 2 * PARAMETERS, ran.stderr
    assert "the header of model.safetensors on the Hub" in found["weights_from"]


def test_quantisation_beside_the_config_counts(tmp_path: Path, hub: str) -> None:
    found = json.loads(_run(tmp_path, hub, "weights", "org/tiny-FP8", "--download", "--json").stdout)
    assert found["quantization"] == "modelopt fp8 per tensor"


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("org/absent", {}, "org/absent cannot be fetched: "),
        ("org/gated", {}, "org/gated cannot be fetched: the Hub answers 403: no such model, or it wants a token"),
        ("org/huge", {}, "config.json of org/huge is larger than 8 MiB"),
        ("org/sharded", {"HF_HUB_OFFLINE": "1"}, "org/sharded cannot be fetched: "),
        ("org/sharded", {"HF_ENDPOINT": "http://127.0.0.1:9"}, "org/sharded cannot be fetched: "),
    ],
)
def test_what_cannot_be_fetched_is_an_error_of_two_lines(
    tmp_path: Path, hub: str, name: str, more: dict[str, str], said: str
) -> None:
    """With the command to run by hand."""
    ran = _run(tmp_path, hub, "weights", name, "--download", **more)
    lines = ran.stderr.strip().splitlines()
    assert (ran.returncode, ran.stdout) == (2, "")
    assert lines[0].startswith(f"error: {said}") and len(lines) <= 2
    if "cannot be fetched" in said:
        assert lines[1].strip().startswith(f"by hand: hf download {name}")


def test_an_index_that_states_no_size_is_summed_by_headers(tmp_path: Path, hub: str) -> None:
    """Of the files that it lists; a Hub may lie behind a path."""
    for endpoint in (hub, f"{hub}/behind/a/proxy"):
        ran = _run(tmp_path / endpoint[-5:], endpoint, "weights", "org/unsummed", "--download", "--json")
        found = json.loads(ran.stdout)
        assert found["checkpoint_bytes"] == 2 * PARAMETERS, ran.stderr
        assert "the headers of 2 files on the Hub" in found["weights_from"]


def test_a_model_that_has_moved_is_followed(tmp_path: Path, hub: str) -> None:
    ran = _run(tmp_path, hub, "weights", "org/moved", "--download", "--json")
    assert json.loads(ran.stdout)["parameters"] == PARAMETERS, ran.stderr


@pytest.mark.parametrize(
    ("file", "mib"), [("config.json", 8), ("hf_quant_config.json", 8), ("model.safetensors.index.json", 64)]
)
def test_a_file_is_fetched_up_to_its_bound(monkeypatch: pytest.MonkeyPatch, file: str, mib: int) -> None:
    """By the size that the Hub states, before any of it is read."""

    class Stated:
        size = mib * 2**20

        @staticmethod
        def get_hf_file_metadata(*_: object, **__: object) -> type[Stated]:
            return Stated

        @staticmethod
        def hf_hub_url(*_: object) -> str:
            return ""

        @staticmethod
        def hf_hub_download(*_: object, **__: object) -> str:
            return file

    monkeypatch.setattr(hub_module, "_offline", lambda: False)
    assert hub_module._file(Stated, "org/name", file) == Path(file)
    Stated.size += 1
    with pytest.raises(InputError, match=f"{file} of org/name is larger than {mib} MiB"):
        hub_module._file(Stated, "org/name", file)


@pytest.mark.parametrize(
    ("index", "found"),
    [
        (None, {"bytes": 8, "source": "the header of model.safetensors on the Hub"}),
        ({"metadata": {"total_size": 16}}, {}),
        ({"weight_map": {"x": "a"}}, {"bytes": 8, "source": "the header of a on the Hub"}),
        (
            {"weight_map": {f"x{at}": f"f{at}" for at in range(64)}},
            {"bytes": 512, "source": "the headers of 64 files on the Hub"},
        ),
        ({"weight_map": {f"x{at}": f"f{at}" for at in range(65)}}, {}),
    ],
    ids=["no index", "an index with its size", "one file", "64 files", "65 files"],
)
def test_headers_are_read_where_no_index_states_a_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: dict[str, object] | None, found: dict[str, object]
) -> None:
    """Of 64 files at most; a config.json is none of them."""
    for name, content in {"config.json": LLAMA, "model.safetensors.index.json": index}.items():
        (tmp_path / name).write_text(json.dumps(content))
    header = SimpleNamespace(tensors={"x": SimpleNamespace(data_offsets=(4, 12))})
    hub = SimpleNamespace(HfApi=lambda: SimpleNamespace(parse_safetensors_file_metadata=lambda *_, **__: header))
    monkeypatch.setattr(hub_module, "_offline", lambda: False)
    there = ("config.json", *(() if index is None else ("model.safetensors.index.json",)))
    monkeypatch.setattr(hub_module, "_file", lambda _, __, file: tmp_path / file if file in there else None)
    assert hub_module._fetch(hub, "org/name") == (tmp_path / "config.json", found)


def test_a_server_that_answers_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slowly each part arrives, all of it must be there in time."""
    held = threading.Event()
    monkeypatch.setattr(hub_module, "MOST_SECONDS", 0.05)
    monkeypatch.setattr(hub_module, "_fetch", lambda *_: held.wait())
    with pytest.raises(ModelNotFound, match="org/slow cannot be fetched: not all there"):
        hub_module.fetch("org/slow")
    held.set()


def test_nothing_is_fetched_unasked(tmp_path: Path, hub: str) -> None:
    ran = _run(tmp_path, hub, "weights", "org/sharded")
    assert ran.returncode == 2 and "or add --download" in ran.stderr
    assert _Hub.asked == []
