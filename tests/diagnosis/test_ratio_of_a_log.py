"""From printed pools to constants: intervals, boots, ranks, and whether a model fits."""

from __future__ import annotations

import gzip
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from present import present

from hybridcalc import load_model
from hybridcalc.bootlog import Printed, Record
from hybridcalc.deployment import Workload
from hybridcalc.diagnosis import Question, diagnose_log
from hybridcalc.diagnosis.sglang.evidence import largest_page, log_constants, slot_range, token_range
from hybridcalc.diagnosis.sglang.ratio import balance_log, fitting_flags
from hybridcalc.engines.sglang import ServerArgs
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.errors import InputError
from hybridcalc.units import GIB

K3 = load_model("kimi-k3")
K3_ARGS = ServerArgs(tp_size=8, kv_cache_dtype="fp8_e4m3")


def gib(size: int) -> Printed:
    return Printed(f"{size / GIB:.2f}", GIB, 2)


def state(slots: int, conv: int, ssm: int) -> Record:
    sizes = ("conv", gib((slots + 1) * conv)), ("ssm", gib((slots + 1) * ssm))
    return Record("sglang", "state_pool", (("slots", slots), *sizes), "", 1)


def kv(tokens: int, **sizes: int) -> Record:
    return Record("sglang", "kv_pool", (("tokens", tokens), *((n, gib(size)) for n, size in sizes.items())), "", 2)


@given(
    st.integers(1, 5000), st.integers(0, 10**7), st.integers(1, 10**9), st.integers(1000, 10**7), st.integers(1, 10**6)
)
def test_the_true_constants_always_lie_in_the_intervals(
    slots: int, conv: int, ssm: int, tokens: int, cell: int
) -> None:
    """K + 1 slots and tokens + a page of 1 made the figures; what was printed allows the sizes that made them."""
    states, kvs = state(slots, conv, ssm), kv(tokens, kv=(tokens + 1) * cell)
    for part, size in (("conv", conv), ("ssm", ssm)):
        low, high = present(slot_range(states, part))
        assert low <= size <= high
    low, high = present(token_range(kvs, ServerArgs()))
    assert low <= cell <= high
    measured = log_constants(states, kvs, ServerArgs())
    assert present(measured.state_range)[0] <= measured.state_bytes <= present(measured.state_range)[1]


def test_a_known_page_narrows_the_interval() -> None:
    pool = kv(1_167_552, kv=1_167_553 * 13_824)
    wide, narrow = token_range(pool, ServerArgs()), token_range(pool, ServerArgs(page_size=1))
    assert present(wide)[0] < present(narrow)[0] and present(wide)[1] == present(narrow)[1]


@pytest.mark.parametrize(
    ("tokens", "page"),
    [(512, 256), (256, 256), (384, 128), (192, 64), (96, 32), (48, 16), (16, 16), (24, 1), (7, 1), (257, 1), (129, 1)],
)
def test_the_padding_page_is_at_most_the_largest_that_divides_the_tokens(tokens: int, page: int) -> None:
    assert largest_page(tokens, ServerArgs()) == page
    assert largest_page(tokens, ServerArgs(page_size=2)) == (2 if tokens % 2 == 0 else page)


def test_k_and_v_are_added_and_half_of_them_is_nothing() -> None:
    both, half = kv(1000, k=GIB, v=GIB), kv(1000, k=GIB)
    low, high = present(token_range(both, ServerArgs(page_size=1)))
    assert low <= Fraction(2 * GIB, 1001) < high
    assert token_range(half, ServerArgs()) is None


def test_the_flags_that_explain_a_log_are_found() -> None:
    """The published boot is Kimi-K3 on TP8 with fp8 KV; from wrong flags the smallest change is named."""
    pools = (state(257, 1_907_712, 54_263_808), kv(1_167_552, kv=1_167_553 * 13_824))
    rules = rules_for("0.5.23")[0]
    assert fitting_flags(K3, *pools, ServerArgs(tp_size=8), rules) == "--kv-cache-dtype fp8_e4m3"
    assert fitting_flags(load_model("qwen3.5-27b"), *pools, ServerArgs(), rules) == ""


