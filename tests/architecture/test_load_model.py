"""MODEL may be a path, a folder, stdin or an id in the local Hugging Face cache; what cannot be read is refused."""

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_configs import small_config

from hybridcalc import load_model
from hybridcalc.architecture.presets import LARGEST_CONFIG_BYTES, shipped_config
from hybridcalc.errors import ConfigError, HybridcalcError, InputError, ModelNotFound

ROOT = Path(__file__).resolve().parent.parent.parent

CONFIG = small_config("Qwen3NextForCausalLM", 4, full_attention_interval=4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder that holds model/config.json, and an empty Hugging Face cache."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


@pytest.mark.parametrize("path", ["model/config.json", "model", "./model", "{here}/model/config.json", "{here}/model"])
def test_a_config_or_its_folder_reads(folder: Path, path: str) -> None:
    """Relative or absolute, the file or the folder that holds it."""
    assert load_model(path.format(here=folder)).layers == "sssa"


def test_a_byte_order_mark_does_not_matter(folder: Path) -> None:
    """Editors on Windows leave one."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8-sig")
    assert load_model("config.json").layers == "sssa"


def test_a_preset_file_reads_as_the_shipped_preset_does() -> None:
    """A user's own YAML has the same schema, and carries what its parameters follow from."""
    own = load_model(str(ROOT / "presets" / "models" / "kimi-k3.yaml"))
    assert own._replace(config=None, asked="kimi-k3") == load_model("kimi-k3")
    assert own.config == shipped_config("kimi-k3")


def test_stdin_reads_as_a_config(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-`, as in `curl ... | hybridcalc ratio -`."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(CONFIG).encode())))
    model = load_model("-")
    assert (model.layers, model.source) == ("sssa", "stdin")


def test_a_local_folder_wins_over_a_preset_of_that_id(folder: Path) -> None:
    """As the engines do: moonshotai/Kimi-K3 beside the working folder is what is served."""
    (folder / "moonshotai").mkdir()
    (folder / "model").rename(folder / "moonshotai" / "Kimi-K3")
    assert load_model("moonshotai/Kimi-K3").architecture == "Qwen3NextForCausalLM"


def cache(folder: Path, name: str, commit: str, config: dict[str, Any], *, main: str = "") -> Path:
    """A snapshot in a Hugging Face cache, and the commit that refs/main names."""
    model = folder / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if main:
        (model / "refs").mkdir()
        (model / "refs" / "main").write_text(main)
    return snapshot


def test_an_id_that_is_no_preset_is_looked_up_in_the_local_cache(folder: Path) -> None:
    """The snapshot that refs/main names, offline; the model keeps the id as its name."""
    cache(folder, "acme/Qwen-Tuned", "0123", CONFIG)
    cache(folder, "acme/Qwen-Tuned", "4567", CONFIG | {"num_hidden_layers": 8}, main="4567\n")
    model = load_model("acme/Qwen-Tuned")
    assert (model.name, model.layers) == ("acme/Qwen-Tuned", "sssasssa")


def test_without_refs_the_newest_snapshot_is_taken(folder: Path) -> None:
    """A cache filled by hand has no refs/main."""
    cache(folder, "acme/Qwen-Tuned", "aaaa", CONFIG | {"num_hidden_layers": 8})
    os.utime(cache(folder, "acme/Qwen-Tuned", "0000", CONFIG), (1, 1))
    assert load_model("acme/Qwen-Tuned").layers == "sssasssa"


def test_the_cache_of_hf_home_is_the_default(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_CACHE, else HF_HOME/hub."""
    cache(folder, "acme/Qwen-Tuned", "0123", CONFIG)
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv("HF_HOME", str(folder))
    assert load_model("acme/Qwen-Tuned").layers == "sssa"


NO_COMMIT = {
    "a pipe": os.mkfifo,
    "a device": lambda ref: ref.symlink_to("/dev/zero"),
    "a folder": os.mkdir,
    "a link to itself": lambda ref: ref.symlink_to(ref),
    "a way out": lambda ref: ref.write_text("../../.."),
    "empty": lambda ref: ref.write_text(""),
    "no hex": lambda ref: ref.write_text("main"),
    "65 digits": lambda ref: ref.write_text("4567".ljust(65, "0")),
    "huge": lambda ref: ref.write_bytes(b"4" * 2**20),
}


@pytest.mark.parametrize("make", NO_COMMIT.values(), ids=NO_COMMIT)
def test_a_ref_that_names_no_commit_is_refused(folder: Path, make: Callable[..., Any]) -> None:
    """It is neither waited for nor read without end, and it leads nowhere outside the cache."""
    cache(folder, "acme/Qwen-Tuned", "4567", CONFIG)
    (folder / "hub" / "config.json").write_text(json.dumps(CONFIG))
    ref = folder / "hub" / "models--acme--Qwen-Tuned" / "refs" / "main"
    ref.parent.mkdir()
    make(ref)
    with pytest.raises(ModelNotFound, match="no commit of a Hugging Face cache") as refusal:
        load_model("acme/Qwen-Tuned")
    assert refusal.value.fix == "download acme/Qwen-Tuned again, or give a config.json or its folder"


def test_the_nearest_three_names_are_told() -> None:
    """Those that begin as what was typed, however many there are."""
    with pytest.raises(ModelNotFound) as refusal:
        load_model("qwen3.")
    named = str(refusal.value.fix).partition("; ")[0].removeprefix("nearest: ").split(", ")
    assert len(named) == 3 and all(name.startswith("qwen3.") for name in named)


@pytest.mark.parametrize(("typed", "begins"), [("fal", "falcon-h1"), ("fa", "`hybridcalc models` lists the presets")])
def test_three_letters_are_the_beginning_of_a_name(typed: str, begins: str) -> None:
    with pytest.raises(ModelNotFound) as refusal:
        load_model(typed)
    assert str(refusal.value.fix).removeprefix("nearest: ").startswith(begins)


def test_a_snapshot_without_a_config_is_not_found(folder: Path) -> None:
    """A cache of weights alone, or of a download that was cut off."""
    (cache(folder, "acme/Qwen-Tuned", "0123", CONFIG) / "config.json").unlink()
    with pytest.raises(ModelNotFound):
        load_model("acme/Qwen-Tuned")


UNREADABLE = {
    "empty": ("c.json", b"", "c.json: not readable as JSON, line 1: expecting value"),
    "cut off": ("c.json", b'{"a":\n', "c.json: not readable as JSON, line 2: expecting value"),
    "a list": ("c.json", b"[]", "c.json: a model config is a JSON object"),
    "not a number": ("c.json", b'{"a": NaN}', "c.json: not readable as JSON, nan is not a number of a config"),
    "a number of 5,000 digits": ("c.json", b'{"a": ' + b"1" * 5000 + b"}", "c.json: not readable as JSON, exceeds"),
    "no text": ("c.json", b"\xff\xfe\x00\x01", "c.json: not a text file (UTF-8)"),
    "weights": ("c.json", b"PK\x03\x04\x80\x81", "c.json: not a text file (UTF-8)"),
    "no model": ("c.json", b'{"a": 1}', "c.json: not a model config, missing architectures and model_type"),
    "a key twice": ("c.json", b'{"aB": 4, "c": 1, "aB": 8}', "c.json: key 'aB' appears twice"),
    "a key twice inside": ("c.json", b'{"a": [{"b": 1, "b": 1}]}', "c.json: key 'b' appears twice"),
    "deep": ("c.json", b'{"a": ' * 100_000, "c.json: not readable as JSON, nested too deeply"),
    "deep lists": ("c.json", b"[" * 4_000_000, "c.json: not readable as JSON, nested too deeply"),
    "larger than 8 MiB": ("c.json", b" " * (LARGEST_CONFIG_BYTES + 1), "c.json: larger than 8 MiB, not a model config"),
    "preset of no text": ("p.yaml", b"\x80", "p.yaml: not a text file (UTF-8)"),
    "preset larger than 8 MiB": ("p.yml", b" " * (LARGEST_CONFIG_BYTES + 1), "p.yml: larger than 8 MiB"),
    "preset larger than 256 KiB": ("p.yml", b" " * 300_000, "p.yml: larger than 256 KiB, not a preset"),
}


@pytest.mark.parametrize(("name", "content", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_that_cannot_be_read_is_refused(folder: Path, name: str, content: bytes, message: str) -> None:
    """Malformed, enormous, binary and deeply nested files: an InputError with file and reason."""
    (folder / name).write_bytes(content)
    with pytest.raises(InputError) as refusal:
        load_model(name)
    assert refusal.value.message.startswith(message)


def test_a_huge_config_that_is_valid_is_read(folder: Path, steps: Callable[..., Any]) -> None:
    """A quantisation table may hold thousands of entries."""
    table = {f"layer.{i}": {"bits": 4} for i in range(20_000)}
    (folder / "c.json").write_text(json.dumps(CONFIG | {"quantization_config": table}), encoding="utf-8")
    assert load_model("c.json").layers == "sssa"
    assert steps(lambda: load_model("c.json")) < 20 * len(table)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.json", "absent.json: no such file"),
        ("./absent.yaml", "absent.yaml: no such file"),
        ("model/absent.json", "model/absent.json: no such file"),
        ("", "MODEL is empty"),
        ("  ", "MODEL is empty"),
        ("a\0b", "MODEL is empty"),
        (".", "config.json: no such file"),
    ],
)
def test_a_path_without_a_file_is_refused(folder: Path, name: str, message: str) -> None:
    """ModelNotFound names the path."""
    with pytest.raises(ModelNotFound) as refusal:
        load_model(name)
    assert refusal.value.message == message


@pytest.mark.parametrize(
    "name",
    ["~nobody-of-that-name/x", "x" * 5000, "a/" * 3000, "\ud800", "a\nb", "\x1b[31m", "acme/../..", "/dev/zero"],
    ids=["unknown home", "long", "long path", "surrogate", "line break", "escape", "dots", "device"],
)
def test_no_name_gets_another_exception_than_ours(folder: Path, name: str) -> None:
    """Names come from command lines and scripts; the message is one printable line."""
    with pytest.raises(HybridcalcError) as refusal:
        load_model(name)
    assert refusal.value.message.isprintable()


@pytest.mark.parametrize("name", ["loop", "loop.json", "./loop", "loop.json/config.json", "folder", "./folder/"])
def test_links_that_go_round_are_named_as_such(folder: Path, name: str) -> None:
    """Such a file is there, so "no such file" would be wrong."""
    for loop in ("loop", "loop.json"):
        (folder / loop).symlink_to(loop)
    (folder / "folder").mkdir()
    (folder / "folder" / "config.json").symlink_to("config.json")
    with pytest.raises(InputError) as refusal:
        load_model(name)
    assert refusal.value.message == f"{name}: too many levels of symbolic links"


def test_a_link_to_nothing_is_no_such_file(folder: Path) -> None:
    """It is a path all the same, not the name of a model."""
    (folder / "dangling").symlink_to("nowhere")
    with pytest.raises(ModelNotFound, match=r"(?m)^dangling: no such file$"):
        load_model("dangling")


def test_a_name_of_any_length_is_refused_in_few_steps(folder: Path, steps: Callable[..., Any]) -> None:
    """Twenty thousand quantisation suffixes."""

    def refuse() -> None:
        with pytest.raises(ModelNotFound, match=r"^no model 'x-fp8-fp8"):
            load_model("x" + "-fp8" * 20_000)

    refuse()
    assert steps(refuse) < 20_000


@pytest.mark.parametrize("name", ["\x1b[31m/Kimi-K3", "a\nb/Kimi-K3", "\x9b/Kimi-K3", "a\u202eb/Kimi-K3"])
def test_how_a_name_was_read_is_told_without_its_control_characters(folder: Path, name: str) -> None:
    """The note is printed on a terminal."""
    reading = load_model(name).reading
    assert reading.startswith("read as kimi-k3: ") and reading.isprintable()


def test_a_path_is_not_taken_for_a_preset_of_its_last_name(folder: Path) -> None:
    """../kimi-k3 that does not exist is no Kimi-K3."""
    with pytest.raises(ModelNotFound):
        load_model("../kimi-k3")


def test_an_organisation_of_one_letter_is_not_a_path(folder: Path) -> None:
    """x/Kimi-K3 is looked up as any other id."""
    assert load_model("x/Kimi-K3").name == "kimi-k3"


def test_a_named_pipe_is_not_waited_for(folder: Path) -> None:
    """A path that is no regular file is refused, not read."""
    os.mkfifo(folder / "pipe.json")
    with pytest.raises(InputError, match="not a regular file"):
        load_model("pipe.json")


def test_a_config_error_names_the_file(folder: Path) -> None:
    """So that a script over many files says which one."""
    (folder / "bad.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": "4"}), encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"^bad\.json: Qwen3NextForCausalLM config, not understood: num_hidden_layers"
    ):
        load_model("bad.json")


def test_a_bound_of_infinity_is_none(folder: Path) -> None:
    """Released configs of Mamba-2 state a time step's limit as [0.0, Infinity]; it reaches no figure."""
    endless = folder / "endless.json"
    endless.write_text(json.dumps({**CONFIG, "time_step_limit": [0.0, float("inf")]}), encoding="utf-8")
    assert load_model(str(endless)).layers == load_model("model").layers
    endless.write_text(json.dumps({**CONFIG, "num_hidden_layers": float("inf")}), encoding="utf-8")
    with pytest.raises(ConfigError, match="missing num_hidden_layers"):
        load_model(str(endless))


def test_a_size_without_the_parameters_of_a_token_names_the_one_model_that_has_it() -> None:
    assert load_model("qwen3.5-397b").name == load_model("Qwen/Qwen3.5-397B").name == "qwen3.5-397b-a17b"
    assert load_model("qwen3.6-35b:Q4_K_M").name == "qwen3.6-35b-a3b"


def test_the_nearest_names_are_first_those_that_begin_as_typed() -> None:
    with pytest.raises(ModelNotFound) as refusal:
        load_model("qwen3.5-397b-a")
    assert refusal.value.fix.startswith("nearest: qwen3.5-397b-a17b")


@pytest.mark.parametrize("name", ["foo.gguf", "models/foo.GGUF"])
def test_a_gguf_file_that_is_missing_is_no_such_file(name: str) -> None:
    """A name that tells a preset and a mix of types needs none."""
    with pytest.raises(ModelNotFound, match=rf"^{name}: no such file"):
        load_model(name)
    assert load_model("Qwen3.6-27B-Q4_K_M.gguf").name == "qwen3.6-27b"
