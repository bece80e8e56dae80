"""Files are found, told apart and read within bounds; what goes wrong with one is that one's trouble."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Passed, Trouble
from hybridcalc.manifests.find import LARGEST_FILE_BYTES, Contents, find_files, read_file

LAUNCH = "sglang serve kimi-k3 --tp 8\n"


def read(path: Path) -> Contents:
    return read_file(str(path), {})


def names(*paths: Path) -> list[str]:
    return [os.path.basename(p) for p in find_files([str(path) for path in paths]) if isinstance(p, str)]


def test_a_walk_takes_deployment_files_and_leaves_the_rest(tmp_path: Path) -> None:
    for name in (
        "Makefile",
        "a.tf",
        "a.yaml",
        "b.yml",
        "c.sh",
        "Dockerfile",
        "Dockerfile.cuda",
        "d.service",
        "notes.md",
        "x.py",
        "y.json",
    ):
        (tmp_path / name).write_text("x")
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "data").write_text("no script")
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "z.yaml").write_text("x")
    assert names(tmp_path) == [
        "Dockerfile",
        "Dockerfile.cuda",
        "Makefile",
        "a.tf",
        "a.yaml",
        "b.yml",
        "c.sh",
        "d.service",
        "run",
    ]
    assert names(tmp_path / "*.y*ml", tmp_path / "a.yaml") == ["a.yaml", "b.yml"]


def test_gitignore_is_obeyed_from_the_root_of_the_repository_down(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("build/\n*.local.yaml\n")
    for path in ("build/a.yaml", "deploy/b.yaml", "deploy/c.local.yaml", "deploy/keep/d.yaml", "deploy/keep/e.yaml"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    (tmp_path / "deploy" / "keep" / ".gitignore").write_text("*.yaml\n!d.yaml\n")
    assert names(tmp_path) == ["b.yaml", "d.yaml"]
    assert names(tmp_path / "deploy") == ["b.yaml", "d.yaml"]
    assert names(tmp_path / "build" / "a.yaml") == ["a.yaml"]  # named, so meant


def test_links_are_not_followed_in_circles(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.yaml").symlink_to(tmp_path / "self.yaml")
    found = names(tmp_path)
    assert found == ["a.yaml", "self.yaml"]
    (trouble,) = read(tmp_path / "self.yaml").troubles
    assert "too many levels of symbolic links" in trouble.message


def test_a_pattern_of_any_depth_follows_no_link_to_a_folder(tmp_path: Path) -> None:
    """Two links to the folder itself make 2**40 paths."""
    (tmp_path / "d" / "b").mkdir(parents=True)
    for name in ("d/a.yaml", "d/b/c.yaml", "d/b/c.txt", "d/.x.yaml"):
        (tmp_path / name).write_text("x")
    for name in "pq":
        (tmp_path / "d" / name).symlink_to(tmp_path)
    assert names(tmp_path / "d" / "**" / "*.yaml") == ["a.yaml", "c.yaml"]
    assert names(tmp_path / "**" / "b" / "[a-c]*.y?ml") == ["c.yaml"]
    assert names(tmp_path / "d" / "**" / "*.nothing") == []


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "huge.yaml").write_bytes(b"sglang: x\n")
    with (tmp_path / "huge.yaml").open("r+b") as stream:
        stream.truncate(100 * 2**20)
    (tmp_path / "binary.yaml").write_bytes(b"sglang\0" * 100)
    (tmp_path / "wide.yaml").write_text("# sglang\na: 1\n", encoding="utf-16")
    (tmp_path / "unmarked.yaml").write_text("# sglang\na: 1\n", encoding="utf-16-le")
    (tmp_path / "broken.yaml").write_text("# sglang\na: [\n")
    os.mkfifo(tmp_path / "pipe.yaml")
    expected = {
        "huge.yaml": "larger than 4 MiB",
        "binary.yaml": "a binary file",
        "wide.yaml": "text in UTF-16",
        "unmarked.yaml": "text in UTF-16",
        "broken.yaml": "no YAML",
        "pipe.yaml": "not a regular file",
        "gone.yaml": "no such file",
    }
    for name, message in expected.items():
        (trouble,) = read(tmp_path / name).troubles
        assert (message in trouble.message, trouble.unreadable, trouble.path) == (True, True, str(tmp_path / name))
    assert LARGEST_FILE_BYTES < 100 * 2**20


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(LAUNCH)
    (tmp_path / "a.yaml").chmod(0)
    (trouble,) = read(tmp_path / "a.yaml").troubles
    assert "permission denied" in trouble.message


def test_a_path_that_is_not_there_is_trouble_of_its_own(tmp_path: Path) -> None:
    (trouble,) = [found for found in find_files([str(tmp_path / "*.none")]) if isinstance(found, Trouble)]
    assert trouble.message == "no file matches"


def test_a_template_is_to_be_rendered(tmp_path: Path) -> None:
    chart = tmp_path / "deployment.yaml"
    chart.write_text("kind: Deployment\nspec:\n  {{- if .Values.sglang }}\n  args: []\n  {{- end }}\n")
    (trouble,) = read(chart).troubles
    assert (trouble.line, trouble.message, trouble.unreadable) == (3, "a template", False)
    assert "helm template" in trouble.fix


CONTENTS = {
    "script without a name": ("#!/bin/bash\n" + LAUNCH, "script"),
    "script by content": (LAUNCH, "script"),
    "unit by content": ("[Unit]\nA=b\n[Service]\nExecStart=/usr/bin/" + LAUNCH, "systemd"),
    "dockerfile by content": ("FROM lmsysorg/sglang\nCMD " + LAUNCH, "Dockerfile"),
    "yaml by content": ("command: [sglang, serve, kimi-k3]\nargs: [--tp, '8']\n", "container"),
    "json by content": ('{"kind": "Pod", "spec": {"containers": [{"command": ["sglang", "serve", "x"]}]}}', "Pod"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), CONTENTS.values(), ids=CONTENTS)
def test_files_are_told_apart_by_content(tmp_path: Path, text: str, kind: str) -> None:
    (tmp_path / "file").write_text(text)
    (deployment,) = read(tmp_path / "file").deployments
    assert (deployment.kind, deployment.engine) == (kind, "sglang")


def test_a_config_map_of_a_neighbour_is_found_and_a_host_file_is_not(tmp_path: Path) -> None:
    (tmp_path / "env.yaml").write_text("kind: ConfigMap\nmetadata: {name: sizes}\ndata: {TP: '4'}\n")
    (tmp_path / "pod.yaml").write_text(
        "kind: Pod\nspec:\n  containers:\n"
        "    - command: [sglang, serve, kimi-k3, --tp, $(TP), --config, /etc/hostname]\n"
        "      envFrom: [{configMapRef: {name: sizes}}]\n"
    )
    (pod,) = read(tmp_path / "pod.yaml").deployments
    assert pod.words[:3] == ("kimi-k3", "--tp", "4")
    assert pod.words[3:] == ("--config", "/etc/hostname")


@pytest.mark.parametrize(
    "text",
    [
        "Serve it:\n\n    python3 -m sglang.launch_server --model-path a/b --tp 2\n",
        "```bash\nCUDA_VISIBLE_DEVICES=0 uv run vllm serve a/b\n```\n",
        "```bash\ndocker run --gpus all \\\n    vllm/vllm-openai:v0.20.0 \\\n    --model a/b\n```\n",
        '.. code-block:: yaml\n\n   modelSpec:\n   - repository: "lmcache/vllm-openai"\n     tag: latest\n',
    ],
)
def test_a_guide_that_shows_a_launch_or_its_image_is_passed_over_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "guide.md").write_text(f"# A guide\n\n{text}")
    (tmp_path / "prose.md").write_text("We use vllm here; the image `vllm/vllm-openai` is large.\n")
    (passed,) = find_files([str(tmp_path)])
    assert isinstance(passed, Passed) and os.path.basename(passed.path) == "guide.md"


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec:\n  vllmConfig:\n"
        "    tensorParallelSize: {type: integer}\n    gpuMemoryUtilization: {type: string}\n",
        '{"type": "object", "properties": {"vllmConfig": {"properties": {"maxModelLen": {"type": "integer"}, '
        '"maxNumSeqs": {"type": "integer"}, "tensorParallelSize": {"type": "integer"}}}}}',
    ],
)
def test_what_defines_fields_is_no_deployment(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    assert not read(path).deployments


def test_comments_in_an_array_hold_no_quotes_and_no_brackets(tmp_path: Path) -> None:
    """A comment's apostrophe opens no quote, and what it closes in brackets does not end the array."""
    path = tmp_path / "a.sh"
    path.write_text(
        "ARGS=(\n  --tp 2\n  # the server's own 1) default\n  --page-size $(echo 64)\n)\n"
        'sglang serve kimi-k3 "${ARGS[@]}"\n'
    )
    (found,) = read(path).deployments
    assert [str(word) for word in found.words][-3:-1] == ["2", "--page-size"]