def _write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "boot.log"
    path.write_text(text)
    return str(path)


LINES = (
    "[TP0] Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, ssm_state size: 13.04GB \n"
    "[TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1167552, KV size: 15.03 GB\n"
)


def test_the_last_complete_boot_of_a_log_is_used(tmp_path: Path) -> None:
    earlier = LINES.replace("257", "100").replace("0.46", "0.18").replace("13.04", "5.10")
    answer, findings = balance_log(_write(tmp_path, earlier + LINES), K3, K3_ARGS, Workload.at(9216))
    assert present(answer.setting("today")).slots == 257
    assert [finding.rule for finding in findings] == ["HC102", "HC100"]


def test_ranks_that_differ_are_a_warning(tmp_path: Path) -> None:
    other = LINES.replace("TP0", "TP1").replace("13.04", "12.00")
    _, findings = balance_log(_write(tmp_path, LINES + other), K3, K3_ARGS, Workload.at(9216))
    assert "HC103" in [finding.rule for finding in findings]


def test_a_draft_models_pool_is_not_the_targets(tmp_path: Path) -> None:
    draft = "[TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, #tokens: 1167552, KV size: 1.25 GB\n"
    answer, findings = balance_log(_write(tmp_path, LINES + draft), K3, K3_ARGS, Workload.at(9216))
    assert [finding.rule for finding in findings] == ["HC100"]
    assert present(answer.setting("today")).kv_tokens == 1_167_552


def test_a_state_line_alone_needs_the_model(tmp_path: Path) -> None:
    path = _write(tmp_path, LINES.splitlines()[0])
    with pytest.raises(InputError, match="no KV pool line with its sizes"):
        balance_log(path, None, ServerArgs(), Workload.at(9216))
    answer, findings = balance_log(path, K3, K3_ARGS, Workload.at(9216))
    assert answer.constants.origin == "architecture"
    assert [finding.rule for finding in findings] == ["HC100"]


def test_the_memory_of_a_boot_is_what_it_printed(tmp_path: Path) -> None:
    answer, _ = balance_log(_write(tmp_path, LINES), None, ServerArgs(), Workload.at(9216))
    assert answer.rest_gib == pytest.approx(0.46 + 13.04 + 15.03)


ABSURD = {
    "slots": ("257", "999999999999", "line 1: max_mamba_cache_size: 999,999,999,999 is no count of a real boot"),
    "slots in groups": ("257", "1" + ",000" * 11, "line 1: max_mamba_cache_size: 100000000000... (34 digits) is"),
    "tokens": ("1167552", "1" + ",000" * 100, "line 2: #tokens: 100000000000... (301 digits) is no count"),
    "tokens beyond floats": ("1167552", "1" + ",000" * 110, "line 2: #tokens: 100000000000... (331 digits) is"),
    "tokens of 1,201 digits": ("1167552", "1" + ",000" * 400, "line 2: #tokens: 100000000000... (1,201 digits) is no"),
    "endless tokens": ("1167552", "1" + ",000" * 1440, "no KV pool line with its sizes"),
    "endless slots": ("257", "1" + ",000" * 1440, "no state pool line with its sizes"),
    "huge size": ("15.03", "9999999999999", "line 2: a size of 9999999999999 GB is none of a real boot"),
    "huge state": ("13.04", "9999999999999", "line 1: a size of 9999999999999 GB is none of a real boot"),
    "no size": (
        r"[0-9.]+(?= ?GB)", "0.0000000000001",
        "line 1: 0.0000000000001 + 0.0000000000001 GB for 257 slots leave less than a byte for each",
    ),
    "no KV": ("15.03", "0.0000000000001", "line 2: 0.0000000000001 GB for 1,167,552 tokens leave less than a byte"),
    "tokens for their size": ("1167552", "999999999999", "line 2: 15.03 GB for 999,999,999,999 tokens leave less than"),
}  # fmt: skip


