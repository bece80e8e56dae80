"""Rows of `fit` written as deployment files are read back as the same launches, of which `check` has nothing to say:
what is known of them is set aside in the file.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from command_line import run
from fitting.test_search import rows

import hybridcalc
from hybridcalc.architecture.presets import model_names
from hybridcalc.checks.written import written
from hybridcalc.cli.fit import to_emit
from hybridcalc.engines import ENGINES
from hybridcalc.engines.shapes import fitting_of
from hybridcalc.errors import HybridcalcError
from hybridcalc.fitting.candidates import Deployment

NAMES = {"cmd": "serve.sh", "compose": "compose.yaml", "kubernetes": "deployment.yaml"}
WRITTEN = 100


def text_of(form: str, made: Deployment) -> str:
    return written(form, to_emit(form, made), made.one.workload)[0]


def test_rows_are_read_back_as_they_were(tmp_path: Path) -> None:
    """100 rows of both engines, each in one of the forms: planned alike, nothing unresolved."""
    pick, drawn = random.Random(17), list(rows())
    for number, made in enumerate(pick.sample(drawn, WRITTEN)):
        flags = () if made.launch["env"] else (f"{made.engine.name}-yaml",)  # a file of flags holds no variables
        forms = ["cmd", *flags, *(() if made.offer.gpu.amd else ("compose", "kubernetes"))]
        form = forms[number % len(forms)]
        path = tmp_path / f"{number}" / NAMES.get(form, f"{form}.yaml")
        path.parent.mkdir()
        path.write_text(text_of(form, made), encoding="utf-8")
        asked = ("--gpu", made.offer.name, "-L", f"{made.one.workload.longest}")
        single, times = made.started(one=form == "kubernetes")
        read = run("check", str(path), *asked, "--json").document
        assert len(read["deployments"]) in (1, times)
        assert read["deployments"][0]["unresolved"] == []
        assert read["deployments"][0]["nodes"] == (1 if form.endswith("-yaml") else made.nodes)
        again = run("compare", str(path), *asked, "--json").document["sides"][0]
        line = [*(f"{name}={value}" for name, value in single["env"].items()), *single["argv"]]
        planned = run("plan", *asked, "--json", "--fail-on", "never", "--", *line).document
        assert (again["launch"], again["requests"]) == (planned["launch"], planned["requests"]), form
        assert {found["suppressed"] is not None for found in read["findings"]} <= {True}, (form, made.launch)
        assert "error" not in {found["severity"] for found in read["findings"]}


EVERY = (("16k", 20, "h200,b200,l40s"), ("64k", 8, "h100,rtx-4090"))


@pytest.mark.parametrize("name", model_names())
def test_no_engine_writes_what_check_warns_of(name: str, tmp_path: Path) -> None:
    """Of every preset, the cheapest of each engine where one fits, of long and of short requests by turns: one
    deployment, exit 0, and no finding, whether the GPU and the length are said or not; what is set aside is what the
    plan of the same line says too.
    """
    for number, engine in enumerate(ENGINES, len(name)):
        length, count, gpus = EVERY[number % 2]
        try:
            made = hybridcalc.fit(name, length=length, concurrency=count, gpu=gpus, engine=engine, top=1).deployments
        except HybridcalcError:
            continue
        for each in made:
            form = ("kubernetes", "compose", "cmd")[number % 3]
            path = tmp_path / f"{number}" / NAMES[form]
            path.parent.mkdir()
            if each.nodes > 1 and not fitting_of(each.engine).nodes.flags:
                continue  # other programs serve on its other nodes
            path.write_text(text_of(form, each), encoding="utf-8")
            _, times = each.started(one=form == "kubernetes")
            seen = f"{each.gpus // times // each.nodes}x{each.offer.name}"
            done = run("check", str(path), "--gpu", seen, "-L", length, "--json", "--fail-on", "note")
            read, told = done.document, {found.rule for found in each.plan.findings}
            count = times if "device_ids" in path.read_text(encoding="utf-8") else 1  # a service for each
            assert (done.code, len(read["deployments"]), read["deployments"][0]["unresolved"]) == (0, count, [])
            assert read["deployments"][0]["nodes"] == each.nodes
            assert {found["rule"] for found in read["findings"]} <= told | {"HC214"}
            assert run("check", str(path), "--fail-on", "note").code == 0
