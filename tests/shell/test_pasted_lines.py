"""Lines as people paste them: from a page, from another shell, with what runs them around them."""

from __future__ import annotations

import pytest

from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError

LINES = {
    "PowerShell": (
        "vllm serve org/m `\n  --max-num-seqs 8 `\n  --enforce-eager",
        "org/m --max-num-seqs 8 --enforce-eager",
    ),
    "cmd": (
        "vllm serve org/m ^\r\n  --max-num-seqs 8 ^\r\n  --enforce-eager\r\n",
        "org/m --max-num-seqs 8 --enforce-eager",
    ),
    "kubectl run": ("kubectl run q --env A=1 --image=vllm/vllm-openai:v0.30.0 -- --model org/m", "--model org/m"),
    "kubectl run a command": (
        "kubectl run q --image vllm/vllm-openai:v0.30.0 --command -- vllm serve org/m --max-num-seqs 8",
        "org/m --max-num-seqs 8",
    ),
    "kubectl exec": ("kubectl exec -it pod -- vllm serve org/m", "org/m"),
    "torchrun": ("torchrun --nproc-per-node 2 -m sglang.launch_server --model-path m --tp 2", "--model-path m --tp 2"),
}


@pytest.mark.parametrize(("line", "words"), LINES.values(), ids=LINES)
def test_what_stands_around_a_launch_is_no_part_of_it(line: str, words: str) -> None:
    for given in (line, line.split()) if "\n" not in line else (line,):
        launch = ENGINES.launch(given)
        assert " ".join(launch.words) == words
        assert launch.image in ("", "vllm/vllm-openai:v0.30.0")


def test_kubectl_run_says_the_environment_and_the_release() -> None:
    launch = ENGINES.launch(LINES["kubectl run"][0])
    assert (launch.env["A"].text, ENGINES.release(launch)) == ("1", "0.30.0")


@pytest.mark.parametrize(
    ("word", "says", "fix"),
    [
        ("\u201corg/m\u201d", "\u201c (U+201C) is a typographic quote", "write ' or \" instead"),
        ("org/m\u00a0--max-num-seqs\u00a08", "U+00A0 is a blank that parts no words", "write a plain blank instead"),
        ("--max\u2011num-seqs", "U+2011 is no character of a flag", "write --max-num-seqs"),
        ("--max-num-seqs\u200b", "U+200B is no character of a flag", "write --max-num-seqs"),
        ("-\u2013max-num-seqs", "U+2013 is no character of a flag", "write --max-num-seqs"),
    ],
)
def test_what_a_page_has_put_into_a_line_is_named(word: str, says: str, fix: str) -> None:
    for line in (f"vllm serve {word} 8", ["vllm", "serve", word, "8"]):
        with pytest.raises(InputError) as caught:
            ENGINES.launch(line)
        assert says in caught.value.message
        assert caught.value.fix == fix


def test_two_lengthened_dashes_are_both_taken_off() -> None:
    with pytest.raises(InputError) as caught:
        ENGINES["vllm"].read(ENGINES.launch("vllm serve org/m \u2212\u2212max-num-seqs 8").words, {}, [])
    assert caught.value.fix == "write --max-num-seqs"
