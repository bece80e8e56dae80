"""Every rule of vLLM's trap list: one configuration that it catches, one close by that it leaves alone, and its fix."""

import re
from dataclasses import replace
from typing import Any

import pytest
from present import present

from hybridcalc import load_model, vllm
from hybridcalc.deployment import Workload
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.flags import from_words
from hybridcalc.engines.vllm.rules import RULES
from hybridcalc.engines.vllm.server_plan import Plan, plan
from hybridcalc.errors import Refusal
from hybridcalc.findings import SEVERITIES, Finding
from hybridcalc.units import GIB

NEMOTRON, NEXT, KIMI = "nemotron-h-8b", "qwen3-next-80b-a3b", "kimi-linear-48b-a3b"
OLD = {"engine_version": "0.22.1", "enable_prefix_caching": True}
NGRAM: dict[str, Any] = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 7}}


def planned(
    model: str = NEMOTRON,
    *,
    gib: float = 40.0,
    length: int = 4200,
    concurrency: int | None = None,
    shared: int = 0,
    private: int = 0,
    **flags: Any,
) -> Plan:
    """A plan of Nemotron-H-8B at 8,192 tokens, or of another model, under ``flags``."""
    args = EngineArgs(**{"max_model_len": 8192, **flags})
    workload = Workload(((length, 1),) if length else (), concurrency, None, shared, private)
    return vllm.plan(load_model(model), args, available_bytes=int(gib * GIB), workload=workload)


def found(rule: str, **flags: Any) -> Finding | None:
    """The finding of one rule, or None."""
    return next((finding for finding in planned(**flags).findings if finding.rule == rule), None)


def mended(fix: str, flags: dict[str, Any]) -> dict[str, Any]:
    """``flags`` as a fix rewrites them: flags to write or to add, or to leave out."""
    changed = dict(flags)
    for name in re.findall(r"leave out --([a-z-]+)", fix):
        changed.pop(name.replace("-", "_"))
    line = re.search(r"(?:write|add|use) (--[^,]*)", fix)
    if line:
        words = line[1].split()
        if words[0] == "--engine-version":  # an option of the command, not of the engine
            return {name: value for name, value in changed.items() if name != "engine_version"} | {
                "engine_version": words[1]
            }
        changed |= from_words(words, {})[1].given()
    return changed


def test_every_rule_has_an_id_of_its_own_and_says_why() -> None:
    """HC040 to HC069, refusals first, each with severity, title, reason and source; some of HC047 is seen later."""
    ids = [rule.id for rule in RULES]
    assert ids == [f"HC{number:03d}" for number in range(40, 70)]
    assert all(rule.severity in SEVERITIES and rule.title and rule.reason and rule.source for rule in RULES)
    assert [rule.id for rule in RULES if rule.check is None] == [rule for rule in ids[:13] if rule != "HC047"]


