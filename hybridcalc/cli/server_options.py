"""The options of commands that plan a server: which engine and rules, how much memory, and what else sizes a boot."""

from typing import Annotated

import typer

EngineName = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="sglang (default) or vllm; a launch line says it.")
]
Rest = Annotated[
    str | None, typer.Option("--rest", metavar="SIZE", help="SGLang: memory left for both pools on one rank.")
]
Available = Annotated[
    str | None, typer.Option("--available", metavar="SIZE", help="vLLM: memory free for the cache on one GPU.")
]
Gpu = Annotated[
    str | None, typer.Option("--gpu", metavar="NAME|SIZE", help="GPU, with --weights and the engine's share of memory.")
]
Weights = Annotated[
    str | None, typer.Option("--weights", metavar="SIZE", help="Weights on one rank, as a boot log prints them.")
]
NonCache = Annotated[
    str | None,
    typer.Option(
        "--non-cache", metavar="SIZE", help="vLLM: what the GPU holds beside weights and cache; else estimated."
    ),
]
AvailBefore = Annotated[
    str | None, typer.Option("--avail-before", metavar="GIB", help="`avail mem` a boot printed before the weights.")
]
AvailAfter = Annotated[
    str | None, typer.Option("--avail-after", metavar="GIB", help="`avail mem` a boot printed after the weights.")
]
MaxDraftTokens = Annotated[
    int | None,
    typer.Option("--max-draft-tokens", metavar="N", min=1, max=1024, help="Most draft tokens, where they adapt."),
]
PlatformName = Annotated[
    str | None, typer.Option("--platform", metavar="NAME", help="SGLang: cuda (default), hip, npu, xpu, musa or cpu.")
]
GpuCapability = Annotated[
    str | None,
    typer.Option("--gpu-capability", metavar="M.N", help="vLLM: compute capability, else that of --gpu, or 9.0."),
]
