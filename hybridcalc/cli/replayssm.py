"""``hybridcalc replayssm``: the ring buffers, their bytes, and whether a ring length is legal."""

from typing import Annotated

import typer

from hybridcalc.cli import options
from hybridcalc.cli.app import Json, command
from hybridcalc.engines import ENGINES
from hybridcalc.units import MOST_SLOTS

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(app)
def replayssm(
    *,
    model: options.Model,
    slots: Annotated[
        int,
        typer.Option("--slots", metavar="N", min=1, max=MOST_SLOTS, help="Slots with rings; a pool of K has K + 1."),
    ] = 1,
    ranks: options.Ranks,
    linear_replayssm_cache_len: options.CacheLen = 16,
    speculative_num_draft_tokens: options.DraftTokens = None,
    rules: options.Rules,
    as_json: Json = False,
) -> None:
    """ReplaySSM ring buffers of a model: shapes, bytes per slot and in all, and whether the ring length is legal.

    The ring length is a power of two and at least 2 x D; the engine checks it for KDA models. Exits with 1 when the
    length would be refused.
    """
    engine = ENGINES[ENGINES.usual]
    args = options.engine_args(
        engine, **ranks._asdict(), **rules._asdict(), linear_replayssm_cache_len=linear_replayssm_cache_len
    )
    rings = engine.offered("pools", "replayssm")
    answer = rings.rings_answer(options.model(model), args, slots, speculative_num_draft_tokens or 0)
    if as_json:
        from hybridcalc.output.document import print_json

        print_json("replayssm", answer)
    else:
        from hybridcalc.output.tables import print_rings

        print_rings(answer)
    if not answer["legal"]:
        raise typer.Exit(1)
