"""SGLang as an engine."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from hybridcalc.deployment import Memory
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.flags import PLATFORMS, RETIRED
from hybridcalc.errors import InputError, quoted


class Sglang(Engine):
    """SGLang's server."""

    name, title = "sglang", "SGLang"
    model_flag = "--model-path"
    memory_option = "rest"
    options = frozenset({
        "rest", "gpu", "weights", "avail_before", "avail_after", "engine_version", "platform", "draft_layers",
        "draft_kv_bytes_per_token", "max_draft_tokens", "tp_size", "dp_size", "enable_dp_attention", "dcp_size",
        "kv_cache_dtype", "mamba_ssm_dtype", "env",
    })  # fmt: skip
    stages = (
        "arguments", "load", "strategy", "shapes", "ratio", "solve", "tokens", "max_running_requests", "alloc",
    )  # fmt: skip
    retired = MappingProxyType(RETIRED)
    settles = MappingProxyType({"HC002": frozenset({"HC013", "HC023"})})

    def check_options(self, given: Mapping[str, Any]) -> None:
        """As every engine; and the platform."""
        super().check_options(given)
        platform = given.get("platform")
        if platform is not None and platform not in PLATFORMS:
            raise InputError(f"--platform {quoted(platform)} is not known", fix=f"write {', '.join(PLATFORMS)}")

    def remarks(self, args: ServerArgs, known: Memory) -> list[str]:
        """As every engine."""
        said = super().remarks(args, known)
        if known.rest is not None and args.mem_fraction_static is not None:
            said.append("--rest is given: --mem-fraction-static changes nothing here")
        return said

    def ranks(self, args: ServerArgs) -> int:
        """As every engine; data-parallel workers beside attention workers have ranks of their own."""
        return args.tp_size * args.pp_size * (1 if args.enable_dp_attention else args.dp_size)


ENGINE = Sglang()
