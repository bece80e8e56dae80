"""Which findings are old? A baseline holds the fingerprints of what was there before; only what is new counts.

A fingerprint is made of the rule, the file, the deployment and the message, not of the line, so that code that moves
keeps its own. The file is JSON, sorted, and made by ``--write-baseline``.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable

from hybridcalc.checks import IN_BASELINE, Located, relative
from hybridcalc.errors import InputError
from hybridcalc.manifests import file_bytes

SCHEMA = "hybridcalc.baseline/1"
LARGEST_BASELINE_BYTES = 32 * 2**20


def fingerprint(located: Located) -> str:
    """What stays the same of a finding while lines move."""
    finding = located.finding
    text = "\0".join((finding.rule, relative(located.path), located.deployment, finding.message))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]


def read_baseline(path: str) -> Counter[str]:
    """The fingerprints of a baseline, each as often as it is known."""
    try:
        document = json.loads(file_bytes(path, LARGEST_BASELINE_BYTES))
        entries = document["findings"]
        if document["schema"] != SCHEMA:
            raise ValueError
        return Counter(str(entry["fingerprint"]) for entry in entries)
    except FileNotFoundError:
        raise InputError(
            f"{path}: no such baseline", fix=f"make it: hybridcalc check --write-baseline {path}"
        ) from None
    except InputError as error:
        raise InputError(f"{path}: {error.message}", fix=error.fix) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(
            f"{path}: no baseline", fix=f"make it anew: hybridcalc check --write-baseline {path}"
        ) from None


def baseline_text(findings: Iterable[Located]) -> str:
    """The baseline of these findings."""
    entries = [
        {
            "fingerprint": fingerprint(item),
            "rule": item.finding.rule,
            "file": relative(item.path),
            "message": item.finding.message,
        }
        for item in findings
        if item.suppressed is None
    ]
    entries.sort(key=lambda entry: (entry["file"], entry["rule"], entry["fingerprint"]))
    return json.dumps({"schema": SCHEMA, "findings": entries}, indent=1) + "\n"


def mark_known(findings: list[Located], known: Counter[str]) -> list[Located]:
    """Findings with those a baseline knows set aside."""
    left = Counter(known)
    marked = []
    for item in findings:
        own = fingerprint(item)
        if item.suppressed is None and left[own] > 0:
            left[own] -= 1
            item = item._replace(suppressed=IN_BASELINE)
        marked.append(item)
    return marked
