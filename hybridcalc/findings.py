"""A finding: something a user should know, with a rule id, a severity, and what to write instead."""

from typing import NamedTuple

SEVERITIES = ("note", "warning", "error")


class Finding(NamedTuple):
    """``rule`` is stable and documented; ``severity`` is one of SEVERITIES; ``fix`` may be empty."""

    rule: str
    severity: str
    message: str
    fix: str = ""

    def to_dict(self) -> dict[str, str]:
        """Plain data for JSON."""
        return {"rule": self.rule, "severity": self.severity, "message": self.message, "fix": self.fix}


def at_or_above(findings: tuple[Finding, ...], threshold: str) -> bool:
    """Whether any finding is at least as severe as ``threshold``; "never" is above all of them."""
    if threshold == "never":
        return False
    return any(SEVERITIES.index(f.severity) >= SEVERITIES.index(threshold) for f in findings)
