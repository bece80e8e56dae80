"""Results of a check are plain data: they cross processes as they are, and hold no word that remembers its file."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.checks.run import check_file
from hybridcalc.checks.settings import Settings
from hybridcalc.manifests.find import find_files

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = sorted(
    str(path)
    for folder in ("examples/deployments", "tests/data/manifests")
    for path in find_files([str(ROOT / folder)])
    if isinstance(path, str)
)
PLAIN = (str, int, float, bool, type(None))


def not_plain(value: object, at: str = "result") -> Iterator[str]:
    """Where a value holds something that is no exact text, number or truth value in tuples and mappings."""
    if isinstance(value, tuple | list):
        names = getattr(value, "_fields", range(len(value)))
        for name, item in zip(names, value, strict=True):
            yield from not_plain(item, f"{at}.{name}")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from not_plain(key, f"{at} key")
            yield from not_plain(item, f"{at}[{key!r}]")
    elif type(value) not in PLAIN:
        yield f"{at}: {type(value).__name__} {value!r}"


def crosses(path: str) -> bool:
    """Whether the result of a file is plain and the same on the other side; False where the file holds nothing."""
    result = check_file(path, Settings(), {})
    assert list(not_plain(result)) == []
    assert pickle.loads(pickle.dumps(result)) == result
    return result is not None


def test_there_are_fixtures_of_every_folder() -> None:
    assert len(FILES) > 50


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.removeprefix(f"{ROOT}/"))
def test_the_result_of_a_file_crosses_processes(path: str) -> None:
    crosses(path)


launchers = st.sampled_from(
    ["sglang serve", "python3 -m sglang.launch_server --model-path", "vllm serve", "vllm serve -O"]
)
models = st.sampled_from([
    "moonshotai/Kimi-K3", "/data/kimi-k3", "/mnt/x/unknown", "./here", "$MODEL", "a/b",
    "ibm-granite/granite-4.0-h-small",
])  # fmt: skip
words = st.sampled_from([
    "--config missing.yaml", "--config=missing.yaml", "--config", "--disagg-config x.yaml", "--tp 8", "--tp=$TP",
    "--tensor-parallel-size 4", "--mamba-scheduler-strategy extra_buffer", "--mamba-scheduler-strategy=no_buffer",
    "--max-running-requests 4 --max-mamba-cache-size 8", "--max-mamba-cache-size ${K:-8}", '"$@"', "$EXTRA",
    "--attention-bakend fa3", "--no-such-flag 3", "--page-size 7", "stray", "--model other/model",
    "--served-model-name k", "--speculative-config '{\"method\": \"mtp\"}'", "--hf-overrides.a=b",
    "\\\n", "\\\n  # aside\n  --tp 2",
])  # fmt: skip


@given(st.lists(st.tuples(launchers, models, st.lists(words, max_size=5)), min_size=1, max_size=4))
def test_the_result_of_any_script_crosses_processes(
    tmp_path_factory: pytest.TempPathFactory, launches: list[tuple[str, str, list[str]]]
) -> None:
    script = tmp_path_factory.mktemp("scripts") / "a.sh"
    script.write_text("".join(f"{start} {model} {' '.join(more)}\n" for start, model, more in launches))
    assert crosses(str(script))
