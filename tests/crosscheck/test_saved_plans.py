"""``hybridcalc verify --plan``: every figure that a saved plan states is held, and what is no plan is said."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from hypothesis import given
from hypothesis import strategies as st
from verified import answer, complaint, text

from hybridcalc import saved_plan


def leaves(part: Any, place: tuple[int | str, ...] = ()) -> Iterator[tuple[int | str, ...]]:
    """Places of all whole numbers in a document."""
    if isinstance(part, int) and not isinstance(part, bool):
        yield place
    elif isinstance(part, dict | list):
        for step, value in part.items() if isinstance(part, dict) else enumerate(part):
            yield from leaves(value, (*place, step))


class TestPlanFiles:
    @pytest.fixture
    def plan(self, tmp_path: Path) -> Any:
        flags = ("--speculative-algorithm", "EAGLE", "--speculative-num-draft-tokens", "4")
        document = run("plan", "qwen3.6-27b", "--tp", "2", "--rest", "20GiB", *flags, "--json").document

        def written(**changed: Any) -> str:
            path = tmp_path / "plan.json"
            own = {name: value for name, value in changed.items() if name in document["engine_figures"]}
            others = {name: value for name, value in changed.items() if name in document or name not in own}
            path.write_text(json.dumps({**document, "engine_figures": document["engine_figures"] | own, **others}))
            return str(path)

        write: Any = written
        write.document = document
        return write

    def test_the_figures_it_states_are_held_against_the_tensors(self, plan: Any) -> None:
        document = answer("--plan", plan(), "--device", "meta")
        assert {figure["figure"] for figure in document["plan"]} >= {
            "alloc_mamba.conv_state",
            "alloc_mamba.intermediate_ssm",
            "alloc_kv",
            "bytes_per_slot",
            "uncharged_bytes",
            "budget.draft states.charged_bytes",
        }
        assert document["ok"] and all(figure["ok"] for figure in document["plan"])

    def test_a_figure_that_is_off_is_named_with_its_difference(self, plan: Any) -> None:
        states = plan.document["engine_figures"]["alloc_mamba"]
        wrong = states | {"ssm_state": states["ssm_state"] - 512}
        said = text("--plan", plan(alloc_mamba=wrong), "--device", "meta", code=1)
        assert said.startswith("the tensors agree, a check does not")
        said = " ".join(said.split())
        assert f"alloc_mamba.ssm_state: the plan states {wrong['ssm_state']:,}, the tensors give" in said
        assert ", 512 more" in said

    def test_a_plan_is_read_from_a_pipe(self, plan: Any) -> None:
        ran = run("verify", "--plan", "-", "--device", "meta", stdin=json.dumps(plan.document).encode())
        assert (ran.code, ran.out.splitlines()[0]) == (0, "every byte agrees")

    @pytest.mark.parametrize(
        ("changed", "said"),
        [
            ({"schema": "hybridcalc.ratio/1"}, "is no answer of plan --json"),
            ({"starts": False}, "does not start"),
            ({"arguments": None}, "states no arguments"),
            ({"arguments": {"tp": 2}}, "arguments.tp is no argument of SGLang"),
            ({"arguments": {"tp_size": "two"}}, "arguments.tp_size 'two' is not a whole number from 1 to 4,096"),
            ({"arguments": {"tp_size": 0}}, "arguments.tp_size 0 is not a whole number"),
            ({"arguments": {"tp_size": 10**400}}, "arguments.tp_size a number of hundreds of digits is not"),
            ({"arguments": {"mamba_radix_cache_strategy": "x"}}, "mamba_radix_cache_strategy 'x' is not one of"),
            ({"engine": "trt"}, "engine 'trt' is not sglang or vllm"),
            ({"schema": "hybridcalc.plan/1"}, "has schema 'hybridcalc.plan/1'; hybridcalc.plan/2 is read here"),
            ({"compare": []}, "answers plan --compare: that is many plans"),
            ({"max_mamba_cache_size": -1}, "max_mamba_cache_size -1 is no count"),
            ({"max_total_num_tokens": True}, "max_total_num_tokens True is no count"),
            ({"max_total_num_tokens": 10**18}, "max_total_num_tokens 1000000000000000000 is no count"),
            ({"alloc_mamba": 5}, "alloc_mamba.pool_size is absent"),
            ({"bytes_per_slot": None}, "bytes_per_slot None is not a whole number"),
            ({"uncharged_bytes": "9"}, "uncharged_bytes '9' is not a whole number"),
            ({"budget": []}, "budget.state pool.charged_bytes is absent"),
            ({"memory": {"rest_gib": "20"}}, "memory.rest_gib '20' is no memory"),
            ({"engine_figures": None}, "engine_figures is absent"),
            ({"model": "no-such-model"}, "no-such-model"),
        ],
    )
    def test_what_is_no_plan(self, plan: Any, changed: dict[str, Any], said: str) -> None:
        assert said in complaint("--plan", plan(**changed), "--device", "meta")

    def test_a_plan_brings_its_own_flags(self, plan: Any) -> None:
        assert "brings its own flags" in complaint("--plan", plan(), "--tp", "4")
        assert "leave out the launch line" in complaint("--plan", plan(), "--rest", "4GiB")
        assert "exclude each other" in complaint("--plan", plan(), "--all")
        assert "brings its own model, not kimi-k3" in complaint("kimi-k3", "--plan", plan())
        assert "environment and version" in complaint("--plan", plan(), "--engine-version", "0.5.16")

    def test_every_figure_it_states_is_held(self, plan: Any) -> None:
        """Each number of the plan, one more than it was: a difference, named in the answer."""
        unheld = {"schema", "steps", "workload", "requests", "requests_per_worker", "ratio", "idle_percent", "memory"}
        unheld |= {"findings", "suggestions", "notes", "log_lines", "arguments", "launch", "engine_figures"}
        of_the_workload = {"state_requests", "kv_requests"}
        figures = plan.document["engine_figures"] | {k: v for k, v in plan.document.items() if k not in unheld}
        for name, value in figures.items():
            for place in leaves(value) if name not in of_the_workload else ():
                changed = json.loads(json.dumps(figures))
                *path, last = name, *place
                part = changed
                for step in path:
                    part = part[step]
                part[last] += 1
                held = answer("--plan", plan(**changed), "--device", "meta", code=1)["plan"]
                assert not all(figure["ok"] for figure in held), (name, place)

    def test_a_plan_that_is_cut_short_or_endless_says_where(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "plan.json"
        monkeypatch.chdir(tmp_path)
        path.write_text('{"schema":\n')
        assert "plan.json:2:1 is not JSON from there on" in complaint("--plan", path.name)
        path.write_text(" ")
        assert "plan.json is empty" in complaint("--plan", path.name)
        path.write_bytes(b"[" * 100_000)
        assert "nests too deep" in complaint("--plan", path.name)
        monkeypatch.setattr(saved_plan, "LARGEST_PLAN_BYTES", 2**20)
        path.write_bytes(b" " * (2**20 + 1))
        assert "has more than 1 MiB" in complaint("--plan", path.name)
        assert "cannot be read: no such file" in complaint("--plan", "none.json")

    def test_a_pipe_whose_plan_failed_is_empty(self) -> None:
        ran = run("verify", "--plan", "-")
        assert (ran.code, ran.err.splitlines()[0]) == (2, "error: --plan - is empty")

    @given(st.binary(max_size=60))
    def test_any_bytes_get_one_line(self, data: bytes) -> None:
        path = Path(tempfile.gettempdir()) / f"hybridcalc-{os.getpid()}.json"
        path.write_bytes(data)
        try:
            complaint("--plan", str(path))
        finally:
            path.unlink()
