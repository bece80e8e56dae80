"""A table of flags of any engine: how words are read, which names are passed over, refused or ambiguous.

The tables of the engines, and their words about real flags, are tested in tests/engines.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybridcalc.errors import InputError
from hybridcalc.shell.flags import MOST_UNKNOWN, Flag, FlagTable, check_resolved, is_flag
from hybridcalc.shell.parse import split_command

FLAGS = (
    Flag("model", ("--model",), "str"),
    Flag("ranks", ("--ranks", "-r"), "int", 1, 64),
    Flag("share", ("--memory-share",), "float", 0, 1),
    Flag("length", ("--longest",), "tokens", -1, 10**6),
    Flag("caching", ("--enable-caching",), "switch"),
    Flag("eager", ("--eager",), "flag"),
    Flag("extra", ("--extra",), "json"),
    Flag("mode", ("--mode",), "str", choices=("fast", "small")),
)
TABLE = FlagTable("Toy", FLAGS, {"--port", "--memory-saver"}, {"--config"}, read_tokens=lambda text: int(text) if
                  text.lstrip("-").isdecimal() else None, multiples="no multiples")  # fmt: skip


def read(text: str) -> dict[str, Any]:
    return TABLE.read(split_command(text))


def problem(text: str) -> tuple[str, str]:
    with pytest.raises(InputError) as caught:
        read(text)
    return caught.value.message, caught.value.fix


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("", {}),
        ("m", {"": "m"}),
        ("m --ranks 8", {"": "m", "--ranks": 8}),
        ("-r 8 --ranks=4", {"--ranks": 4}),
        ("--memory-share .5", {"--memory-share": 0.5}),
        ("--longest -1", {"--longest": -1}),
        ("--eager --enable-caching", {"--eager": True, "--enable-caching": True}),
        ("--no-enable-caching", {"--enable-caching": False}),
        ("--disable-caching", {"--enable-caching": False}),
        ("--no-enable-caching --enable-caching", {"--enable-caching": True}),
        ("--extra '{\"a\": [1]}'", {"--extra": {"a": [1]}}),
        ("--mode small", {"--mode": "small"}),
        ("--rank 3 --long=9", {"--ranks": 3, "--longest": 9}),
        ("--no-enable-cach", {"--enable-caching": False}),
        ("--no-en --disable-c", {"--enable-caching": False}),
        ("--enable-cach", {"--enable-caching": True}),
        ("--mode-of-transport x", {}),
        ("--port 80 81 --ranks 2", {"--ranks": 2}),
        ("--port=80 --unheard-of x y -z", {}),
        ("--unheard-of '$X'", {}),
    ],
)
def test_words_are_read_as_argparse_reads_them(text: str, given: dict[str, Any]) -> None:
    """By the first spelling; abbreviations of one flag; values of what is passed over go with it."""
    assert read(text) == given


@pytest.mark.parametrize(
    ("text", "message", "fix"),
    [
        ("--memory 1", "--memory could be --memory-saver, --memory-share", "write the flag in full"),
        ("--rankz 8", "--rankz is not a flag of Toy", "write --ranks"),
        ("--mod fast", "--mod could be --mode, --model", "write the flag in full"),
        ("--no-enabel-caching", "--no-enabel-caching is not a flag of Toy", "write --no-enable-caching"),
        ("--eager=1", "--eager takes no value, but has '1'", "write --eager alone"),
        ("--no-enable-caching=1", "--no-enable-caching takes no value, but has '1'", "write --no-enable-caching alone"),
        ("--no-eager", "--no-eager is not a flag of Toy", "write --eager"),
        ("--ranks", "--ranks has no value", "write --ranks and a whole number from 1 to 64"),
        (
            "--longest",
            "--longest has no value",
            "write --longest and a whole number from -1 to 1,000,000 (no multiples)",
        ),
        ("--extra", "--extra has no value", 'write --extra and a JSON object, as {"method": "mtp"}'),
        ("--mode", "--mode has no value", "write --mode and one of fast, small"),
        ("--ranks 65", "--ranks '65' is not a whole number from 1 to 64", ""),
        ("--ranks 1e1", "--ranks '1e1' is not a whole number from 1 to 64", ""),
        ("--memory-share 0", "--memory-share '0' is not a number above 0 and at most 1", ""),
        ("--memory-share nan", "--memory-share 'nan' is not a number above 0 and at most 1", ""),
        ("--longest many", "--longest 'many' is not a whole number from -1 to 1,000,000 (no multiples)", ""),
        ("--extra [1]", '--extra \'[1]\' is not a JSON object, as {"method": "mtp"}', ""),
        ("--mode slow", "--mode 'slow' is not one of fast, small", ""),
        ("--mode ''", "--mode '' is not one of fast, small", ""),
        ("--model ''", "--model '' is not a name", ""),
        ("--ranks 8 9", "'9' after --ranks belongs to no flag", "leave it out, or name its flag"),
        (
            "--ranks 8 qwen3.6-27b",
            "'qwen3.6-27b' after --ranks belongs to no flag",
            "a MODEL stands before the engine's flags; else name its flag",
        ),
        ("m n", "'n' belongs to no flag", "leave it out, or name its flag"),
        ("--config x", "--config names a file of flags, which is not read", "give its flags in its place"),
        ("m --", "-- stands alone: Toy takes nothing but flags", "leave it out"),
        ("--ranks $R", "'$R' is a value the shell decides", "give it literally"),
        ("$M", "'$M' is a value the shell decides", "give it literally"),
        ("\u2014ranks 8", "'\u2014ranks' begins with a typographic dash", "write --ranks"),
    ],
)
def test_what_is_wrong_is_said_word_by_word(text: str, message: str, fix: str) -> None:
    """What, and what to write instead. A flag that is no switch has no negative form."""
    assert problem(text) == (message, fix)


def test_names_that_no_list_has_are_collected_and_bounded() -> None:
    unknown: list[str] = []
    assert TABLE.read(["m", "--no-memory-saver"], unknown=unknown) == {"": "m"}
    assert unknown == []
    assert TABLE.read(["m", "--new", "1", "--ranks", "2", "--port", "3"], unknown=unknown) == {"": "m", "--ranks": 2}
    assert unknown == ["--new"]
    with pytest.raises(InputError, match=rf"(?m)^more than {MOST_UNKNOWN} flags are unknown to Toy$"):
        TABLE.read([f"--{number:040b}" for number in range(MOST_UNKNOWN + 1)])


def test_an_engine_may_spell_its_flags_in_more_than_one_way() -> None:
    table = FlagTable("Toy", FLAGS, (), (), read_tokens=int, multiples="", spelling=lambda name: name.replace("_", "-"))
    assert table.read(["--memory_share=0.5", "--enable_caching"]) == {"--memory-share": 0.5, "--enable-caching": True}


@pytest.mark.parametrize(
    ("word", "flag"),
    [
        ("--x", True),
        ("-x", True),
        ("--", True),
        ("-", False),
        ("-1", False),
        ("-0.5", False),
        ("-.5", False),
        ("x", False),
        ("", False),
        ("- a", False),
        ("--x y", False),
        ("--x=y z", True),
    ],
)
def test_which_words_argparse_takes_for_flags(word: str, flag: bool) -> None:
    assert is_flag(word) is flag


def test_a_word_of_the_shell_is_named() -> None:
    (word,) = split_command('"$HOME/x"')
    with pytest.raises(InputError) as caught:
        check_resolved(word)
    assert "is a value the shell decides" in caught.value.message
    (quoted,) = split_command("'$HOME/x'")
    check_resolved(quoted)


@given(
    st.lists(
        st.sampled_from(["--ranks", "-r", "--mode", "--extra", "--eager", "--", "-", "{}", "8", "fast", ""])
        | st.text(max_size=8),
        max_size=8,
    )
)
def test_any_words_give_values_or_an_input_error(words: list[str]) -> None:
    try:
        found = TABLE.read(words)
    except InputError as error:
        said, found = error.message + error.fix, {}
    else:
        said = ""
    assert "\n" not in said
    assert set(found) <= {"", *(flag.spellings[0] for flag in FLAGS)}


@pytest.mark.parametrize(
    ("value", "fix"), [("32k", "write 32768"), ("2M", "write 2097152"), ("32,768", "write digits alone")]
)
def test_an_engine_that_stops_behind_the_digits_is_said_to(value: str, fix: str) -> None:
    flags = (Flag("length", ("--longest",), "int", 0, 10**6),)
    table = FlagTable("Toy", flags, (), (), read_tokens=int, multiples="", leading_digits=True)
    with pytest.raises(InputError) as caught:
        table.read(["--longest", value])
    digits = value.strip("kM").partition(",")[0]
    assert (f"read as {digits}: Toy stops" in caught.value.message, caught.value.fix) == (True, fix)
