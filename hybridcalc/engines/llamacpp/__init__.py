"""llama.cpp: its context parameters, what its caches take for a hybrid model, and what to set.

``plan(model, params)`` says what a context allocates; a combination the engine refuses raises ``Refusal``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hybridcalc.engines import names_of_modules
from hybridcalc.engines.engine import Engine
from hybridcalc.engines.llamacpp.config import ContextParams
from hybridcalc.engines.llamacpp.releases import NEWEST_VERSION, rules_for
from hybridcalc.errors import Refusal
from hybridcalc.units import GIB

if TYPE_CHECKING:
    from hybridcalc.architecture import Architecture
    from hybridcalc.deployment import Rest, Workload
    from hybridcalc.engines.llamacpp.server_plan import Plan as Plan
    from hybridcalc.engines.llamacpp.server_plan import plan as plan
    from hybridcalc.engines.weights import Weights
    from hybridcalc.hardware import Gpu


__all__ = ["NEWEST_VERSION", "ContextParams", "Plan", "Refusal", "plan", "rules_for"]


VERBS = ("serve", "run", "start")
"""First words behind ``ollama`` with which it serves."""


class LlamaCpp(Engine):
    """llama-server: one process, whose layers are shared out over its devices."""

    name, title = "llama.cpp", "llama.cpp"
    model_flag = "--model"
    memory_option = "available"
    options = frozenset({"available", "gpu", "weights", "engine_version", "env"})
    stages = ("llama_init_from_model", "llama_context", "llama_kv_cache")
    model_after_flags = True
    fitted_unasked = False
    in_container = ("--host", "0.0.0.0")  # noqa: S104  (of the container)

    def with_options(self, args: ContextParams, given: Mapping[str, Any]) -> ContextParams:
        """As every engine; all cards that are given hold layers."""
        card: Gpu | None = given.get("gpu")
        changed: ContextParams = super().with_options(args, {**given, "gpu": None})
        if card is None:
            return changed
        cards = card.cards or args.cards
        return replace(changed, cards=cards, gpu_bytes=int(card.gib * GIB) * cards)

    def seeing(self, args: ContextParams, gpus: int) -> ContextParams:
        """As every engine; each takes its part of the layers."""
        return args.changed(cards=max(1, gpus))

    def command(self, model: str) -> tuple[str, ...]:
        """As every engine."""
        return ("llama-server", self.model_flag, model)

    def serves_any(self, words: Sequence[str]) -> bool:
        """An Ollama server does, and a router."""
        return bool(words) and (words[0] in VERBS or any(word.startswith("--models-") for word in words))

    def fraction(self, args: ContextParams) -> dict[str, Any]:
        """Nothing is a fraction: a context takes what it is asked for."""
        return {"fraction": None, "fraction_from": None}

    def file_of(self, model: "Architecture") -> str:
        """The file, or a name with its type mix."""
        from hybridcalc.architecture.quantization_names import mix_of
        from hybridcalc.engines.checkpoints import name_to_load

        mix = mix_of(model.asked)
        if mix is None or model.asked.lower().endswith(".gguf"):
            return name_to_load(model)
        return f"{model.name}-{mix}.gguf"

    def weights(self, model: "Architecture", args: ContextParams, *, mended: bool = True) -> "Weights":
        """On the heaviest card, by the header or the type mix."""
        from hybridcalc.engines.llamacpp.memory import weights_on_card

        return weights_on_card(model, args)

    def refused(
        self, end: str, model: "Architecture", args: ContextParams, rest: "Rest", work: "Workload"
    ) -> Refusal | None:
        """As every engine; what each card is to hold has its own bounds."""
        from hybridcalc.engines.llamacpp.server_plan import LEAST, MOST, plan

        try:
            plan(model, args, rest=rest, workload=work, taken=MOST if end == "least" else LEAST)
        except Refusal as refusal:
            return refusal
        return None

    def changed(self, args: ContextParams, flags: str) -> ContextParams:
        """As every engine; slots stay as they are where no flag says how many."""
        found: ContextParams = super().changed(args, flags)
        if "--parallel" not in flags:
            found = replace(found, n_seq_max=args.n_seq_max, kv_unified=args.kv_unified)
        return found

    def stored_as(self, model: "Architecture") -> str:
        """The type mix in its name; that none is known, of what is no GGUF file."""
        from hybridcalc.architecture.quantization_names import mix_of
        from hybridcalc.engines.llamacpp.memory import header_of

        said = header_of(model) is not None or model.asked.lower().endswith(".gguf")
        return mix_of(model.asked) or ("" if said else "type mix not given")

    def ranks(self, args: ContextParams) -> int:
        """Devices."""
        return args.cards

    def server_ranks(self, args: ContextParams) -> int:
        """As every engine."""
        return args.cards


ENGINE = LlamaCpp()


if not TYPE_CHECKING:  # a type checker knows every name, and that there are no others
    __getattr__ = names_of_modules(__name__, {"Plan": "server_plan", "plan": "server_plan"})
