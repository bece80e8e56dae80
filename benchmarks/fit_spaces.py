"""Does the pruned search of `hybridcalc fit` find what planning every combination finds, in spaces drawn at random?

    python benchmarks/fit_spaces.py [--first 1000] [--count 200]

The tests hold a few of these spaces (tests/fitting/spaces.py); this draws more. Prints each space that differs, and
exits with 1 when one does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from fitting.spaces import found_alike, random_question


def main() -> int:
    """Compare them all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--count", type=int, default=200)
    options = parser.parse_args()
    differing = 0
    for seed in range(options.first, options.first + options.count):
        asked = random_question(seed)
        if not found_alike(asked):
            differing += 1
            names = ", ".join(served.engine.name for served in asked.engines)
            print(f"seed {seed}: {asked.models[0].name} on {', '.join(offer.name for offer in asked.offers)}, {names}")
        if (seed - options.first) % 20 == 19:
            print(f"{seed - options.first + 1} spaces, {differing} differ", flush=True)
    return int(differing > 0)


if __name__ == "__main__":
    sys.exit(main())
