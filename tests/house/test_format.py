"""A kind of deployment file is a reader and a line of FORMATS: it is found in folders and its launches are checked."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hybridcalc.manifests import Deployment, find
from hybridcalc.manifests.find import FORMATS, Format, find_files, read_file
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Source, Text
from hybridcalc.shell.variables import Outside


def read_runfile(text: Text, outside: Outside, beside: Callable[[str], Source | None]) -> Iterator[Deployment]:
    """``web: vllm serve ...`` of a file of programs."""
    for match in re.finditer(r"(?m)^(\w+): (.*)$", text.text):
        for launch in run_script(text.part(match.start(2), match.end(2)), {}, outside).launches:
            yield Deployment(text.source, "runfile", match[1], launch)


def test_a_kind_of_file_is_a_reader_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "runfile").write_text("web: vllm serve kimi-k3 -tp 8\nclock: cron\n")
    assert list(find_files([str(tmp_path)])) == []
    form = Format("runfile", re.compile("runfile"), lambda text: False, read_runfile)
    monkeypatch.setattr(find, "FORMATS", (*FORMATS, form))
    (path,) = find_files([str(tmp_path)])
    (web,) = read_file(str(path), {}).deployments
    assert (web.kind, web.name, web.engine, web.words) == ("runfile", "web", "vllm", ("kimi-k3", "-tp", "8"))
    assert (web.words[0].place.line, web.words[0].place.column) == (1, 17)
