"""What did a boot print? Text to records, for logs of any size and as people paste them. Knows no engine arithmetic."""

from hybridcalc.bootlog.reader import read_log, scan
from hybridcalc.bootlog.records import Printed, Record

__all__ = ["Printed", "Record", "read_log", "scan"]
