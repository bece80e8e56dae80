"""``hybridcalc slots``: S for every strategy, slots at chunk boundaries, and how many requests K slots admit."""

from typing import Annotated

import typer

from hybridcalc.cli import options
from hybridcalc.cli.app import Json, command
from hybridcalc.engines import ENGINES

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@command(app)
def slots(
    *,
    model: options.OptionalModel = None,
    prefixes: options.Prefixes,
    pp_size: options.Pp = 1,
    max_mamba_cache_size: options.MambaCacheSize = None,
    input_length: Annotated[
        str | None, typer.Option("--input-length", metavar="TOKENS", help="Prompt length: slots at chunk boundaries.")
    ] = None,
    chunked_prefill_size: Annotated[
        str, typer.Option("--chunked-prefill-size", metavar="TOKENS", help="Tokens of one prefill chunk.")
    ] = "8192",
    rules: options.Rules,
    as_json: Json = False,
) -> None:
    """State slots one running request holds (S), for every strategy and scheduler.

    K slots admit K // S requests. With a MODEL, auto is resolved as the engine resolves it for that class.
    Exits with 1 for flags the engine refuses.
    """
    engine = ENGINES[ENGINES.usual]
    args = options.engine_args(
        engine, **prefixes._asdict(), **rules._asdict(), pp_size=pp_size, max_mamba_cache_size=max_mamba_cache_size
    )
    prompt = options.tokens("--input-length", input_length)
    chunk = options.tokens("--chunked-prefill-size", chunked_prefill_size)
    architecture = options.model(model) if model is not None else None
    answer = engine.offered("slots", "slots").slots_answer(architecture, args, prompt=prompt, chunk=chunk)
    if as_json:
        from hybridcalc.output.document import print_json

        print_json("slots", answer)
    else:
        from hybridcalc.output.tables import print_slots

        print_slots(answer, prompt, chunk)
