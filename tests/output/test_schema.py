"""The published schemas hold for every document that is recorded, and would not for another."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from functools import cache
from typing import Any, cast

import golden
import pytest
from command_line import run
from jsonschema import Draft202012Validator
from typer.core import TyperGroup
from typer.main import get_command

from hybridcalc.cli.app import COMMANDS, app
from hybridcalc.output.schema import UNITS, commands, schema_of

Document = dict[str, Any]


@cache
def validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(command))


def problems(command: str, document: Document) -> list[str]:
    found = [e for error in validator(command).iter_errors(document) for e in (error.context or [error])]
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in found]


def recorded() -> dict[str, list[tuple[str, Document]]]:
    """The documents of recorded command lines, by command."""
    found = defaultdict[str, list[tuple[str, Document]]](list)
    for transcript in golden.transcripts():
        for line, shown in transcript.cases:
            if shown.startswith('{\n  "schema": "hybridcalc.'):
                document = json.loads(re.split(r"^\[(?:stderr|exit)", shown, flags=re.MULTILINE)[0])
                found[document["schema"].split(".")[1].split("/")[0]].append((line, document))
    return found


RECORDED = recorded()


@pytest.mark.parametrize("command", commands())
def test_every_recorded_document_is_as_its_schema_says(command: str) -> None:
    Draft202012Validator.check_schema(schema_of(command))
    assert len(RECORDED[command]) > 1
    assert {line: found for line, document in RECORDED[command] if (found := problems(command, document))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "kimi-k3 --tp 8 --pp 2 --rest 28GiB -L 9216",
        "kimi-k3 --tp 8 --dp-size 8 --enable-dp-attention --gpu h200 --weights 60GiB -L 9216",
        "qwen3-next-80b-a3b --tp 4 --rest 28GiB -L 9216 --kv-cache-dtype fp8_e4m3 --speculative-algorithm EAGLE"
        " --speculative-num-draft-tokens 4",
        "qwen3-next-80b-a3b --engine vllm -tp 2 -pp 2 --available 30GiB -L 9216",
        "qwen3-next-80b-a3b --engine vllm -tp 4 -dp 2 --gpu 8xh200 -L 9216",
        "qwen3-next-80b-a3b --engine vllm -tp 4 --available 30GiB -L 9216 --kv-cache-dtype turboquant_4bit_nc",
        "qwen3-next-80b-a3b --engine vllm -tp 4 -pp 2 --available 30GiB -L 9216"
        """ --speculative-config {"method":"qwen3_next_mtp","num_speculative_tokens":2}""",
    ],
)
def test_plans_of_any_shape_are_as_the_schema_says(line: str) -> None:
    """Pipeline stages, data parallelism, packed KV and drafts have keys of their own."""
    assert problems("plan", run("plan", "--json", *line.split()).document) == []


def test_every_command_with_a_document_has_a_schema() -> None:
    root = cast(TyperGroup, get_command(app))
    context = root.make_context("hybridcalc", [], resilient_parsing=True)
    options = {name: [o for p in root.get_command(context, name).params for o in p.opts] for name in COMMANDS}  # type: ignore[union-attr]
    assert [name for name in COMMANDS if "--json" in options[name]] == sorted(commands(), key=list(COMMANDS).index)


@pytest.mark.parametrize("command", commands())
def test_a_key_that_is_not_described_is_refused_and_one_that_is_absent(command: str) -> None:
    _, document = RECORDED[command][0]
    assert problems(command, document | {"another": 1})
    assert all(problems(command, {k: v for k, v in document.items() if k != key}) for key in _promised(command))


def _promised(command: str) -> list[str]:
    schema = schema_of(command)
    return cast("list[str]", (schema["oneOf"][0] if "oneOf" in schema else schema)["required"])


@pytest.mark.parametrize("command", commands())
def test_every_key_says_what_it_means_and_sizes_their_unit(command: str) -> None:
    def keys(schema: Any) -> list[tuple[str, Document]]:
        if isinstance(schema, list):
            return [pair for each in schema for pair in keys(each)]
        if not isinstance(schema, dict):
            return []
        own = list(schema.get("properties", {}).items()) if schema.get("type") == "object" else []
        return own + [pair for value in schema.values() for pair in keys(value)]

    for name, schema in keys(schema_of(command)):
        if name != "schema":
            assert schema["description"], name
            if name.endswith("_bytes") and schema.get("type") == "integer":
                assert schema["description"].endswith(f"unit: {UNITS['bytes']}"), name
