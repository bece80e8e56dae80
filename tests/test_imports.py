"""What importing and answering may load: start-up is part of the product."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("pydantic", "rich", "yaml", "numpy", "torch")


def _loaded(code: str) -> set[str]:
    script = f"{code}\nimport sys; print(' '.join(m for m in {HEAVY!r} if m in sys.modules), file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert _loaded("import hybridcalc") == set()


def test_the_public_names_load_nothing_heavy() -> None:
    assert _loaded("from hybridcalc import Architecture, load_model, sglang, vllm; load_model('kimi-k3')") == set()


def test_a_json_ratio_loads_nothing_heavy() -> None:
    """The fast path: no pydantic, rich, yaml, numpy or torch between the question and the answer."""
    assert (
        _loaded("from hybridcalc.cli.app import execute; execute(['ratio', 'kimi-k3', '-L', '9216', '--json'])")
        == set()
    )


def test_a_json_ratio_from_a_log_loads_nothing_heavy() -> None:
    line = "['ratio', '--log', 'examples/kimi-k3-boot.log', '-L', '9216', '--json']"
    assert _loaded(f"from hybridcalc.cli.app import execute; execute({line})") == set()


def test_the_public_surface_is_what_it_says() -> None:
    import hybridcalc

    assert hybridcalc.__all__ == dir(hybridcalc)
    assert all(getattr(hybridcalc, name) is not None for name in hybridcalc.__all__)


def test_a_check_loads_no_pydantic() -> None:
    """Only a hybridcalc.yaml is read with it."""
    line = "['check', 'examples/deployments/good/deployment.yaml', '--json']"
    loaded = _loaded(f"from hybridcalc.cli.app import execute; assert execute({line}) == 0")
    assert {"pydantic", "rich", "torch", "numpy"} & loaded == set()


def test_a_plan_of_one_engine_loads_nothing_of_another() -> None:
    line = "['plan', '-L', '8k', '--available', '40GiB', '--', 'vllm', 'serve', 'qwen3-next-80b-a3b', '-tp', '2']"
    code = (
        f"import sys; from hybridcalc.cli.app import execute; assert execute({line}) == 0;"
        "assert [m for m in sys.modules if m.startswith('hybridcalc.engines.sglang')] == []"
    )
    subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
