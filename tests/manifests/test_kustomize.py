"""What kustomizations generate reaches the manifests that they take in, and nothing outside the checked folder does."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridcalc.manifests import Deployment
from hybridcalc.manifests.find import read_file

POD = """\
kind: Deployment
spec:
  template:
    spec:
      containers:
        - command: [vllm, serve, a/b]
          args: [--tensor-parallel-size=$(TP), --max-model-len=$(LEN), --max-num-seqs=$(SEQS)]
          envFrom: [{configMapRef: {name: sizes}}]
          env: [{name: LEN, valueFrom: {configMapKeyRef: {name: sizes, key: LENGTH}}}]
"""


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def pod(folder: Path, name: str = "base/pod.yaml", *, checked: bool = True) -> Deployment:
    trees = [str(folder)] if checked else []
    (deployment,) = read_file(str(folder / name), {}, checked=trees).deployments
    return deployment


def generator(*lines: str, taken: str = "../../base") -> str:
    return f"resources: [{taken}]\nconfigMapGenerator:\n- name: sizes\n" + "".join(f"  {line}\n" for line in lines)


BASE = {"base/pod.yaml": POD, "base/kustomization.yaml": generator("literals: ['TP=2', SEQS=7]", taken="pod.yaml")}


def test_overlays_that_agree_set_a_value_and_those_that_do_not_are_counted(tmp_path: Path) -> None:
    one = generator("behavior: merge", "envs: [sizes.env]")
    files = {"overlays/a/kustomization.yaml": one, "overlays/b/Kustomization": one}
    envs = {
        "overlays/a/sizes.env": "# tokens\nLENGTH=8192\nSEQS=64\n",
        "overlays/b/sizes.env": "LENGTH=8192\nSEQS=32\n",
    }
    words = pod(written(tmp_path, BASE | files | envs)).words
    assert [(str(word), word.why) for word in words[1:3]] == [
        ("--tensor-parallel-size=2", ""),
        ("--max-model-len=8192", ""),
    ]
    assert words[3].why == "2 kustomizations set SEQS of ConfigMap sizes differently"


def test_a_generator_that_replaces_leaves_nothing_of_what_it_replaces(tmp_path: Path) -> None:
    held = {"overlays/a/kustomization.yaml": generator("behavior: replace", 'literals: [TP=4, LENGTH="4096"]')}
    words = pod(written(tmp_path, BASE | held)).words
    assert words[1:3] == ("--tensor-parallel-size=4", "--max-model-len=4096")
    assert words[3].why == "SEQS comes from outside"


def test_a_patch_gets_what_its_own_kustomization_and_those_below_generate(tmp_path: Path) -> None:
    patch = "patches: [{path: patch.yaml}]\n" + generator("behavior: merge", "literals: [LENGTH=2048]")
    files = {"overlays/a/patch.yaml": POD, "overlays/a/kustomization.yaml": patch}
    words = pod(written(tmp_path, BASE | files), "overlays/a/patch.yaml").words
    assert words[1:] == ("--tensor-parallel-size=2", "--max-model-len=2048", "--max-num-seqs=7")


def test_a_kustomization_stands_over_the_document_it_merges_into(tmp_path: Path) -> None:
    document = "kind: ConfigMap\nmetadata: {name: sizes}\ndata: {TP: '8', LENGTH: '512', SEQS: '3'}\n"
    files = {
        "base/pod.yaml": POD,
        "base/sizes.yaml": document,
        "base/kustomization.yaml": "resources: [pod.yaml, sizes.yaml]\n",
        "overlays/a/kustomization.yaml": generator("behavior: merge", "literals: [TP=1]"),
    }
    words = pod(written(tmp_path, files)).words
    assert words[1:] == ("--tensor-parallel-size=1", "--max-model-len=512", "--max-num-seqs=3")


@pytest.mark.parametrize("env", ["../../../outside.env", "link.env", "/etc/hostname", "missing.env"])
def test_nothing_outside_the_checked_folder_is_read(tmp_path: Path, env: str) -> None:
    written(tmp_path, {"outside.env": "LENGTH=8192\n"})
    held = {"overlays/a/kustomization.yaml": generator("behavior: merge", f"envs: [{env}]")}
    tree = written(tmp_path / "tree", BASE | held)
    (tree / "overlays/a/link.env").symlink_to(tmp_path / "outside.env")
    assert pod(tree).words[2].why == "ConfigMap sizes is not among the files"


def test_of_a_file_that_is_named_only_its_own_folder_counts(tmp_path: Path) -> None:
    held = {"overlays/a/kustomization.yaml": generator("behavior: merge", "literals: [TP=8]")}
    assert pod(written(tmp_path, BASE | held), checked=False).words[1] == "--tensor-parallel-size=2"


def test_kustomizations_that_take_each_other_in_end(tmp_path: Path) -> None:
    files = {"base/kustomization.yaml": "resources: [pod.yaml, ../overlays/a]\n", "base/pod.yaml": POD}
    held = {"overlays/a/kustomization.yaml": generator("literals: [TP=8]")}
    assert pod(written(tmp_path, files | held)).words[1].why == "TP comes from outside"


PATCH = """\
kind: Deployment
metadata: {name: server}
spec:
  template:
    spec:
      containers:
        - name: engine
          args: [--model=$(M), --max-num-seqs=$(SEQS)]
          env: [{name: SEQS, value: "9"}]
"""
SERVER = """\
kind: Deployment
metadata: {name: server}
spec:
  template:
    spec:
      containers:
        - name: engine
          image: vllm/vllm-openai:v0.30.0
          command: [vllm, serve]
          args: [--model=$(M), --max-model-len=512]
          env: [{name: M, value: a/b}, {name: SEQS, value: "3"}]
"""


@pytest.mark.parametrize("field", ["patches: [{path: patch.yaml}]", "patchesStrategicMerge: [patch.yaml]"])
def test_a_patch_is_read_over_the_document_that_it_changes(tmp_path: Path, field: str) -> None:
    """Its lists of words replace those below, its variables stand over them, and it stands at its own lines."""
    files = {
        "base/server.yaml": SERVER,
        "base/kustomization.yaml": "resources: [server.yaml]\n",
        "overlays/a/patch.yaml": PATCH,
        "overlays/a/kustomization.yaml": f"resources: [../../base]\n{field}\n",
    }
    one = pod(written(tmp_path, files), "overlays/a/patch.yaml")
    assert one.words == ("--model=a/b", "--max-num-seqs=9")
    assert (one.launch.image, one.place.path, one.place.line) == (
        "vllm/vllm-openai:v0.30.0",
        str(tmp_path / "overlays/a/patch.yaml"),
        7,
    )


def test_a_patch_of_several_documents_is_read_alone(tmp_path: Path) -> None:
    files = {
        "a.yaml": SERVER,
        "b.yaml": SERVER,
        "patch.yaml": PATCH,
        "kustomization.yaml": "resources: [a.yaml, b.yaml]\npatches: [{path: patch.yaml}]\n",
    }
    assert [word.why for word in pod(written(tmp_path, files), "patch.yaml").words] == ["M comes from outside", ""]
