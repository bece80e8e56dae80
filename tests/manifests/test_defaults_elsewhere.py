"""Defaults that stand in another place: a role's for its templates, those of variables in HCL for its blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcalc.manifests import Passed
from hybridcalc.manifests.find import find_files, read_file

UNIT = "[Service]\nExecStart=/usr/bin/vllm serve {{ m }} --tensor-parallel-size {{ tp }} --max-num-seqs {{ n }}\n"
ROLE = {"roles/v/defaults/main.yml": "m: a/b\ntp: 2\nn: 8\n", "roles/v/templates/v.service.j2": UNIT}


def words(folder: Path, name: str, files: dict[str, str], tree: str = "") -> list[str]:
    """The words of the only launch of a file, unknown ones with a question mark."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
    (one,) = read_file(str(folder / name), {}, checked=[str(folder / tree)]).deployments
    return [f"?{word}" if word.why else str(word) for word in one.words]


@pytest.mark.parametrize(
    ("more", "tree", "ranks"),
    [
        ({}, "", "2"),
        ({"group_vars/all.yml": "tp: 4\n"}, "", "4"),
        ({"group_vars/all.yml": "tp: 4\n"}, "roles", "2"),
        ({"group_vars/a/x.yml": "tp: 4\n", "host_vars/h": "tp: 4\n"}, "", "4"),
        ({"group_vars/a.yml": "tp: 4\n", "group_vars/b.yml": "tp: 8\n"}, "", "?{{ tp }}"),
        ({"group_vars/all.yml": "tp: 4\n", "roles/v/vars/main.yml": "tp: 1\n"}, "", "1"),
        ({"group_vars/all.yml": "tp: [\n"}, "", "2"),
    ],
)
def test_a_role_fills_its_templates(tmp_path: Path, more: dict[str, str], tree: str, ranks: str) -> None:
    found = words(tmp_path, "roles/v/templates/v.service.j2", ROLE | more, tree)
    plain = " ".join(found).replace("?$", "?")
    assert plain == f"a/b --tensor-parallel-size {ranks} --max-num-seqs 8"


def test_a_role_fills_its_tasks(tmp_path: Path) -> None:
    command = "--model {{ m }} --max-num-seqs {{ n }}"
    task = f"- docker_container:\n    image: vllm/vllm-openai:v0.30.0\n    command: {command}\n"
    files = ROLE | {"roles/v/tasks/main.yml": task}
    assert words(tmp_path, "roles/v/tasks/main.yml", files) == ["--model", "a/b", "--max-num-seqs", "8"]


HCL = """\
variable "m" {{ default = "a/b" }}
variable "none" {{ type = string }}
locals {{
  n = 8
  more = local.n * 2
}}
job "j" {{ task "t" {{ config {{ image = "vllm/vllm-openai:v0.30.0"
  args = [{0}] }} }} }}
"""


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ('"--model", var.m, "--max-num-seqs=${local.n}"', ["--model", "a/b", "--max-num-seqs=8"]),
        ('"--model=x/${ var.m }", "--max-num-seqs", local.n', ["--model=x/a/b", "--max-num-seqs", "8"]),
        (
            '"--model", var.none, "--max-num-seqs", local.more',
            ["--model", "?var.none", "--max-num-seqs", "?local.more"],
        ),
        ('"--model=${var.m}-${var.none}"', ["?--model=${var.m}-${var.none}"]),
    ],
)
def test_variables_of_a_file_are_filled_in(tmp_path: Path, args: str, expected: list[str]) -> None:
    assert words(tmp_path, "j.nomad.hcl", {"j.nomad.hcl": HCL.format(args)}) == expected


def test_a_default_that_another_file_replaces_is_none(tmp_path: Path) -> None:
    files = {"j.tf": HCL.format('"--model", var.m'), "terraform.tfvars": 'm = "c/d"\n'}
    assert words(tmp_path, "j.tf", files) == ["--model", "?var.m"]


RAY = """\
from ray.serve.llm import LLMConfig, build_openai_app
engine = dict(tensor_parallel_size=2, max_num_seqs=64, enforce_eager=True)
config = LLMConfig(
    model_loading_config=dict(model_id="served", model_source="a/b"),
    engine_kwargs=engine,
)
app = build_openai_app({"llm_configs": [config]})
"""
RAY_WORDS = ["--model", "a/b", "--tensor-parallel-size", "2", "--max-num-seqs", "64", "--enforce-eager"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", RAY_WORDS),
        ('dict(model_id="served", model_source="a/b")', '{"model_id": "a/b"}', RAY_WORDS),
        ('dict(model_id="served", model_source="a/b")', 'ModelLoadingConfig(model_id="a/b")', RAY_WORDS),
        ('model_id="served", model_source="a/b"', 'model_id="a/b", model_source={"bucket_uri": "s3://x"}', RAY_WORDS),
        ("engine = dict(", "engine = dict(**others, ", ["--model", "a/b", "?$@"]),
    ],
)
def test_ray_serve_is_read_by_name(tmp_path: Path, old: str, new: str, expected: list[str]) -> None:
    assert words(tmp_path, "serve.py", {"serve.py": RAY.replace(old, new) if old else RAY}) == expected


def test_ray_serve_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(RAY, encoding="utf-8")
    (tmp_path / "other.py").write_text("from ray import serve\nWorkspace(engine_args=1)\n", encoding="utf-8")
    found = list(find_files([str(tmp_path)]))
    assert found == [Passed(str(tmp_path / "serve.py"))]
