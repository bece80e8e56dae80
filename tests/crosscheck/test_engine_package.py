"""``verify --engine-package`` against packages that answer as SGLang does: one that follows, one that moved on."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from hybridcalc.cli.app import execute

SHAPES = """
    from dataclasses import dataclass, field
    from types import SimpleNamespace

    def product(shape):
        count = 1
        for size in shape:
            count *= size
        return count

    class Mamba2StateDType:
        def __init__(self, *, conv, temporal):
            self.conv, self.temporal = conv, temporal

    class Mamba2CacheParams:
        is_kda = False

        def __init__(self, *, shape, layers, dtype):
            self.shape, self.layers, self.dtype = shape, layers, dtype

        @property
        def mamba_cache_per_req(self):
            conv = sum(product(window) for window in self.shape.conv) * self.dtype.conv.itemsize
            return (conv + product(self.shape.temporal) * self.dtype.temporal.itemsize) * len(self.layers)

    class KimiLinearCacheParams(Mamba2CacheParams):
        is_kda = True

    class KimiLinearStateShape:
        @staticmethod
        def create(*, tp_world_size, num_heads, head_dim, conv_kernel_size):
            width = 3 * num_heads * head_dim // tp_world_size
            return SimpleNamespace(
                conv=[(conv_kernel_size - 1 + MORE, width)], temporal=(num_heads // tp_world_size, head_dim, head_dim)
            )
    """
POOL = """
    import torch
    from types import SimpleNamespace

    class MambaPool:
        def __init__(self, *, size, spec_state_size, cache_params, mamba_layer_ids, device, **more):
            outer = (len(mamba_layer_ids), size + 1)
            made = lambda shape, dtype: torch.zeros(outer + tuple(shape), dtype=dtype, device=device)
            conv = [made(shape, cache_params.dtype.conv) for shape in cache_params.shape.conv]
            self.mamba_cache = SimpleNamespace(
                conv=conv, temporal=made(cache_params.shape.temporal, cache_params.dtype.temporal)
            )
    """


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Install a package named sglang for one test."""

    def install(shapes: str, pool: str = POOL) -> None:
        for name, text in (("configs/mamba_utils", shapes), ("mem_cache/memory_pool", pool)):
            path = tmp_path / "sglang" / "srt" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        for package in (".", "srt", "srt/configs", "srt/mem_cache"):
            (tmp_path / "sglang" / package / "__init__.py").write_text("")
        metadata = tmp_path / "sglang-0.5.99.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.99\n")
        monkeypatch.syspath_prepend(str(tmp_path))

    yield install
    for name in [name for name in sys.modules if name == "sglang" or name.startswith("sglang.")]:
        del sys.modules[name]


WORDS = ["verify", "kimi-k3", "--tp", "8", "--device", "meta", "--engine-package"]


def test_an_engine_that_follows_the_rules(sglang: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    sglang(SHAPES.replace("MORE", "0"))
    assert execute([*WORDS, "--json"]) == 0
    compared = json.loads(capsys.readouterr().out)["engine_package"]
    assert (compared["package"], compared["version"], compared["ok"]) == ("sglang", "0.5.99", True)
    assert [row["name"] for row in compared["rows"]] == [
        "conv shape",
        "temporal shape",
        "bytes a slot",
        "ssm_state",
        "conv_state",
    ]
    assert compared["rows"][2]["engine"] == "56,171,520"


def test_an_engine_that_has_moved_on_is_found(sglang: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """A window one row longer: shape, slot and tensor differ, and the exit code is 1."""
    sglang(SHAPES.replace("MORE", "1"))
    assert execute(WORDS) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "differs: conv shape: sglang 0.5.99 [(4, 4608)], here [(3, 4608)]" in said
    assert "differs: bytes a slot: sglang 0.5.99 56,807,424, here 56,171,520" in said


@pytest.mark.parametrize(
    ("shapes", "pool", "said"),
    [
        ("import nothing_of_that_name", POOL, "sglang.srt.configs.mamba_utils: ModuleNotFoundError: No module named"),
        (SHAPES.replace("MORE", "0"), "raise RuntimeError('no GPU')", "mem_cache.memory_pool: RuntimeError: no GPU"),
    ],
)
def test_an_import_that_fails_is_said_with_its_reason(
    sglang: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    shapes: str,
    pool: str,
    said: str,
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # errors are wrapped to it
    sglang(shapes, pool)
    assert execute(WORDS) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "sglang 0.5.99 does not import" in printed.err and said in printed.err
    assert len(printed.err.splitlines()) == 2


def test_an_engine_whose_classes_have_changed_is_said(
    sglang: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Another signature is no answer, and no traceback."""
    sglang(SHAPES.replace("MORE", "0").replace("conv_kernel_size):", "kernel):"))
    assert execute(WORDS) == 2
    assert "sglang 0.5.99 no longer answers: TypeError" in capsys.readouterr().err
