"""``hybridcalc plan`` for SGLang: its memory options, checks and texts."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hybridcalc.architecture.geometry import Architecture
from hybridcalc.cli import options as shared_options
from hybridcalc.cli.plan_engine import Asked, PlanEngine, PlanOptions, foreign
from hybridcalc.cli.plan_inputs import MemoryOptions, boot_figure, one_way, signed_gib
from hybridcalc.deployment import Rest, Workload, exact_rest
from hybridcalc.engines.sglang import memory
from hybridcalc.engines.sglang.command import TABLE, from_words
from hybridcalc.engines.sglang.config import ServerArgs
from hybridcalc.engines.sglang.flags import PLATFORMS
from hybridcalc.engines.sglang.kv import OWN_DRAFT_CELL
from hybridcalc.engines.sglang.releases import rules_for
from hybridcalc.engines.sglang.server_plan import Plan, plan, refused
from hybridcalc.engines.sglang.sweep import CHEAP_FIELDS, NAMES, SweepSolver
from hybridcalc.errors import IllegalCombination, InputError, Refusal
from hybridcalc.findings import Finding
from hybridcalc.hardware import find_gpu, weights_from_index

if TYPE_CHECKING:
    from hybridcalc.cli.pictures import Draw
    from hybridcalc.output.pictures.page import Page


class SglangEngine(PlanEngine[ServerArgs, Plan]):
    """SGLang's server."""

    title = "SGLang"
    table = TABLE
    model_flag = "--model-path"
    memory_name = "rest"
    cheap_fields = CHEAP_FIELDS
    sweep_names: ClassVar[tuple[str, str]] = NAMES
    unit = "slots"

    def check_options(self, options: PlanOptions, given: MemoryOptions) -> None:
        """As PlanEngine; and the platform."""
        foreign(
            {
                "--available": given.available,
                "--non-cache": given.non_cache,
                "--gpu-capability": options.gpu_capability,
                "--shared-prefix": options.shared_prefix,
                "--private": options.private,
            },
            self.title,
        )
        if options.platform is not None and options.platform not in PLATFORMS:
            raise InputError(f"--platform {options.platform[:40]!r} is not known", fix=f"write {', '.join(PLATFORMS)}")

    def read(self, words: Sequence[str], env: dict[str, str], unknown: list[str]) -> tuple[str | None, ServerArgs]:
        """As PlanEngine."""
        return from_words(words, env, unknown=unknown)

    def complete(self, args: ServerArgs, options: PlanOptions, given: MemoryOptions, *, whole: bool) -> ServerArgs:
        """As PlanEngine."""
        args = replace(
            args,
            draft_layers=options.draft_layers,
            draft_kv_bytes_per_token=options.draft_kv_bytes_per_token,
            max_draft_tokens=options.max_draft_tokens,
            platform=options.platform or "cuda",
            engine_version=options.engine_version,
        )
        if whole:
            shared_options.check_arguments(args)
        algorithm = args.speculative_algorithm
        if args.draft_kv_bytes_per_token is not None and algorithm is not None and algorithm not in OWN_DRAFT_CELL:
            raise InputError(f"SGLang prices the KV of an {algorithm} draft by its layers", fix="give --draft-layers N")
        return args

    def memory(self, given: MemoryOptions, swept: bool, model: Architecture, name: str) -> Callable[[ServerArgs], Rest]:
        """As PlanEngine: --rest, --gpu with --weights, or the two figures of a boot; one way only."""
        boot = given.avail_before is not None or given.avail_after is not None
        if swept and not (given.rest or given.gpu or given.weights or boot):
            return lambda _: exact_rest(1.0)  # every point brings its own
        one_way({"--rest": given.rest is not None, "--gpu": given.gpu is not None, "the avail figures": boot})
        if given.weights is not None and given.gpu is None:
            raise InputError("--weights says nothing without --gpu", fix="add --gpu NAME, or leave it out")
        if given.rest is not None:
            known = exact_rest(signed_gib("--rest", given.rest))
            return lambda _: known
        if given.avail_before is not None and given.avail_after is not None:
            left = boot_figure("--avail-before", given.avail_before), boot_figure("--avail-after", given.avail_after)
            return lambda args: memory.rest_from_boot(*left, model, args)
        if boot:
            raise InputError("--avail-before and --avail-after go together", fix="give both figures of the boot log")
        if given.gpu is not None:
            card = find_gpu(given.gpu)
            weighed = shared_options.gib("--weights", given.weights)
            return lambda args: memory.rest_from_gpu(card, _weights(weighed, name, args), model, args)
        raise InputError(
            "plan needs the memory left for the pools: add --rest SIZE",
            fix="or --gpu with --weights and --mem-fraction-static, or the two --avail figures",
        )

    def plan(self, model: Architecture, args: ServerArgs, rest: Rest, work: Workload) -> Plan:
        """As PlanEngine."""
        return plan(model, args, rest=rest, workload=work)

    def refused(self, model: Architecture, args: ServerArgs, refusal: IllegalCombination) -> dict[str, Any]:
        """As PlanEngine."""
        assert isinstance(refusal, Refusal)  # noqa: S101  (the only one this engine raises)
        return refused(model, args, refusal)

    def solver(self, model: Architecture) -> SweepSolver:
        """As PlanEngine."""
        return SweepSolver(model)

    def remarks(self, asked: Asked[ServerArgs], given: MemoryOptions) -> list[str]:
        """As PlanEngine."""
        said = [rules_for(asked.args.engine_version)[1]]
        if given.rest is not None and asked.args.mem_fraction_static is not None:
            said.append("--rest is given: --mem-fraction-static changes nothing here")
        return said

    def print_plan(self, answer: Plan, *, explain: bool, remarks: Sequence[str]) -> None:
        """As PlanEngine."""
        from hybridcalc.output.plan_text import print_plan

        print_plan(answer, explain=explain, remarks=remarks)

    def pictures(self, answer: Plan) -> "Draw":
        """As PlanEngine."""
        from hybridcalc.output.pictures.sglang import pictures

        return pictures(answer)

    def page(self, answer: Plan, remarks: Sequence[str]) -> "Page":
        """As PlanEngine."""
        from hybridcalc.output.pictures.pages import plan_page
        from hybridcalc.output.pictures.play import sglang_play
        from hybridcalc.output.plan_text import plan_figures, plan_verdict

        title = f"{answer.model.name} on {self.title} {answer.ready.rules.version}"
        play = sglang_play(answer.model, answer.args, answer.rest.likely_gib, answer.workload)
        pictures = tuple(self.pictures(answer).values())
        return plan_page(answer, title, plan_verdict(answer), plan_figures(answer), pictures, play, remarks)

    def comparison_cells(self, answer: Plan) -> dict[str, str]:
        """As PlanEngine."""
        from hybridcalc.output.plan_text import comparison_cells

        return comparison_cells(answer)

    def findings(self, answer: Plan) -> tuple[Finding, ...]:
        """As PlanEngine."""
        return answer.findings


def _weights(given: float | None, name: str, args: ServerArgs) -> float:
    """Weights on one rank, GiB: as given, or from the checkpoint that MODEL names."""
    weighed = weights_from_index(Path(name), args.tp_size * args.pp_size) if given is None else given
    if weighed is None:
        raise InputError("--gpu needs the weights on one rank", fix="add --weights SIZE")
    return weighed
