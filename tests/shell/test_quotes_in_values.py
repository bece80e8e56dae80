"""Quotes that a value brings: a shell that reads it as a script takes them off, one that has expanded it does not."""

from __future__ import annotations

import pytest

from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Source, Text

SCRIPTS = {
    "quotes in braces": (
        """N=8; sglang serve kimi-k3 ${N:+--tp "$N"} ${M:+--pp "$M"} --x 1""",
        ["kimi-k3", "--tp", "8", "--x", "1"],
    ),
    "quotes in a value": (
        """S='--x "$V"'; V=3; docker run --entrypoint bash lmsysorg/sglang -lc "sglang serve kimi-k3 $S --tp \\$V\"""",
        ["kimi-k3", "--x", "3", "--tp", "3"],
    ),
    "quotes that a value brings": (
        """J="--x '{}'"; bash -c "sglang serve kimi-k3 $J --tp 8\"""",
        ["kimi-k3", "--x", "{}", "--tp", "8"],
    ),
    "a value alone": ("""A="'8'"; sglang serve kimi-k3 --tp $A --pp ${A}""", ["kimi-k3", "--tp", "'8'", "--pp", "'8'"]),
}


@pytest.mark.parametrize(("script", "expected"), SCRIPTS.values(), ids=SCRIPTS)
def test_quotes_are_taken_off_where_bash_takes_them(script: str, expected: list[str]) -> None:
    source = Source("x.sh", script)
    (launch,) = run_script(Text(source, script), {}, {}).launches
    assert [str(word) for word in launch.words] == expected
