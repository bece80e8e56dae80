"""What happened in a boot, and what should change? Records, architectures and engines brought together."""

from hybridcalc.diagnosis.balance import (
    MOST_RANKS,
    balance_log,
    fitting_flags,
    log_constants,
    slot_range,
    split_boots,
    token_range,
)

__all__ = ["MOST_RANKS", "balance_log", "fitting_flags", "log_constants", "slot_range", "split_boots", "token_range"]
