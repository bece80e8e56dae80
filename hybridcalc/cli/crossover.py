"""``hybridcalc crossover``: the length from which KV outweighs the state, in three readings, and the curve."""

from functools import partial
from typing import Annotated

import typer

from hybridcalc.cli import answers, options
from hybridcalc.cli.app import command
from hybridcalc.engines import ENGINES, offered
from hybridcalc.errors import ShardingError

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(app)
def crossover(
    *,
    model: options.Model,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline", metavar="MODEL", autocompletion=options.complete_model, help="A model to weigh it against."
        ),
    ] = None,
    length: Annotated[
        str | None, typer.Option("--length", "-L", metavar="TOKENS", help="Longest length of the curve.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="sglang; or vllm: what its pages and blocks take.")
    ] = None,
    ranks: options.Ranks,
    dcp_size: options.Dcp = 1,
    kv_cache_dtype: options.KvDtype = "auto",
    mamba_ssm_dtype: options.SsmDtype = None,
    enable_prefix_caching: Annotated[
        bool | None,
        typer.Option(
            "--enable-prefix-caching/--no-enable-prefix-caching",
            help="vLLM: with it a state takes two or three blocks, without it one.",
        ),
    ] = None,
    rules: options.Rules,
    form: answers.Forms,
) -> None:
    """The length from which a sequence's KV weighs more than its recurrent state, and a hybrid less than a baseline.

    Three readings: one layer pair, the whole state against the model's own KV, and the whole hybrid against a baseline.
    """
    asked_for = answers.wanted(form)
    served = ENGINES[ENGINES.meant_by([model]) if engine is None else ENGINES.named(engine)]
    compare = offered(served.crossover, "crossover", served.title)
    given = {
        "tp_size": ranks.tp_size if ranks.tp_size > 1 else None,
        "dp_size": ranks.dp_size if ranks.dp_size > 1 else None,
        "enable_dp_attention": ranks.enable_dp_attention or None,
        "dcp_size": dcp_size if dcp_size and dcp_size > 1 else None,
        "kv_cache_dtype": kv_cache_dtype if kv_cache_dtype != "auto" else None,
        "mamba_ssm_dtype": options.ssm_dtype(mamba_ssm_dtype),
        "enable_prefix_caching": enable_prefix_caching,
        "engine_version": rules.engine_version,
    }
    served.check_options(given)
    args = served.with_options(served.read([], options.environment(rules.env or []))[1], given)
    served.check_together(args)
    other = options.model(baseline) if baseline is not None else None
    hybrid = options.model(model)
    try:
        answer = compare(hybrid, other, args, longest=options.tokens("-L", length))
    except ShardingError as error:
        raise (served.not_shared(hybrid, args, 0, error) or error) from None
    for shared in filter(None, (hybrid, other)):
        served.check_ranks(shared, args)
    from hybridcalc.engines.crossover_view import crossover_view

    answers.show(
        "crossover", asked_for, partial(crossover_view, answer), lambda: {"engine": served.name} | answer.to_dict()
    )
