"""The package from wherever it may lie: each build is made as an installer makes it, and asked for what it carries."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipapp
import zipfile
from pathlib import Path
from typing import Any

import pytest

from hybridcalc.architecture.presets import package_file

pytest.importorskip("hatchling")

ROOT = Path(__file__).resolve().parent.parent
ANSWER = """
import site, sys
old = list(sys.path)
site.addsitedir(sys.argv[1])  # reads the .pth file of an editable install, as Python does when it starts
sys.path.sort(key=lambda entry: entry in old)
import hybridcalc
from hybridcalc.cli.app import execute
print(hybridcalc.__file__)
sys.stdout.flush()
for line in (
    "models show kimi-k3 --json", "models", "schema plan", "check --schema", "check hybridcalc.yaml",
    "plan kimi-k3 --tp 8 --gpu h200 --weights 100 -L 9216 --json",
):
    execute(line.split())
from hybridcalc.architecture.presets import package_file
print(package_file("output/pictures/web/page.js").decode())
"""
DEPLOYMENTS = """deployments:
  - {name: k3, model: kimi-k3, engine: sglang, flags: {tp-size: 8}, hardware: {gpu: h200, weights: 100GiB}}
"""


def built(kind: str, source: Path, folder: Path) -> Path:
    """What the project's build backend makes of a source tree: an sdist, a wheel or an editable wheel."""
    folder.mkdir()
    code = f"from hatchling.build import build_{kind} as build; import sys; build(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=source, check=True, capture_output=True)
    (made,) = folder.iterdir()
    return made


def unpacked(wheel: Path) -> Path:
    """The wheel's files in a folder of their own."""
    folder = wheel.with_suffix("")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each way to have the package -> what stands on sys.path then."""
    folder = tmp_path_factory.mktemp("builds")
    with tarfile.open(built("sdist", ROOT, folder / "sdist")) as archive:
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from 3.11.4 on
        archive.extractall(folder / "source", **safe)
    (source,) = (folder / "source").iterdir()
    wheel = built("wheel", ROOT, folder / "wheel")
    return {
        "checkout": ROOT,
        "editable": unpacked(built("editable", ROOT, folder / "editable")),
        "wheel": unpacked(wheel),
        "zipped wheel": wheel,
        "wheel of the sdist": unpacked(built("wheel", source, folder / "again")),
    }


def answer(place: Path, folder: Path) -> tuple[str, str]:
    """Where the package was loaded from, and what it answered to commands that need each of its files."""
    (folder / "hybridcalc.yaml").write_text(DEPLOYMENTS, encoding="utf-8")
    ran = subprocess.run(  # -B: a place stays as the installer left it, for the tests that list its files
        [sys.executable, "-B", "-c", ANSWER, str(place)], cwd=folder, capture_output=True, text=True, check=True
    )
    origin, _, text = ran.stdout.partition("\n")
    return origin, text


@pytest.fixture(scope="module")
def of_the_checkout(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the checkout answers."""
    return answer(ROOT, tmp_path_factory.mktemp("checkout"))[1]


@pytest.mark.parametrize("kind", ["editable", "wheel", "zipped wheel", "wheel of the sdist"])
def test_every_build_answers_as_the_checkout_does(
    places: dict[str, Path], of_the_checkout: str, kind: str, tmp_path: Path
) -> None:
    """Presets, schema and page are found at one name, whether or not they are files of their own."""
    origin, text = answer(places[kind], tmp_path)
    assert Path(origin).is_relative_to(ROOT if kind == "editable" else places[kind])
    assert text == of_the_checkout
    assert text.startswith("{") and "kimi-k3" in text


@pytest.mark.parametrize("kind", ["wheel", "wheel of the sdist"])
def test_a_wheel_carries_the_sources_of_its_presets(places: dict[str, Path], kind: str) -> None:
    """Byte by byte, and reading one as a file of one's own gives the shipped model."""
    carried = places[kind] / "hybridcalc" / "presets"
    sources = {path.relative_to(ROOT / "presets"): path.read_bytes() for path in (ROOT / "presets").glob("*/*.yaml")}
    assert {path.relative_to(carried): path.read_bytes() for path in carried.glob("*/*.yaml")} == sources
    assert {path.parts[0] for path in sources} == {"models", "gpus"}


def test_both_wheels_hold_the_same_files(places: dict[str, Path]) -> None:
    """What the sdist leaves out, a wheel built from it would lack."""
    first, second = (
        {path.relative_to(places[kind]): path.read_bytes() for path in places[kind].rglob("*") if path.is_file()}
        for kind in ("wheel", "wheel of the sdist")
    )
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []


def test_a_file_that_the_package_lacks_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        package_file("presets/none.json")


def test_a_zipapp_answers_as_the_checkout_does(tmp_path: Path) -> None:
    """One file beside the libraries: its presets are read from within it."""
    source, target = tmp_path / "source", tmp_path / "hybridcalc.pyz"
    shutil.copytree(ROOT / "hybridcalc", source / "hybridcalc", ignore=shutil.ignore_patterns("__pycache__"))
    zipapp.create_archive(source, target, main="hybridcalc.cli:main")
    asked = ["plan", "kimi-k3", "--tp", "8", "--rest", "28.55GiB", "-L", "9216", "--json"]
    made, known = (
        subprocess.run([sys.executable, *start, *asked], cwd=folder, capture_output=True, text=True, check=True).stdout
        for start, folder in (([str(target)], tmp_path), (["-m", "hybridcalc"], ROOT))
    )
    assert json.loads(made)["requests"] == 51
    assert made == known


def test_the_image_has_what_it_copies_and_starts_the_program() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = " ".join(re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)).split()
    kept = re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(copied) == sorted(kept)
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {project["readme"], *project["license-files"]} <= set(copied)
    assert re.findall(r"^ENTRYPOINT (.+)$", text, re.MULTILINE) == [json.dumps(list(project["scripts"]))]
    (extra,) = re.findall(r"-c constraints.txt '\.\[(\w+)\]'", text)
    wanted = [*project["dependencies"], *project["optional-dependencies"][extra]]
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower().replace("_", "-")
    assert [name for name in wanted if f"{re.split('[<>=;]', name)[0].strip().lower()}==" not in pinned] == []
    assert len(set(re.findall(r"^FROM (\S+)", text, re.MULTILINE))) == 1, (
        "the environment links to the Python it was made with"
    )
    assert "torch" not in "".join(line for line in text.splitlines() if not line.startswith("#"))
