"""Closed forms: pure functions of integers, no I/O and no engine version. docs/formulas.md works each one through."""
