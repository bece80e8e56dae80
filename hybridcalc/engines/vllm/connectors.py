"""What does moving KV to other servers or memory do to a model with states beside attention?

Only the hybrid manager keeps both, and a connector that keeps no caches of several kinds turns it off: the start fails.
Before 0.22 any connector does unless --no-disable-hybrid-kv-cache-manager asks for the manager, and so do KV events
before 0.20. --kv-offloading-size brings a connector in after that is decided, which then refuses the manager if it does
not know it. Mirrors vLLM config/vllm.py, SupportsHMA of distributed/kv_transfer/kv_connector/v1/ and factory.py.
"""

from collections.abc import Mapping
from typing import NamedTuple

from hybridcalc.architecture import Architecture, LatentKV
from hybridcalc.engines.vllm import EngineArgs
from hybridcalc.engines.vllm.layers import PURE_STATE_LAYOUTS, Backend
from hybridcalc.engines.vllm.releases import RuleSet
from hybridcalc.units import is_later

MOST_CONNECTORS = 64
MULTI, OFFLOADING, SIMPLE_OFFLOADING = "MultiConnector", "OffloadingConnector", "SimpleCPUOffloadConnector"
OFFLOADING_TO_LMCACHE = "LMCacheMPConnector"
"""The connector of --kv-offloading-backend lmcache."""
NO_HYBRIDS = frozenset({
    "LMCacheConnectorV1", OFFLOADING_TO_LMCACHE, "FlexKVConnectorV1", "HF3FSKVConnector", "ExampleConnector",
    "P2pNcclConnector",
})  # fmt: skip
"""KV connectors that keep no caches of several kinds in any release."""
KEEP_HYBRIDS = {
    "NixlConnector": "0.18.0", "NixlPullConnector": "0.18.0", "NixlPushConnector": "0.18.0",
    SIMPLE_OFFLOADING: "0.19.0", "MooncakeConnector": "0.20.0", OFFLOADING: "0.21.0", "DecodeBenchConnector": "0.21.0",
    "ExampleHiddenStatesConnector": "0.22.0", "MooncakeStoreConnector": "0.22.0", "MoRIIOConnector": "0.30.0",
    "HiSparseConnector": "0.30.0", "UMBPStoreConnector": "0.33.0",
}  # fmt: skip
"""Those that keep them, and the oldest release where they do; of any other nothing is known here."""

HEADS_FIRST, BLOCKS_FIRST = "LBHNC", "BLHNC"
LAYOUTS = {
    "NixlConnector": HEADS_FIRST, "NixlPullConnector": HEADS_FIRST, "NixlPushConnector": HEADS_FIRST,
    "MooncakeConnector": HEADS_FIRST, OFFLOADING: HEADS_FIRST, "HiSparseConnector": BLOCKS_FIRST,
}  # fmt: skip
"""Connectors -> the cache layout that they ask for, which is taken where every cache can be kept in it."""
OF_PLAIN_HEADS = ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "MooncakeConnector")
"""Those that ask for none where rows are latent."""


def layout_of(model: Architecture, args: EngineArgs, rules: RuleSet, backend: Backend | None) -> str | None:
    """The cache layout that a connector brings about; None where the backend's default stays."""
    if not rules.layouts_refused or "VLLM_KV_CACHE_LAYOUT" in args.env:
        return None
    taken = backend.layouts if backend is not None else PURE_STATE_LAYOUTS
    latent = isinstance(model.attention, LatentKV)
    asked = {LAYOUTS.get(name) for name in connectors(args) if not (latent and name in OF_PLAIN_HEADS)}
    return next((layout for layout in sorted(asked - {None}, key=str) if layout in taken), None)


def connectors(args: EngineArgs) -> tuple[str, ...]:
    """The KV connectors that a launch brings in, those of a MultiConnector one by one."""
    offloading = _offloading(args)
    return (*_transfer(args), *((offloading,) if offloading else ()))


def _transfer(args: EngineArgs) -> tuple[str, ...]:
    found, given = list[str](), [args.kv_transfer_config]
    while given and len(found) < MOST_CONNECTORS:
        config = given.pop()
        name = config.get("kv_connector") if isinstance(config, Mapping) else None
        if not isinstance(config, Mapping) or not isinstance(name, str):
            continue
        extra = config.get("kv_connector_extra_config")
        inner = extra.get("connectors") if isinstance(extra, Mapping) and name == MULTI else None
        if isinstance(inner, list):
            given += inner
        else:
            found.append(name)
    return tuple(found)


def _offloading(args: EngineArgs) -> str:
    """The connector that --kv-offloading-size brings in; "" without it, or for a backend that is not known."""
    if not args.kv_offloading_size:
        return ""
    simple = args.env.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0").strip().lower() in ("1", "true")
    native = SIMPLE_OFFLOADING if simple else OFFLOADING
    return {"native": native, "lmcache": OFFLOADING_TO_LMCACHE}.get(
        (args.kv_offloading_backend or "native").lower(), ""
    )


def keeps_hybrids(name: str, rules: RuleSet) -> bool | None:
    """Whether a connector keeps caches of several kinds in the release; None where that is not known."""
    since = KEEP_HYBRIDS.get(name)
    if since is None:
        return False if name in NO_HYBRIDS else None
    return not is_later(since, rules.version)


class Off(NamedTuple):
    """What turns the hybrid manager off, in words, and what to do about it."""

    what: str
    fix: str = "leave it out"


def without_hybrids(args: EngineArgs, rules: RuleSet) -> Off | None:
    """The flag, or the connector that keeps no hybrid caches; None where the hybrid manager stays on."""
    if args.disable_hybrid_kv_cache_manager:
        return Off("--disable-hybrid-kv-cache-manager")
    if args.kv_events_config is not None and rules.events_without_hybrids:
        return Off("--kv-events-config")
    asked, opting_in = args.disable_hybrid_kv_cache_manager is False, "--no-disable-hybrid-kv-cache-manager"
    if args.kv_transfer_config is not None and rules.connectors_opt_in and not asked:
        return Off(f"--kv-transfer-config without {opting_in}", f"add {opting_in}")
    found = next((name for name in connectors(args) if keeps_hybrids(name, rules) is False), None)
    if found is None:
        return None
    lmcache = found == OFFLOADING_TO_LMCACHE
    fix = f"leave it out{', or install an lmcache package whose own connector keeps hybrids' if lmcache else ''}"
    if found == _offloading(args):
        return Off(f"{'--kv-offloading-backend lmcache' if lmcache else '--kv-offloading-size'} ({found})", fix)
    return Off(f"{found} of --kv-transfer-config", fix)
