"""Rows of `fit` written as deployment files are read back as the same launches, and `check` says no more of them
than `plan` does.
"""

from __future__ import annotations

import random
from pathlib import Path

from command_line import run
from fitting.test_search import rows

from hybridcalc.cli.fit import file_of

NAMES = {"cmd": "serve.sh", "compose": "compose.yaml", "kubernetes": "deployment.yaml"}
WRITTEN = 100


def test_rows_are_read_back_as_they_were(tmp_path: Path) -> None:
    """100 rows of both engines, each in one of the forms: planned alike, nothing unresolved."""
    pick, drawn = random.Random(17), list(rows())
    for number, made in enumerate(pick.sample(drawn, WRITTEN)):
        flags = () if made.launch["env"] else (f"{made.engine.name}-yaml",)  # a file of flags holds no variables
        forms = ["cmd", *flags, *(() if made.offer.gpu.amd else ("compose", "kubernetes"))]
        form = forms[number % len(forms)]
        path = tmp_path / f"{number}" / NAMES.get(form, f"{form}.yaml")
        path.parent.mkdir()
        path.write_text(file_of(form, made), encoding="utf-8")
        asked = ("--gpu", made.offer.name, "-L", f"{made.one.workload.longest}")
        read = run("check", str(path), *asked, "--json").document
        assert len(read["deployments"]) == 1
        assert read["deployments"][0]["unresolved"] == []
        single = made.launch_of_one if form in ("compose", "kubernetes") else made.launch
        again = run("compare", str(path), *asked, "--json").document["sides"][0]
        line = [*(f"{name}={value}" for name, value in single["env"].items()), *single["argv"]]
        planned = run("plan", *asked, "--json", "--fail-on", "never", "--", *line).document
        assert (again["launch"], again["requests"]) == (planned["launch"], planned["requests"]), form
        told = {found["rule"] for found in read["findings"]}
        assert told <= {found["rule"] for found in planned["findings"]}, (form, made.launch)
        assert "error" not in {found["severity"] for found in read["findings"]}
