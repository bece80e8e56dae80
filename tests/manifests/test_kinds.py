"""Kinds of files that start an engine: each is read, with the words, the model and the place that the file says."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcalc.checks.run import check_paths
from hybridcalc.checks.settings import Settings
from hybridcalc.engines import ENGINES
from hybridcalc.manifests import Deployment
from hybridcalc.manifests.find import read_file


def read(folder: Path, name: str, text: str, **outside: str) -> list[Deployment]:
    (folder / name).write_text(text, encoding="utf-8")
    contents = read_file(str(folder / name), outside)
    assert contents.troubles == ()
    return list(contents.deployments)


def shown(deployment: Deployment) -> tuple[str, str | None, str]:
    """Engine, the model beside the words, and the words; unknown ones with a question mark."""
    words = " ".join(f"?{word}" if word.why else str(word) for word in deployment.words)
    return deployment.engine, None if deployment.model is None else str(deployment.model), words


KINDS = {
    "ray serve": (
        "serve.yaml",
        "applications:\n- args:\n    llm_configs:\n    - model_loading_config: {model_source: org/m}\n"
        "      engine_kwargs: {max_model_len: 8192}\n",
        [("vllm", "org/m", "--max-model-len 8192")],
    ),
    "map of arguments": (
        "cases.json",
        '{"cases": [{"command_type": "vllm_serve", "args": {"model": "org/m", "max-num-seqs": 4, '
        '"tensor-parallel-size": {"a": 8}}}]}',
        [("vllm", "org/m", '--model org/m --max-num-seqs 4 --tensor-parallel-size ?{"a": 8}')],
    ),
    "start command of a cloud": (
        "pod.json",
        '{"imageName": "vllm/vllm-openai:v0.29.0", "dockerStartCmd": ["--model", "org/m", "--max-num-seqs", "4"]}',
        [("vllm", None, "--model org/m --max-num-seqs 4")],
    ),
    "variables as flags": (
        "nim.yaml",
        "image: {repository: nvcr.io/nim/nvidia/some-model, tag: '1'}\n"
        "env: {NIM_MAX_MODEL_LEN: '8192', NIM_PASSTHROUGH_ARGS: --max-num-seqs 4}\n",
        [("vllm", "some-model", "--max-model-len 8192 --max-num-seqs 4")],
    ),
    "fields beside the engine": (
        "m.yaml",
        "name: m\nbackend: vllm\nparameters: {model: org/m}\nmax_model_len: 8192\n",
        [("vllm", "org/m", "--max-model-len 8192")],
    ),
    "flags beside the engine": (
        "l.yaml",
        "models:\n  m:\n    engine: sglang\n    extra: {sglang_flags: [--model-path, org/m, --tp, '2']}\n",
        [("sglang", None, "--model-path org/m --tp 2")],
    ),
    "flags behind shared ones": (
        "recipe.yaml",
        "model: {model_id: org/m, min_vllm_version: '1', base_args: [--trust-remote-code]}\n"
        "variants:\n  a:\n    extra_args: [--max-num-seqs, '4']\n    on: {x: {extra_args: [--max-model-len, '8']}}\n",
        [
            ("vllm", "org/m", "--trust-remote-code --max-num-seqs 4"),
            ("vllm", "org/m", "--trust-remote-code --max-num-seqs 4 --max-model-len 8"),
        ],
    ),
    "ansible": (
        "play.yml",
        "- hosts: gpu\n  vars: {len: 8192}\n  tasks:\n  - community.docker.docker_container:\n"
        "      image: vllm/vllm-openai\n      command: --model {{ m }} --max-model-len {{ len }} --max-num-seqs 4\n",
        [("vllm", None, "--model ?${{ m }} --max-model-len 8192 --max-num-seqs 4")],
    ),
    "arguments for two programs": (
        "task.yaml",
        "task:\n  script: query.sh\n  container: vllm/vllm-openai:v0.29.0\n"
        "  args: [--model, org/m, --max-model-len, '8', --max-num-seqs, '4', --, --save, /x]\n",
        [("vllm", None, "--model org/m --max-model-len 8 --max-num-seqs 4")],
    ),
    "kubeai of one flag": (
        "one.yaml",
        "kind: Model\nspec: {url: hf://org/m, engine: VLLM, args: [--max-model-len=8192]}\n",
        [("vllm", "hf://org/m", "--max-model-len=8192")],
    ),
    "router": (
        "presets.ini",
        "[*]\nn-gpu-layers = 99\n[qwen]\nmodel = /m/a.gguf\nc = 8192  ; tokens\nno-mmap = 1\n"
        "[org/m-GGUF:Q4_K_M]\nparallel = 2\nkv-unified = false\n[server]\nport = 1\n",
        [
            ("llama.cpp", None, "--n-gpu-layers 99 --model /m/a.gguf -c 8192"),
            ("llama.cpp", "org/m-GGUF:Q4_K_M", "--n-gpu-layers 99 --parallel 2"),
        ],
    ),
    "service of a cloud": (
        "q.dstack.yml",
        "model: org/m\nimage: vllm/vllm-openai:v0.29.0\ncommands: [vllm serve org/m --max-num-seqs 4]\n",
        [("vllm", None, "org/m --max-num-seqs 4")],
    ),
    "kubeai": (
        "k.yaml",
        "kind: Model\nspec: {url: hf://org/m, engine: VLLM, args: [--max-model-len=8192, --max-num-seqs=4]}\n",
        [("vllm", "hf://org/m", "--max-model-len=8192 --max-num-seqs=4")],
    ),
    "workflow": (
        ".w.yml",
        "env: {LEN: '8192'}\njobs:\n  a:\n    steps:\n    - run: |\n"
        "        vllm serve org/m --max-model-len $LEN --max-num-seqs ${{ matrix.n }}\n",
        [("vllm", None, "org/m --max-model-len 8192 --max-num-seqs ?${{ matrix.n }}")],
    ),
    "guide in a field": (
        "g.yaml",
        "guide: |\n  It's `vllm serve`:\n  ```bash\n  $ vllm serve org/m --max-num-seqs <n> ...\n  ```\n"
        "  don't `vllm serve x`\n",
        [("vllm", None, "org/m --max-num-seqs ?${<n>} ?...")],
    ),
    "prose in a field": ("p.yaml", "about: don't put it into `vllm serve x` or 'so\n", []),
    "guide": (
        "g.md",
        "Don't:\n```\nM=org/m\n```\n```sh\nvllm serve $M --max-num-seqs 4```\n`vllm serve x`\n"
        "```yaml\nservices: {a: {image: vllm/vllm-openai, command: --model org/n --max-num-seqs 2}}\n```\n",
        [("vllm", None, "org/m --max-num-seqs 4"), ("vllm", None, "--model org/n --max-num-seqs 2")],
    ),
    "makefile": (
        "Makefile",
        "MODEL ?= org/m\nARGS := --max-model-len 8192 \\\n  --max-num-seqs 4\nserve:\n\t@export A=$$(id); \\\n"
        "\tvllm serve $(MODEL) $(ARGS)\n",
        [("vllm", None, "org/m --max-model-len 8192 --max-num-seqs 4")],
    ),
    "justfile": (
        "justfile",
        "model := env('MODEL', 'org/m')\nserve n='4':\n    @vllm serve {{model}} \\\n      --max-num-seqs {{ n }}\n",
        [("vllm", None, "org/m --max-num-seqs 4")],
    ),
    "procfile": (
        "Procfile",
        "web: vllm serve org/m\nx: sh -c 'sglang serve org/n'\n",
        [("vllm", None, "org/m"), ("sglang", None, "org/n")],
    ),
    "supervisord": (
        "supervisord.conf",
        '[program:v]\ncommand=/v/vllm serve org/m\n  --max-num-seqs %(ENV_N)s\nenvironment=A="x",N="4"\n',
        [("vllm", None, "org/m --max-num-seqs 4")],
    ),
    "tasks": (
        "mise.toml",
        "[env]\nN = '4'\n[tasks.a]\nrun = \"vllm serve org/m --max-num-seqs $N\"\n[tasks.b]\nrun = 'vllm serve x'\n",
        [("vllm", None, "org/m --max-num-seqs 4"), ("vllm", None, "x")],
    ),
    "batch": (
        "a.cmd",
        "@echo vllm serve no\r\nrem vllm serve no\r\nset N=4\r\nvllm serve org/m ^\r\n  --max-num-seqs %N%\r\n",
        [("vllm", None, "org/m --max-num-seqs 4")],
    ),
    "powershell": (
        "a.ps1",
        "$N = '4'\nWrite-Host 'vllm serve no'\ndocker run `\n  vllm/vllm-openai:v1 `\n"
        "  --model org/m --max-num-seqs $N\n",
        [("vllm", None, "--model org/m --max-num-seqs 4")],
    ),
    "nomad": (
        "a.nomad",
        'task "v" { config { image = "vllm/vllm-openai:v1" # x\n'
        ' args = ["--model", "org/m", "--max-num-seqs", "${n}"] } }',
        [("vllm", None, "--model org/m --max-num-seqs ?${n}")],
    ),
    "terraform": (
        "a.tf",
        'resource "x" "y" {\n d = jsonencode([{ command = ["vllm", "serve", var.m, "--max-num-seqs", "4"] }])\n'
        " u = <<-EOF\n  vllm serve org/m\n EOF\n}\n",
        [("vllm", None, "?var.m --max-num-seqs 4"), ("vllm", None, "org/m")],
    ),
    "python": (
        "a.py",
        '"vllm serve no"\nimport sys\nfrom vllm import LLM\nimport sglang as sgl\nM, N = "no", 4\nM2 = "org/m"\n'
        "LLM(M2, max_num_seqs=4, enable_prefix_caching=False, quantization=None)\n"
        "sgl.Engine(model_path=M2, tp_size=x)\n"
        'c = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", M2]\nif x: c += ["--a"]\n'
        'run(f"vllm serve {M2} --max-num-seqs {y}")\nprint("vllm serve no")\n',
        [
            ("vllm", None, "--model org/m --max-num-seqs 4 --no-enable-prefix-caching"),
            ("sglang", None, "--model-path org/m --tp-size ?x"),
            ("vllm", None, "--model org/m ?$@"),
            ("vllm", None, "org/m --max-num-seqs ?${{ a value }}"),
        ],
    ),
    "container that runs beside": (
        "set.yaml",
        "kind: JobSet\nspec:\n  replicatedJobs:\n  - template:\n      spec:\n        template:\n          spec:\n"
        "            initContainers:\n            - {command: [vllm, serve, org/m], restartPolicy: Always}\n",
        [("vllm", None, "org/m")],
    ),
    "container that ends before": (
        "pod.yaml",
        "kind: Pod\nspec:\n  initContainers:\n  - {command: [vllm, serve, org/n]}\n"
        "  containers:\n  - {command: [vllm, serve, org/m]}\n",
        [("vllm", None, "org/m")],
    ),
    "launch agent": (
        "a.plist",
        "<plist><dict><key>Label</key><string>llama-server</string>\n<key>ProgramArguments</key>\n<array>\n"
        "  <string>/opt/bin/llama-server</string>\n  <!-- <string>--no</string> -->\n  <string>-m</string>"
        "<string>a &amp; b.gguf</string>\n  <string>-c</string><string>8192</string>\n</array></dict></plist>\n",
        [("llama.cpp", None, "-m a & b.gguf -c 8192")],
    ),
    "escapes of systemd": (
        "a.service",
        "[Service]\nExecStart=/x/vllm serve org/m --api-key 'it\\'s' --max-num-seqs 4\n",
        [("vllm", None, "org/m --api-key it's --max-num-seqs 4")],
    ),
    "template of a unit": (
        "v.service.j2",
        "[Service]\nExecStart=/x/vllm serve {{ m }} --max-num-seqs {{ n | default('4') }}\n",
        [("vllm", None, "?${{ m }} --max-num-seqs ?${{ n | default('4') }}")],
    ),
    "template of a compose file": (
        "compose.yaml.j2",
        "{# x #}\nservices:\n{% if a %}\n  v:\n    image: {{ repo }}/vllm-openai:{{ tag | default('v1') }}\n"
        "    command:\n      - --model\n      - {{ m }}\n      - --max-num-seqs\n      - '4'\n{% endif %}\n",
        [("vllm", None, "--model ?{{ m }} --max-num-seqs 4")],
    ),
    "condition of a template": (
        "run.sh.j2",
        "vllm serve org/m \\\n{% if a %}\n  --kv-cache-dtype fp8 \\\n{% endif %}\n  --max-num-seqs 4\n",
        [("vllm", None, "org/m ?${% if a %} --max-num-seqs 4")],
    ),
}


@pytest.mark.parametrize(("name", "text", "expected"), KINDS.values(), ids=KINDS)
def test_a_kind_of_file_is_read(
    tmp_path: Path, name: str, text: str, expected: list[tuple[str, str | None, str]]
) -> None:
    assert [shown(deployment) for deployment in read(tmp_path, name, text)] == expected


def test_what_a_guide_leaves_to_the_reader_is_given_by_name(tmp_path: Path) -> None:
    (launch,) = read(tmp_path, "g.md", "```\nvllm serve org/m --max-num-seqs <n>\n```\n", n="4")
    assert shown(launch)[2] == "org/m --max-num-seqs 4"


def test_the_head_of_a_ray_cluster_and_its_workers_are_nodes(tmp_path: Path) -> None:
    text = (
        "modelSpec:\n- {name: m, modelURL: org/m, replicaCount: 2, requestGPU: 1,\n"
        "   raySpec: {headNode: {requestGPU: 1}}, vllmConfig: {tensorParallelSize: 1, pipelineParallelSize: 3}}\n"
    )
    (launch,) = read(tmp_path, "values.yaml", text)
    assert (launch.hardware.gpus, launch.hardware.nodes) == (1, 3)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("// it\nrun('vllm/vllm-openai:v1')\n", 2, "starts an engine, or runs its image"),
        (
            "x = [\n  '--max-running-requests 4',\n  '--mem-fraction-static 0.9',\n] // sglang\n",
            3,
            "sizing flags of SGLang",
        ),
    ],
)
def test_a_file_given_by_name_that_speaks_of_a_launch_is_never_silent(
    tmp_path: Path, text: str, line: int, says: str
) -> None:
    path = tmp_path / "cell.js"
    path.write_text(text, encoding="utf-8")
    report = check_paths([str(path)], Settings(), {})
    (trouble,) = report.troubles
    assert (trouble.line, trouble.unreadable) == (line, False)
    assert says in trouble.message
    assert report.exit_code("error", allow_unresolved=False) == 3


def test_what_a_walk_cannot_read_ends_in_3_and_what_is_named_in_2(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("vllm serve 'org/m\n", encoding="utf-8")
    for given, code in ((tmp_path, 3), (path, 2)):
        report = check_paths([str(given)], Settings(), {})
        assert [trouble.line for trouble in report.troubles] == [1]
        assert report.exit_code("error", allow_unresolved=False) == code


def test_flags_of_an_extension_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("vllm serve org/m --omni --max-num-seqz 8\n", encoding="utf-8")
    report = check_paths([str(path)], Settings(), {})
    assert report.findings == ()
    assert "vLLM-Omni has flags of its own" in report.checked[0].notes[0]


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("FROM vllm/vllm-openai:v0.30.0\nRUN pip install -U vllm==0.24.0\n", "0.24.0"),
        ("FROM vllm/vllm-openai:v0.30.0 AS a\nRUN pip install vllm==0.24.0\nFROM a\n", "0.24.0"),
        ("FROM python:3.12 AS a\nRUN pip install vllm==0.24.0\nFROM vllm/vllm-openai:v0.30.0\n", "0.30.0"),
    ],
)
def test_a_dockerfile_installs_the_release_of_its_last_stage(tmp_path: Path, text: str, release: str) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text + 'CMD ["--model", "m"]\n')
    (deployment,) = read_file(str(path), {}).deployments
    assert ENGINES.release(deployment.launch) == release


COMPOSE = "services:\n  a:\n    build: {context: image}\n    command: [org/m, --max-num-seqs, '4']\n"


def test_a_service_fills_the_entrypoint_of_the_image_that_it_builds(tmp_path: Path) -> None:
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "Dockerfile").write_text(
        'FROM x\nRUN pip install vllm==0.29.0\nENTRYPOINT ["vllm", "serve"]\n'
    )
    (one,) = read(tmp_path, "compose.yaml", COMPOSE)
    assert (shown(one), one.launch.release, one.place.line) == (("vllm", None, "org/m --max-num-seqs 4"), "0.29.0", 3)
    environment = "    environment: {M: org/n, VLLM_USE_V1: '1'}\n"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "Dockerfile").write_text("FROM vllm/vllm-openai:v0.30.0\nENTRYPOINT []\nCMD vllm serve $M\n")
    text = COMPOSE.replace("context: image", "context: other")
    (one,) = read(tmp_path, "compose.yaml", text.replace("    command: [org/m, --max-num-seqs, '4']\n", environment))
    assert (shown(one), one.image) == (("vllm", None, "org/n"), "vllm/vllm-openai:v0.30.0")


def test_an_image_without_a_model_is_filled_in_by_who_runs_it(tmp_path: Path) -> None:
    """A walk names it; the tag of the image it is built on says the release of a shell form too."""
    (tmp_path / "Dockerfile").write_text('FROM x\nENTRYPOINT ["vllm", "serve"]\n')
    report = check_paths([str(tmp_path)], Settings(), {})
    assert (report.checked, [t.message for t in report.troubles]) == ((), ["an image: whoever runs it names the model"])
    (one,) = read(tmp_path, "Dockerfile", "FROM vllm/vllm-openai:v0.29.0\nCMD vllm serve org/m\n")
    assert ENGINES.release(one.launch) == "0.29.0"


def test_a_router_serves_what_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("llama-server --models-dir /models --models-max 2 -c 8192\n")
    (one,) = check_paths([str(tmp_path / "run.sh")], Settings(), {}).checked
    assert (one.opened, one.model) == ((), None)


NIX = """{
  systemd.services.vllm.serviceConfig.ExecStart = ''
    ${pkgs.vllm}/bin/vllm serve org/m --max-model-len 8192
  '';
}
"""


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("flake.nix", NIX, 3),
        ("a.sh", 'CMD="vllm serve org/m $(f) --max-model-len 8192"\n', 1),
        ("a.sh", "docker pull vllm/vllm-openai\n", 0),
        ("a.sh", 'stop() { pkill -f "vllm serve"; }\n$RUN \\\n  --max-model-len 8192\n', 0),
        ("a.ps1", "<#\nMeasures whether llama-server slots, --parallel 4 say, are faster.\n#>\n", 0),
        ("flake.nix", "{ home.packages = [ pkgs.llama-cpp ]; # llama-server\n}\n", 0),
    ],
)
def test_a_walk_names_what_plainly_starts_an_engine_and_was_not_read(
    tmp_path: Path, name: str, text: str, line: int
) -> None:
    """Flags behind what starts it say so; a name alone does not."""
    (tmp_path / name).write_text(text)
    report = check_paths([str(tmp_path)], Settings(), {})
    assert [trouble.line for trouble in report.troubles] == [line] * bool(line)
    assert report.exit_code("error", allow_unresolved=False) == (3 if line else 0)


def test_a_template_without_a_kind_is_told_by_its_content(tmp_path: Path) -> None:
    """As Terraform has the values of a chart; what has no GPU is not held against its ranks."""
    (tmp_path / "gpu-a.tpl").write_text(
        "engine:\n  modelSpec:\n  - repository: vllm/vllm-openai\n    tag: v0.29.0\n    modelURL: org/m\n"
        "    requestGPU: 0\n    vllmConfig: {maxModelLen: 8192}\n"
    )
    (one,) = check_paths([str(tmp_path)], Settings(), {}).checked
    assert (one.model, one.version, one.gpus, one.findings) == ("org/m", "0.29.0", None, ())


def test_values_that_change_those_of_a_chart_have_its_model(tmp_path: Path) -> None:
    """At the same place of ``values.yaml``, or above it; what the file itself names comes first."""
    (tmp_path / "values.yaml").write_text("LLM_MODEL_ID: org/a\nvllm: {LLM_MODEL_ID: org/b}\n")
    flags = "vllm:\n  extraCmdArgs: [--max-num-seqs, '4', --max-model-len, '8']\n"
    (one,) = read(tmp_path, "gaudi-values.yaml", flags)
    assert shown(one)[1] == "org/b"
    (one,) = read(tmp_path, "own-values.yaml", f"{flags}  model: org/c\n")
    assert shown(one)[1] == "org/c"
    (one,) = read(tmp_path, "deploy.yaml", flags)
    assert shown(one)[1] is None


def test_templates_of_a_chart_that_start_nothing_are_not_named(tmp_path: Path) -> None:
    for name, body, named in (("service", "  port: 1", False), ("deployment", "  args: []", True)):
        path = tmp_path / f"{name}.yaml"
        path.write_text('{{- if .Values.on }}\nkind: X\nname: {{ include "vllm.name" . }}\n' + body + "\n{{- end }}\n")
        assert bool(check_paths([str(path)], Settings(), {}).troubles) is named
