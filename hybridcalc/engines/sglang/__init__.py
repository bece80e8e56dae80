"""SGLang: its arguments, its start-up, and what to set.

``plan(model, args, rest_gib=...)`` runs the start-up; a configuration the engine refuses raises ``Refusal``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridcalc.deployment import Memory
from hybridcalc.engines import names_of_modules
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import InputError, Refusal, quoted

if TYPE_CHECKING:
    from hybridcalc.engines.sglang.fraction import resolve as resolve
    from hybridcalc.engines.sglang.server_plan import Plan as Plan
    from hybridcalc.engines.sglang.server_plan import plan as plan
    from hybridcalc.hardware import Gpu


__all__ = ["NEWEST_VERSION", "Plan", "Refusal", "ServerArgs", "plan", "resolve", "rules_for"]


class Sglang(Engine):
    """SGLang's server."""

    name, title = "sglang", "SGLang"
    model_flag = "--model-path"
    memory_option = "rest"
    options = frozenset(
        {
            "rest",
            "gpu",
            "weights",
            "avail_before",
            "avail_after",
            "engine_version",
            "platform",
            "draft_layers",
            "draft_kv_bytes_per_token",
            "max_draft_tokens",
            "tp_size",
            "dp_size",
            "enable_dp_attention",
            "dcp_size",
            "kv_cache_dtype",
            "mamba_ssm_dtype",
            "env",
            "pp_size",
            "ep_size",
            "quantization",
        }
    )
    stages = ("arguments", "load", "strategy", "shapes", "ratio", "solve", "tokens", "max_running_requests", "alloc")
    indivisible = ("load", "HC009")
    in_container = ("--host", "0.0.0.0")  # noqa: S104  (of the container)

    def check_options(self, given: Mapping[str, Any]) -> None:
        """As every engine; and the platform."""
        super().check_options(given)
        platform = given.get("platform")
        if platform is not None:
            from hybridcalc.engines.sglang.flags import PLATFORMS

            if platform not in PLATFORMS:
                raise InputError(f"--platform {quoted(platform)} is not known", fix=f"write {', '.join(PLATFORMS)}")

    def with_options(self, args: ServerArgs, given: Mapping[str, Any]) -> ServerArgs:
        """As every engine; and what a GPU (``gpu``) decides."""
        card: Gpu | None = given.get("gpu")
        if card is not None:
            mib = args.gpu_memory_mib or round(card.gib * 1024)
            args = args.changed(gpu_memory_mib=mib, gpu_capability=args.gpu_capability or card.capability)
            if card.amd and given.get("platform") is None:
                args = args.changed(platform="hip")
        typed = given.get("speculative_algorithm")
        if typed is not None:
            given = {**given, "speculative_algorithm": typed.strip().upper()}
        changed: ServerArgs = super().with_options(args, given)
        return changed

    def changed(self, args: ServerArgs, flags: str) -> ServerArgs:
        """As every engine; a ratio takes the place of a number of slots."""
        found: ServerArgs = super().changed(args, flags)
        return replace(found, max_mamba_cache_size=None) if "--mamba-full-memory-ratio" in flags.split() else found

    @property
    def retired(self) -> Mapping[str, str]:
        """As every engine."""
        from hybridcalc.engines.sglang.flags import RETIRED

        return RETIRED

    def remarks(self, args: ServerArgs, known: Memory) -> list[str]:
        """As every engine."""
        said = super().remarks(args, known)
        if known.rest is not None and args.mem_fraction_static is not None:
            said.append("--rest is given: --mem-fraction-static changes nothing here")
        return said

    def fraction(self, args: ServerArgs) -> dict[str, Any]:
        """As every engine."""
        known = args.mem_fraction_static
        return {"fraction": known, "fraction_from": None if known is None else "--mem-fraction-static"}

    def attention_ranks(self, args: ServerArgs) -> int:
        """As every engine."""
        return args.attn_tp_size

    def server_ranks(self, args: ServerArgs) -> int:
        """As every engine."""
        return args.tp_size * args.pp_size

    def ranks(self, args: ServerArgs) -> int:
        """As every engine; data-parallel workers beside attention workers have ranks of their own."""
        return args.tp_size * args.pp_size * (1 if args.enable_dp_attention else args.dp_size)


ENGINE = Sglang()


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others
    __getattr__ = names_of_modules(__name__, {"Plan": "server_plan", "plan": "server_plan", "resolve": "fraction"})