REFUSALS = [
    ("HC040", "get_kv_cache_configs", {"gib": 0.01, "max_num_seqs": 1}, "no memory for the cache",
     {"gib": 1.0, "max_num_seqs": 1}),
    ("HC041", "get_kv_cache_configs", {"gib": 0.4, "max_num_seqs": 1}, "takes 26 blocks", None),
    ("HC042", "create_engine_config", {"mamba_cache_mode": "all", "engine_version": "0.32.0"},
     "has no Mamba cache mode all", {}),
    ("HC043", "create_engine_config", {"model": "bamba-9b"}, "no longer has BambaForCausalLM", None),
    ("HC044", "cudagraph_mamba_check", {"max_num_seqs": 2521}, "exceeds the 2,520 blocks", None),
    ("HC045", "resolve_kv_cache_block_sizes", {"prefix_match_unit": 100}, "does not divide the block", None),
    ("HC046", "get_kv_cache_spec", {"model": "lfm2-1.2b", **NGRAM}, "does not fit the page",
     {"model": "lfm2-1.2b"}),
    ("HC047", "initialize_model", {"block_size": 24}, "takes no block of 24 tokens", None),
    ("HC047", "layout+groups", {"env": {"VLLM_KV_CACHE_LAYOUT": "BHLNC"}}, "is no layout", {}),
    ("HC052", "layout+groups", {"disable_hybrid_kv_cache_manager": True}, "turns the hybrid manager off", {}),
    ("HC052", "layout+groups", {"kv_transfer_config": {"kv_connector": "LMCacheConnectorV1"}},
     "LMCacheConnectorV1 of --kv-transfer-config turns the hybrid manager off", {}),
    ("HC052", "layout+groups",
     {"kv_transfer_config": {"kv_connector": "MultiConnector", "kv_connector_extra_config": {
         "connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "HF3FSKVConnector"}]}}},
     "HF3FSKVConnector of --kv-transfer-config", {"kv_transfer_config": {
         "kv_connector": "MultiConnector", "kv_connector_extra_config": {
             "connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "OffloadingConnector"}]}}}),
    ("HC052", "layout+groups", {"kv_offloading_backend": "lmcache", "kv_offloading_size": 32.0},
     "--kv-offloading-backend lmcache (LMCacheMPConnector)", {"kv_offloading_backend": "lmcache"}),
    ("HC048", "retention", {"prefix_cache_retention_interval": 1000}, "no multiple of the block of 1,040", None),
    ("HC049", "create_engine_config", {"enable_chunked_prefill": False}, "needs chunked prefill",
     {"enable_chunked_prefill": False, "enable_prefix_caching": False}),
    ("HC050", "create_engine_config", {"tensor_parallel_size": 3}, "does not divide the 32 attention heads",
     {"tensor_parallel_size": 4}),
    ("HC050", "initialize_model", {"tensor_parallel_size": 16}, "vLLM runs 8 Mamba2 groups only",
     {"tensor_parallel_size": 8}),
    ("HC051", "create_engine_config", {"max_model_len": 8193}, "max_model_len 8,193 is beyond the model's own 8,192",
     None),
    ("HC049", "create_engine_config", {"speculative_config": {"num_speculative_tokens": 2}},
     "names neither a method nor a draft model", NGRAM),
    ("HC049", "create_engine_config", {"speculative_config": {"method": "ngram"}}, "needs a number of draft tokens",
     NGRAM),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "stage", "flags", "reason", "instead"), REFUSALS)
def test_a_refusal_carries_its_rule_its_stage_and_a_fix_that_starts(
    rule: str, stage: str, flags: dict[str, Any], reason: str, instead: dict[str, Any] | None
) -> None:
    """What the engine does not start with is raised where it checks; under its own fix, or one value on, it starts."""
    with pytest.raises(Refusal) as caught:
        planned(**flags)
    refusal = caught.value
    assert (refusal.rule, refusal.stage) == (rule, stage)
    assert reason in refusal.reason and refusal.fix
    changed = instead if instead is not None else mended(re.split("[,;] or ", refusal.fix)[0], flags)
    assert changed != flags
    assert planned(**changed).num_blocks > 0


@pytest.mark.parametrize(("mode", "version"), [("all", "0.32.0")])
def test_the_version_that_a_refusal_names_starts(mode: str, version: str) -> None:
    with pytest.raises(Refusal) as caught:
        planned(mamba_cache_mode=mode, engine_version=version)
    assert planned(mamba_cache_mode=mode, engine_version=caught.value.release).num_blocks > 0


TRAPS: list[tuple[str, str, dict[str, Any], dict[str, Any], str]] = [
    ("HC053", "warning", {"kv_transfer_config": {"kv_connector": "MyConnector"}},
     {"kv_transfer_config": {"kv_connector": "NixlConnector"}},
     "whether 'MyConnector' keeps hybrid caches is not known"),
    ("HC047", "error", {"env": {"VLLM_KV_CACHE_LAYOUT": "BLNHC"}, "engine_version": "0.28.0"},
     {"env": {"VLLM_KV_CACHE_LAYOUT": "HND"}, "engine_version": "0.28.0"},
     "VLLM_KV_CACHE_LAYOUT=BLNHC stops the start: this release knows NHD and HND"),
    ("HC047", "error", {"kv_cache_dtype": "int8_per_token_head", "engine_version": "0.21.0"},
     {"kv_cache_dtype": "int8_per_token_head", "engine_version": "0.22.0"}, "stops the start at its last"),
    ("HC047", "error", {"kv_cache_dtype": "fp8_e5m2", "engine_version": "0.19.0"},
     {"kv_cache_dtype": "fp8_e5m2", "engine_version": "0.19.0", "gpu_capability": "8.9"},
     "stops the start at its last"),
    ("HC054", "warning", {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 2}}, NGRAM,
     "no KV of the draft model is counted"),
    ("HC069", "warning", {"uncounted": ("--enable-lora",)}, {}, "--enable-lora is not modelled"),
    ("HC068", "warning", {"mamba_block_size": 512}, {"mamba_block_size": 1040},
     "in mode align it is the attention block"),
    ("HC055", "warning", {"shared": 900, "private": 200, **OLD}, {"shared": 4000, "private": 200, **OLD},
     "a prefix of 900 shared tokens is never reused: hits land on blocks of 1,280"),
    ("HC055", "warning", {"shared": 900, "private": 200}, {"shared": 1040, "private": 200}, "blocks of 1,040"),
    ("HC055", "warning", {"model": NEXT, "shared": 1000, "private": 200, "speculative_config": {"method": "mtp"}},
     {"model": NEXT, "shared": 1000, "private": 200}, "a hit needs 1,152 shared tokens"),
    ("HC056", "warning", OLD, {**OLD, "mamba_cache_mode": "align"}, "23.2 % of a state is padding"),
    ("HC056", "warning", {"block_size": 1024}, {}, "fills a page of 8,388,608 B: 97.1 % of a state is padding"),
    ("HC057", "warning", {"block_size": 1024}, {"block_size": 1040},
     "--block-size 1024 grows to 2,048 tokens, in steps of its own: 1,040 would do"),
    ("HC058", "note", {"kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8", "model": "llama-3-8b"},
     "fp8 KV makes blocks of 2,080 tokens out of 1,040, and pages stay at 4.06 MiB"),
    ("HC059", "note", {"length": 1000}, {"length": 4200}, "is room for 132 requests of 1,000 tokens, not 794"),
    ("HC060", "warning", {"max_num_seqs": 436}, {"max_num_seqs": 435}, "but 109 requests of 4,200 tokens fit"),
    ("HC060", "warning", {"max_num_seqs": 27}, {"max_num_seqs": 28},
     "--max-num-seqs 27, and 109 requests of 4,200 tokens fit"),
    ("HC061", "warning", {"gib": 16.0}, {"gib": 16.0, "max_num_seqs": 256}, "and 1,008 blocks would be refused"),
    ("HC061", "warning", {"gib": 16.0}, {"gib": 17.0}, "1,024 by default"),
    ("HC062", "error", {"length": 8193}, {"length": 8192}, "requests of 8,193 tokens exceed max_model_len 8,192"),
    ("HC063", "error", {"concurrency": 110}, {"concurrency": 109},
     "110 requests are wanted, 109 run: 2,519 blocks hold 109 x 23"),
    ("HC063", "error", {"concurrency": 60, "max_num_seqs": 50}, {"concurrency": 60, "max_num_seqs": 60},
     "60 requests are wanted, 50 run: max_num_seqs is 50"),
    ("HC063", "error", {"concurrency": 110, "max_num_seqs": 50}, {"concurrency": 50, "max_num_seqs": 50},
     "2,519 blocks hold 109 x 23, and max_num_seqs is 50"),
    ("HC064", "warning", {"model": "lfm2-1.2b"}, {},
     "groups of 5, 6 layers share blocks of 6: 11 % of the layer slots stay empty"),
    ("HC065", "warning", {"mamba_cache_mode": "none"}, {"mamba_cache_mode": "align"},
     "--mamba-cache-mode none has no effect: the mode is align, since prefix caching decides it"),
    ("HC065", "warning", {"model": NEXT, **OLD, "mamba_cache_mode": "all"}, {**OLD, "mamba_cache_mode": "all"},
     "the mode is align, the model class does not support it"),
    ("HC065", "warning", {"mamba_cache_mode": "align", "enable_prefix_caching": False}, {"mamba_cache_mode": "align"},
     "--mamba-cache-mode align has no effect: the mode is none, since prefix caching is off"),
    ("HC066", "warning", {"model": "lfm2-1.2b", "mamba_ssm_cache_dtype": "float32"},
     {"model": NEXT, "mamba_ssm_cache_dtype": "float32"}, "a shortconv layer keeps no temporal state"),
    ("HC066", "warning", {"model": "ling-2.6-flash", "mamba_ssm_cache_dtype": "bfloat16"},
     {"model": "kimi-k3", "tensor_parallel_size": 8, "mamba_ssm_cache_dtype": "bfloat16"},
     "a lightning layer keeps no temporal state"),
    ("HC067", "note", NGRAM, {"model": "llama-3-8b", **NGRAM},
     "7 draft tokens hold 7 blocks in each of 6 state groups: 714.00 MiB a request, 25.80 GiB for 37"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "severity", "caught", "left", "words"), TRAPS)
def test_a_trap_is_found_and_its_neighbour_is_not(
    rule: str, severity: str, caught: dict[str, Any], left: dict[str, Any], words: str
) -> None:
    """The finding names the numbers that make it one; a configuration next to it has none."""
    finding = found(rule, **caught)
    assert finding is not None and finding.severity == severity
    assert words in finding.message
    assert found(rule, **left) is None


@pytest.mark.parametrize(
    ("rule", "flags"),
    [
        (rule, caught)
        for rule, _, caught, _, _ in TRAPS
        if re.match(r"write|leave out --|leave it out", getattr(found(rule, **caught), "fix", ""))
    ],
)
def test_the_fix_of_a_trap_mends_it(rule: str, flags: dict[str, Any]) -> None:
    """Planned again under what it says, the rule has nothing more to say."""
    fix = present(found(rule, **flags)).fix
    if fix == "leave it out":
        changed = {
            name: value for name, value in flags.items() if name not in ("mamba_cache_mode", "mamba_ssm_cache_dtype")
        }
    else:
        changed = mended(fix, flags)
    assert changed != flags
    assert found(rule, **changed) is None


def test_every_trap_above_that_has_a_fix_of_flags_is_mended() -> None:
    """The selection above would be empty in silence otherwise."""
    written = {
        rule
        for rule, _, caught, _, _ in TRAPS
        if (present(found(rule, **caught)).fix or "share").startswith(("w", "l"))
    }
    assert written == {"HC047", "HC055", "HC056", "HC057", "HC060", "HC061", "HC063", "HC065", "HC066", "HC068"}
    assert {rule for rule, *_ in [*TRAPS, *REFUSALS]} == {rule.id for rule in RULES}


@pytest.mark.parametrize("wanted", [110, 190, 225])
def test_the_fix_for_too_few_requests_reaches_the_number_wanted(wanted: int) -> None:
    finding = present(found("HC063", concurrency=wanted))
    assert finding.fix.startswith("write --")
    assert planned(**mended(finding.fix, {}), concurrency=wanted).concurrency >= wanted


def test_no_fix_is_written_that_does_not_fit() -> None:
    assert present(found("HC063", concurrency=10_000)).fix == "use more memory, or shorten the requests"


def test_blocks_that_drafts_take_are_counted_as_the_planner_counts_them() -> None:
    """Without the drafts a request holds so many blocks fewer."""
    plan = planned(**NGRAM)
    for drafts in (1, 7):
        some = planned(speculative_config={"method": "ngram", "num_speculative_tokens": drafts})
        (note,) = [finding.message for finding in some.findings if finding.rule == "HC067"]
        taken = (some.fixed_blocks - planned().fixed_blocks) * some.bytes_per_block
        assert note.startswith(f"{drafts} draft tokens hold {drafts} blocks in each of 6 state groups: ")
        assert f"{taken / 2**20:.2f} MiB a request, " in note
    assert plan.fixed_blocks == 6 * 7 + planned().fixed_blocks


def test_a_length_that_no_memory_serves_is_not_told_a_flag() -> None:
    """The model's own end, or what the memory holds; else the length itself."""
    assert present(found("HC062", length=9000)).fix == "shorten the requests: the model itself ends at 8,192"
    small: dict[str, Any] = {"model": NEXT, "gib": 2.0, "length": 100_000, "max_num_seqs": 1}
    longest = planned(**small).longest_model_len
    assert present(found("HC062", **small)).fix == (
        f"shorten the requests, or use more memory: up to {longest:,} start on this"
    )
    assert planned(**small | {"max_model_len": longest}).max_model_len == longest
    with pytest.raises(Refusal, match=r"^one request of "):
        planned(**small | {"max_model_len": longest + 1})
    assert present(found("HC062", length=5000, max_model_len=4096)).fix == "write --max-model-len 5000"
    assert found("HC062", length=5000, max_model_len=5000) is None


def test_errors_come_first() -> None:
    flags: dict[str, Any] = {
        "max_num_seqs": 2000,
        "kv_cache_dtype": "fp8",
        "kv_transfer_config": {"kv_connector": "MyConnector"},
    }
    order = [found.severity for found in planned(concurrency=1000, length=1000, **flags).findings]
    assert order == sorted(order, key=("error", "warning", "note").index) and len(set(order)) == 3


def test_a_configuration_that_fits_its_workload_has_no_findings() -> None:
    assert planned(max_num_seqs=109).findings == ()


def test_a_state_that_pins_the_page_is_told_what_shrinks_it() -> None:
    """A float32 state is; under a bfloat16 one there is nothing left to say."""
    assert "--mamba-ssm-cache-dtype bfloat16" in present(found("HC058", kv_cache_dtype="fp8")).fix
    assert present(found("HC058", kv_cache_dtype="fp8", mamba_ssm_cache_dtype="bfloat16")).fix == ""


def test_a_replayed_state_of_another_dtype_is_not_called_ignored() -> None:
    """ReplaySSM's last tensor is a ring, not the state."""
    args = EngineArgs(
        max_model_len=8192,
        use_replayssm=True,
        mamba_backend="flashinfer",
        enable_prefix_caching=False,
        mamba_ssm_cache_dtype="float32",
    )
    plan = vllm.plan(load_model(NEMOTRON), args, available_bytes=40 * GIB)
    assert not [f for f in plan.findings if f.rule == "HC066"]
    assert replace(args, use_replayssm=False) != args


def connected(name: str, release: str, **given: Any) -> vllm.Plan:
    args = EngineArgs(engine_version=release, max_num_seqs=8, kv_transfer_config={"kv_connector": name}, **given)
    return plan(load_model("qwen3.5-27b"), args, available_bytes=60 * 2**30)


@pytest.mark.parametrize(
    ("name", "release", "keeps"),
    [
        ("MooncakeStoreConnector", "0.22.0", True), ("MoRIIOConnector", "0.29.0", False),
        ("MoRIIOConnector", "0.30.0", True), ("P2pNcclConnector", "0.27.0", False),
        ("NixlConnector", "0.22.1", True), ("NixlConnector", "0.21.0", False),
    ],
)  # fmt: skip
def test_connectors_keep_hybrids_from_their_release_on(name: str, release: str, keeps: bool) -> None:
    """SupportsHMA of each release; before 0.22 every connector turns the hybrid manager off."""
    if keeps:
        assert not [f for f in connected(name, release).findings if "not known" in f.message]
        return
    with pytest.raises(Refusal, match="turns the hybrid manager off"):
        connected(name, release)


def test_before_0_22_connectors_keep_hybrids_where_the_manager_is_asked_for() -> None:
    """--no-disable-hybrid-kv-cache-manager; a connector that does not know the manager refuses it all the same."""
    assert connected("NixlConnector", "0.21.0", disable_hybrid_kv_cache_manager=False).num_blocks
    with pytest.raises(Refusal, match=r"^OffloadingConnector of --kv-transfer-config turns"):
        connected("OffloadingConnector", "0.20.2", disable_hybrid_kv_cache_manager=False)


def test_of_any_other_connector_it_is_said_that_nothing_is_known() -> None:
    found = connected("SomebodysConnector", "0.33.0").findings
    assert any("keeps hybrid caches is not known" in finding.message for finding in found)


@pytest.mark.parametrize(
    ("given", "off"),
    [
        ({"kv_offloading_size": 8.0, "engine_version": "0.20.2"}, r"--kv-offloading-size \(OffloadingConnector\)"),
        ({"kv_offloading_size": 8.0, "engine_version": "0.21.0"}, ""),
        ({"kv_offloading_size": 8.0, "engine_version": "0.19.0", "env": {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}}, ""),
        ({"kv_events_config": {}, "engine_version": "0.19.0"}, "--kv-events-config"),
        ({"kv_events_config": {}, "engine_version": "0.20.0"}, ""),
    ],
)
def test_offloading_and_events_keep_hybrids_by_release(given: dict[str, Any], off: str) -> None:
    """OffloadingConnector keeps caches of several kinds from 0.21 on; KV events from 0.20 on."""
    args = EngineArgs(**{"max_num_seqs": 8, "max_model_len": 8192} | given)
    model = load_model("qwen3.5-27b")
    if not off:
        assert plan(model, args, available_bytes=60 * 2**30).num_blocks
        return
    with pytest.raises(Refusal, match=off):
        plan(model, args, available_bytes=60 * 2**30)


@pytest.mark.parametrize(("replicas", "each"), [(1, 33), (2, 17), (3, 11)])
def test_what_is_wanted_is_shared_out_among_replicas(replicas: int, each: int) -> None:
    """33 requests on so many replicas, each rounded up."""
    args = EngineArgs(max_model_len=8192, max_num_seqs=8, data_parallel_size=replicas)
    work = Workload.at(8192, concurrency=33)
    made = vllm.plan(load_model(NEMOTRON), args, available_bytes=40 * GIB, workload=work)
    assert [found.fix for found in made.findings if found.rule == "HC063"] == [f"write --max-num-seqs {each}"]