@pytest.mark.parametrize("rest_gib", [None, 10.0])
@pytest.mark.parametrize(("old", "new", "message"), ABSURD.values(), ids=ABSURD)
def test_an_absurd_figure_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, message: str, rest_gib: float | None
) -> None:
    """A log is outside data: no figure of it may end in a division by zero or an overflow."""
    path = _write(tmp_path, re.sub(old, new, LINES))
    with pytest.raises(InputError) as refusal:
        balance_log(path, None, ServerArgs(), Workload.at(9216), rest_gib=rest_gib)
    assert message in refusal.value.message and len(refusal.value.message) < 250


@pytest.mark.parametrize(
    ("old", "largest", "beyond"), [("257", "1000000000", "1000000001"), ("15.03", "1073741824", "1073741825")]
)
def test_the_largest_figures_of_a_real_boot_are_read(tmp_path: Path, old: str, largest: str, beyond: str) -> None:
    """2**30 GiB and 10**9 slots, and not one more."""
    balance_log(_write(tmp_path, LINES.replace(old, largest)), None, ServerArgs(), Workload.at(9216))
    with pytest.raises(InputError, match=r"is (no count|none) of a real boot"):
        balance_log(_write(tmp_path, LINES.replace(old, beyond)), None, ServerArgs(), Workload.at(9216))


def test_however_many_boots_a_log_has_the_last_one_is_used(tmp_path: Path) -> None:
    """All of them are counted; a start that is pasted again is none."""
    other = LINES.replace("257", "100").replace("0.46", "0.18").replace("13.04", "5.10")
    text = "".join((LINES, LINES, other) * 700)
    answer, findings = balance_log(_write(tmp_path, text), K3, K3_ARGS, Workload.at(9216))
    assert present(answer.setting("today")).slots == 100
    assert findings[0].message == "1,400 boots in the log: the one from line 4199 is used"


def test_both_commands_read_the_same_boots(tmp_path: Path) -> None:
    """What ``log`` takes for one start is one for ``ratio``: pools, their line and their number."""
    path = _write(tmp_path, "[TP0] Load weight begin. avail mem=90.00 GB\n" + LINES + LINES.replace("257", "200"))
    boots = diagnose_log(path, Question()).boots
    answer, findings = balance_log(path, None, K3_ARGS, Workload.at(9216))
    assert findings[0].message == f"{len(boots)} boots in the log: the one from line {boots[-1].boot.line} is used"
    assert present(answer.setting("today")).slots == boots[-1].boot.count("state_pool", "slots")


@pytest.mark.parametrize(("text", "rules"), [(LINES, ["HC104", "HC100"]), ("ready\n", [])], ids=["boot", "no boot"])
def test_a_gzip_log_that_is_cut_off_is_said_to_be(tmp_path: Path, text: str, rules: list[str]) -> None:
    """The boot that counts may have been in the part that is lost."""
    path = tmp_path / "boot.log.gz"
    path.write_bytes(gzip.compress(text.encode())[:-4])
    if rules:
        _, findings = balance_log(str(path), K3, K3_ARGS, Workload.at(9216))
        assert [finding.rule for finding in findings] == rules
        assert (findings[0].severity, findings[0].message[:27]) == ("warning", "the gzip file is cut off af")
    else:
        with pytest.raises(InputError, match="no SGLang pool allocation in it; the gzip file is cut off after"):
            balance_log(str(path), K3, K3_ARGS, Workload.at(9216))


def test_the_slots_of_a_request_that_a_log_prints_count(tmp_path: Path) -> None:
    """Whatever the flags give: this model caches no prefixes by default, and its boot held 3 slots a request."""
    log = tmp_path / "boot.log"
    log.write_text(
        "max_running_requests is capped to 7 by the mamba state cache (max_mamba_cache_size=23, 3 state slots per "
        "request).\nMamba Cache is allocated. max_mamba_cache_size: 23, conv_state size: 0.00GB, ssm_state size: "
        "1.12GB\nKV Cache is allocated. dtype: torch.bfloat16, #tokens: 1163264, K size: 4.44 GB, V size: 4.44 GB\n"
    )
    balance, _ = balance_log(str(log), load_model("minicpm-sala"), ServerArgs(), Workload.at(8192))
    assert (balance.slots.count, balance.slots.reason) == (3, "as the log prints it")
    assert balance.ratio == Fraction(9, 4)
