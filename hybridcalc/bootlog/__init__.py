"""What did a boot print? Text to records, for logs of any size and as people paste them. Knows no engine arithmetic."""

from hybridcalc.bootlog.grammars import EVERYTHING, POOLS
from hybridcalc.bootlog.reader import read_log, scan
from hybridcalc.bootlog.records import KvPoolAllocated, Pool, Printed, Record, Statement, StatePoolAllocated

__all__ = [
    "EVERYTHING",
    "POOLS",
    "KvPoolAllocated",
    "Pool",
    "Printed",
    "Record",
    "StatePoolAllocated",
    "Statement",
    "read_log",
    "scan",
]