def test_an_image_built_on_an_engines_own_serves_a_positional_model(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("IMAGE=lmcache/vllm-openai:2025-05-27-v1\ndocker run --gpus all $IMAGE org/model --port 8200\n")
    (found,) = read(path).deployments
    assert found.engine == "vllm" and "org/model" in [str(word) for word in found.words]


def test_a_script_in_double_quotes_has_what_stands_in_its_single_quotes_expanded(tmp_path: Path) -> None:
    """The outer shell puts the value between the inner quotes: here nobody knows it, and it is no text of its own."""
    path = tmp_path / "a.sh"
    path.write_text("S=$(ask)\nN=4\nbash -c \"vllm serve org/model --max-num-seqs '${S}' --max-model-len '$N'\"\n")
    (found,) = read(path).deployments
    _, _, unknown, _, known = found.words
    assert unknown.why and (str(known), known.why) == ("4", "")


@pytest.mark.parametrize(
    "start", ["command: [serve, org/model, --max-num-seqs, '4']", "command: serve org/model -tp 2"]
)
def test_an_entrypoint_of_an_engine_takes_serve(tmp_path: Path, start: str) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(f"services:\n  a:\n    image: somebody/vllm-openai:v1\n    {start}\n")
    (found,) = read(path).deployments
    assert found.engine == "vllm" and str(found.words[0]) == "org/model"


def test_one_device_id_may_name_several_gpus(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    device = '{driver: nvidia, device_ids: ["${GPUS:-0,1}"], capabilities: [gpu]}'
    path.write_text(
        "services:\n  a:\n    image: vllm/vllm-openai:v0.20.0\n    command: --model org/model -tp 2\n"
        f"    deploy: {{resources: {{reservations: {{devices: [{device}]}}}}}}\n"
    )
    (found,) = read(path).deployments
    assert found.hardware.gpus == 2


@pytest.mark.parametrize("program", [program for row in ENGINES.rows.values() for program in row.starter.programs])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "#!/bin/bash\nset -e\n{} --port 1\n"),
        ("compose.yaml", "services:\n  a:\n    image: somebody/server\n    command: {} --port 1\n"),
        (
            "pod.yaml",
            "apiVersion: v1\nkind: Pod\nspec:\n  containers: [{{name: a, command: [bash, -c, {} --port 1]}}]\n",
        ),
        ("Dockerfile", "FROM x\nCMD {} --port 1\n"),
        ("guide.md", "# Serve\n\n```bash\n{} --port 1\n```\n"),
    ],
)
def test_a_program_of_any_engine_is_found_in_a_file_of_any_kind(
    tmp_path: Path, program: tuple[str, ...], name: str, text: str
) -> None:
    """Also one whose name does not hold the engine's."""
    path = tmp_path / name
    path.write_text(text.format(" ".join(program)))
    (found,) = read(path).deployments
    assert program in ENGINES.rows[found.engine].starter.programs
