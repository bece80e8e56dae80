"""``weights`` of a GGUF name: what is on the card, on the host and not loaded; and whether a card holds it."""

from pathlib import Path

import pytest
from command_line import run


def test_weights_and_a_plan_have_one_figure() -> None:
    """The card's, with the embeddings on the host; parameters of text apart from those of drafts."""
    told = " ".join(run("weights", "qwen3.6-27b:Q8_0").out.split())
    assert told.startswith("25.36 GiB to 25.95 GiB") and "27,320,697,856: 26,895,998,464 of text" in told
    assert "1.26 (1.26 to 1.29) GiB are on the host" in told and "--spec-type draft-mtp loads them" in told
    line = ("--", "llama-server", "-m", "qwen3.6-27b-Q8_0.gguf", "-c", "4096")
    for gpu in ((), ("--gpu", "h200")):
        planned = " ".join(run("plan", "-v", *gpu, *line).out.split())
        assert "weights 25.36 (25.36 to 25.95) GiB" in planned and "1.26 GiB more on the host" in planned


@pytest.mark.parametrize(
    ("model", "gpu", "said"),
    [("qwen3.6-27b:Q4_K_M", "rtx4090", "they fit"), ("qwen3.6-27b:Q8_0", "rtx4090", "they do not fit"),
     ("nvidia/Qwen3.5-397B-A17B-NVFP4", "rtx4090", "they do not fit"),
     ("Qwen/Qwen3.6-35B-A3B-FP8", "h100", "they fit")],
)  # fmt: skip
def test_it_is_said_whether_a_card_holds_them(model: str, gpu: str, said: str) -> None:
    assert f": {said}" in run("weights", model, "--gpu", gpu).out
    assert "the card" not in run("weights", model).out


def test_a_picture_that_needs_a_floor_says_what_that_needs(tmp_path: Path) -> None:
    save = ("--save", str(tmp_path / "a.svg"), "--figure", "step")
    done = run("plan", "--gpu", "h200", "-L", "8k", *save, "--", "llama-server", "-m", "qwen3.6-27b-Q8_0.gguf")
    assert done.code == 2 and "it needs --gpu, -L and an engine whose steps are modelled" in " ".join(done.err.split())
