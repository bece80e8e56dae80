"""One name for one thing: no two public classes of the package share a name, unless they are the same kind of thing."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "hybridcalc"
ENGINES_FOLDERS = ("engines/sglang", "engines/vllm", "engines/llamacpp")

SAME_KIND = {
    "FamilyRule": "what an engine does with a family",
    "Figures": "figures of an engine's start-up; of vLLM's log that a candidate is held against",
    "Fit": "how well a model, a release or a machine fits what is asked",
    "Node": "a node of a tree, of prefixes and of YAML",
    "Prepared": "what an engine's start-up settles before memory counts",
    "Row": "a row of a table: of engines, of what-ifs, of a diagnosis, of a verification",
    "RuleSet": "what the rules of every release have in common, and those of an engine",
    "Script": "commands of a shell script, and of a batch file",
    "Settings": "what a part of the program is set to: a simulation, a check, an allocator",
    "Sizing": "what an engine's start-up makes of the memory",
    "Sizes": "two sizes of a subject: of tensors as allocated, and as stored",
    "Starter": "what starts an engine, and what of it a launch line needs",
    "Tensor": "a tensor in memory, and in a checkpoint",
    "Workload": "what is asked of a server: lengths at once, and requests one after the other",
}
"""The same word for the same kind of thing in two rooms, and what it is."""
APART = frozenset({
    "Block", "Bounds", "Candidate", "Change", "Choice", "Constants", "Deployment", "Found", "Group", "Known",
    "Line", "Named", "Outcome", "Part", "Point", "Pools", "Question", "Reading", "Room", "Served", "Setting", "Settled",
    "Words",
})  # fmt: skip
"""Names that still stand for two things, in modules that do not meet: to be told apart, never to be added to."""


def defined() -> dict[str, set[str]]:
    """Names of public classes -> the modules that define them; what both engines have in one module counts once."""
    found = defaultdict[str, set[str]](set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                module = path.relative_to(PACKAGE).as_posix()
                own = next((folder for folder in ENGINES_FOLDERS if module.startswith(folder)), None)
                found[node.name].add(module if own is None else "engine" + module.removeprefix(own))
    return found


def test_no_class_name_stands_for_two_things() -> None:
    shared = {name for name, modules in defined().items() if len(modules) > 1}
    assert shared - set(SAME_KIND) - APART == set()
    assert (set(SAME_KIND) | APART) - shared == set(), "an exception that is none any more"
