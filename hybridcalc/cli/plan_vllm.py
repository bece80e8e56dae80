"""``hybridcalc plan`` for vLLM: its memory options, checks and texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options as shared_options
from hybridcalc.cli.plan_engine import Asked, PlanEngine, PlanOptions, foreign
from hybridcalc.cli.plan_inputs import MemoryOptions, one_way, signed_gib
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.vllm import memory
from hybridcalc.engines.vllm.command import TABLE, from_words
from hybridcalc.engines.vllm.config import EngineArgs
from hybridcalc.engines.vllm.releases import rules_for
from hybridcalc.engines.vllm.server_plan import Plan, plan, refused
from hybridcalc.engines.vllm.sweep import CHEAP_FIELDS, NAMES, SweepSolver
from hybridcalc.errors import IllegalCombination, InputError, Refusal
from hybridcalc.findings import Finding
from hybridcalc.hardware import find_gpu, weights_from_index

if TYPE_CHECKING:
    from hybridcalc.cli.pictures import Draw
    from hybridcalc.output.pictures.page import Page


class VllmEngine(PlanEngine[EngineArgs, Plan]):
    """vLLM's server."""

    title = "vLLM"
    table = TABLE
    model_flag = "--model"
    memory_name = "available"
    cheap_fields = CHEAP_FIELDS
    sweep_names: ClassVar[tuple[str, str]] = NAMES
    unit = "blocks"

    def check_options(self, options: PlanOptions, given: MemoryOptions) -> None:
        """As PlanEngine."""
        foreign(
            {
                "--rest": given.rest,
                "--avail-before": given.avail_before,
                "--avail-after": given.avail_after,
                "--platform": options.platform,
                "--max-draft-tokens": options.max_draft_tokens,
                "--draft-kv-bytes-per-token": options.draft_kv_bytes_per_token,
            },
            self.title,
        )
        if options.private is not None and options.shared_prefix is None:
            raise InputError("--private says nothing without --shared-prefix", fix="add --shared-prefix N")

    def read(self, words: Sequence[str], env: dict[str, str], unknown: list[str]) -> tuple[str | None, EngineArgs]:
        """As PlanEngine."""
        return from_words(words, env, unknown=unknown)

    def complete(self, args: EngineArgs, options: PlanOptions, given: MemoryOptions, *, whole: bool) -> EngineArgs:
        """As PlanEngine; the GPU decides kernels and the default of max_num_seqs."""
        card = find_gpu(given.gpu) if given.gpu is not None else None
        args = replace(
            args,
            draft_layers=options.draft_layers,
            engine_version=options.engine_version,
            gpu_capability=options.gpu_capability or (card and card.capability) or EngineArgs().gpu_capability,
            gpu_memory_gib=card.gib if card is not None else None,
        )
        _ = args.capability  # raises for what is none
        return args

    def memory(self, given: MemoryOptions, swept: bool, model: Architecture, name: str) -> Callable[[EngineArgs], Rest]:
        """As PlanEngine: --available, --kv-cache-memory-bytes among the flags, or --gpu with --weights."""
        if swept and given.available is None and given.gpu is None:
            return lambda _: exact_rest(1.0)  # every point brings its own
        for flag, value in (("--weights", given.weights), ("--non-cache", given.non_cache)):
            if value is not None and given.gpu is None:
                raise InputError(f"{flag} says nothing without --gpu", fix="add --gpu NAME, or leave it out")
        one_way({"--available": given.available is not None, "--gpu": given.weights is not None})
        if given.available is not None:
            known = exact_rest(signed_gib("--available", given.available))
            return lambda _: known
        card = find_gpu(given.gpu) if given.gpu is not None else None
        weighed = shared_options.gib("--weights", given.weights)
        beside = shared_options.gib("--non-cache", given.non_cache)

        def left(args: EngineArgs) -> Rest:
            flagged = memory.rest_from_flag(args)
            if flagged is not None:
                return flagged
            if card is None:
                raise InputError(
                    "plan needs the memory free for the cache: add --available SIZE",
                    fix="or --gpu with --weights, or --kv-cache-memory-bytes",
                )
            weights = weights_from_index(Path(name), args.tensor_parallel_size) if weighed is None else weighed
            if weights is None:
                raise InputError("--gpu needs the weights on one rank", fix="add --weights SIZE")
            return memory.rest_from_gpu(card, weights, args, non_cache_gib=beside)

        return left

    def plan(self, model: Architecture, args: EngineArgs, rest: Rest, work: Workload) -> Plan:
        """As PlanEngine."""
        return plan(model, args, rest=rest, workload=work)

    def refused(self, model: Architecture, args: EngineArgs, refusal: IllegalCombination) -> dict[str, Any]:
        """As PlanEngine."""
        assert isinstance(refusal, Refusal)  # noqa: S101  (the only one this engine raises)
        return refused(model, args, refusal)

    def solver(self, model: Architecture) -> SweepSolver:
        """As PlanEngine."""
        return SweepSolver(model)

    def remarks(self, asked: Asked[EngineArgs], given: MemoryOptions) -> list[str]:
        """As PlanEngine."""
        said = [rules_for(asked.args.engine_version)[1]]
        if given.available is not None and asked.args.kv_cache_memory_bytes is not None:
            said.append("--available is given: --kv-cache-memory-bytes changes nothing here")
        return said

    def print_plan(self, answer: Plan, *, explain: bool, remarks: Sequence[str]) -> None:
        """As PlanEngine."""
        from hybridcalc.output.vllm_text import print_plan

        print_plan(answer, explain=explain, remarks=remarks)

    def pictures(self, answer: Plan) -> "Draw":
        """As PlanEngine."""
        from hybridcalc.output.pictures.vllm import pictures

        return pictures(answer)

    def page(self, answer: Plan, remarks: Sequence[str]) -> "Page":
        """As PlanEngine."""
        from hybridcalc.output.pictures.pages import plan_page
        from hybridcalc.output.pictures.play import vllm_play
        from hybridcalc.output.vllm_text import plan_figures, plan_verdict

        title = f"{answer.model.name} on {self.title} {answer.ready.rules.version}"
        play = vllm_play(answer.model, answer.args, answer.rest.likely_gib, answer.workload)
        pictures = tuple(self.pictures(answer).values())
        return plan_page(answer, title, plan_verdict(answer), plan_figures(answer), pictures, play, remarks)

    def comparison_cells(self, answer: Plan) -> dict[str, str]:
        """As PlanEngine."""
        from hybridcalc.output.vllm_text import comparison_cells

        return comparison_cells(answer)

    def findings(self, answer: Plan) -> tuple[Finding, ...]:
        """As PlanEngine."""
        return answer.findings
