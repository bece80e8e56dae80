"""Large and hostile scripts: read in steps that grow with them, or refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

import hybridcalc.shell as bounds
from hybridcalc.engines import ENGINES
from hybridcalc.errors import InputError
from hybridcalc.manifests.scripts import run_script
from hybridcalc.shell import Source, Text
from hybridcalc.shell.evaluate import Shell
from hybridcalc.shell.launch import Launch


def read(script: str, *, arguments: Sequence[Any] = (), **outside: str) -> list[Launch]:
    source = Source("x.sh", script)
    return run_script(Text(source, script), {}, outside, arguments).launches


def test_growing_values_end() -> None:
    """Arrays of arrays and texts of texts stop at a bound instead of filling the memory."""
    with pytest.raises(InputError, match="words and arrays come to more than"):
        read("A=(x x x)\n" + 'A=("${A[@]}" "${A[@]}" "${A[@]}")\n' * 60 + 'sglang serve "${A[@]}"')
    text = 'A="$A$A$A$A"\n' * 60
    (launch,) = read(f"A=xxxxxxxx\n{text}sglang serve kimi-k3 --tp $A")
    assert (launch.words[-1], launch.words[-1].why) == ("$A", "its value grows too long")
    assert read("cat <<EOF\n" * 20_000 + "sglang serve kimi-k3\n") != []


LARGE = {
    "assignments": "a=1\n" * 3_750 + "sglang serve kimi-k3\n", "blocks": "if x; then\n" * 2_500,
    "launcher words": "echo; " + "sglang " * 7_500, "interpreters": "x " + "python3 -u " * 2_500,
    "words": "sglang serve kimi-k3 " + "--x y " * 5_000, "lines in quotes": "X='" + "a b\n" * 15_000 + "'\n",
    "scripts in a variable": f"A='vllm serve kimi-k3 {'--x y ' * 500}'\n" + 'tmux "$A"\n' * 500,
    "names": "".join(f"a{n}=$a{n}x\n" for n in range(3_750)) + "sglang serve kimi-k3\n",
    "additions": "A=(1)\nif x; then\n" + "A+=($B)\n" * 5_000 + 'fi\nsglang serve "${A[@]}"\n',
    "unbalanced lines": "'\n" * 7_500,
}  # fmt: skip


@pytest.mark.parametrize("script", LARGE.values(), ids=LARGE)
def test_large_scripts_take_bounded_time(
    script: str, steps: Callable[[Callable[[], object]], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls in proportion to the characters, whatever they are, and to those of scripts inside scripts."""
    monkeypatch.setattr(bounds, "MOST_SCRIPTS", 2**17)

    def attempt() -> None:
        with suppress(InputError):
            read(script)

    assert steps(attempt) < 80 * len(script) + 20 * bounds.MOST_SCRIPTS


class Handled(list[Any]):
    """Words that count how many of them are looked at or copied."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        Handled.seen += len(self)
        return super().__iter__()

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        Handled.seen += len(found) if isinstance(at, slice) else 1
        return Handled(found) if isinstance(at, slice) else found


@pytest.mark.parametrize("word", ["if", "while", "{", "!", "then", "A=1", "x()", "while $#"])
def test_a_line_of_keywords_is_read_in_steps_that_grow_with_it(
    word: str, steps: Callable[[Callable[[], object]], int]
) -> None:
    """Twice the words take twice the calls, and twice the words looked at or copied, which are no calls."""

    def read_line(count: int) -> tuple[int, int]:
        source = Source("x.sh", text := f"{word} " * count)
        shell = Shell(Text(source, text), {}, {}, ENGINES.launchers)
        commands = shell.script.commands
        commands[:] = [command._replace(words=Handled(command.words)) for command in commands]
        Handled.seen = 0
        return steps(shell.run), Handled.seen

    small, large = read_line(500), read_line(1000)
    assert large[0] <= 2.1 * small[0]
    assert large[1] <= 2.1 * small[1]


def test_a_script_beyond_the_bounds_is_refused_and_not_cut() -> None:
    with pytest.raises(InputError, match="more than 2,000 launches"):
        read("sglang serve kimi-k3\n" * 2_001)
    with pytest.raises(InputError, match="a script of 300,021 characters is longer than 262,144"):
        read("sglang serve kimi-k3\n" + "#" * 300_000)
