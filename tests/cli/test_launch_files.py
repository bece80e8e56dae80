"""A deployment file in place of a launch line: `plan -- FILE`, `log --command FILE`."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import plan, run

from hybridcalc.cli.launch_text import started_by

MODEL = "Qwen/Qwen3-Next-80B-A3B-Instruct"
LINE = f"python3 -m sglang.launch_server --model-path {MODEL} --tp 2 --kv-cache-dtype fp8_e4m3"
SWITCH = "SGLANG_OPT_MAMBA_SKIP_DECODE_LOCK"
FILES = {
    "compose.yaml": f"services:\n  a:\n    image: lmsysorg/sglang:v0.5.16\n    environment: {{{SWITCH}: '1'}}\n"
    f"    command: {LINE}\n",
    "a.service": f"[Service]\nEnvironment={SWITCH}=1\nExecStart=/usr/bin/docker run -e {SWITCH} "
    f"lmsysorg/sglang:v0.5.16 {LINE}\n",
    "Dockerfile": f"FROM lmsysorg/sglang:v0.5.16\nENV {SWITCH}=1\nCMD {LINE}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_deployment_file_is_planned_with_its_release_and_environment(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(FILES[name])
    found = plan("--rest", "60GiB", "-L", "9216", "--", str(tmp_path / name))
    typed = f"docker run -e {SWITCH}=1 lmsysorg/sglang:v0.5.16 {LINE}"
    assert found["engine_version"] == "0.5.16"
    assert found == plan("--rest", "60GiB", "-L", "9216", "--", typed)
    engine, model, args, _ = started_by(str(tmp_path / name))
    assert (engine, model, args.engine_version) == ("sglang", MODEL, "0.5.16")


def test_stdin_is_read_as_the_file_is() -> None:
    found = plan("--rest", "60GiB", "-L", "9216", "--", "-", stdin=FILES["compose.yaml"].encode())
    assert found["engine_version"] == "0.5.16"


def test_a_file_with_several_launches_names_them(tmp_path: Path) -> None:
    file = tmp_path / "compose.yaml"
    file.write_text(FILES["compose.yaml"] + FILES["compose.yaml"].partition("\n")[2].replace("  a:", "  b:"))
    ran = run("plan", "--rest", "60GiB", "--", str(file))
    assert ran.code == 2
    assert "holds 2 launches: a in line 5, b in line 9" in ran.err
