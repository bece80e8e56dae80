"""How fast is a long log read, and in how much memory? A log of serving with one boot in it, against ``grep -cE``.

    python benchmarks/boot_log.py [GIB]        1 GiB unless told otherwise

The log is written to a temporary folder. Each reading is a process of its own, the best of three is shown: the whole
log, the same log with the boot at its head and no --all, and grep counting the lines that hold one of the literals.
Processor time is compared: it is the same on a machine that others use too.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from hybridcalc.bootlog.grammars import sought

CHATTER = (
    b"[2026-03-14 04:59:11 TP0] Decode batch, #running-req: 20, #full token: 2326796, full token usage: 0.14, mamba "
    b"num: 20, mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 1174.06, #queue-req: 6, \n"
    b'[2026-03-14 04:59:11] INFO:     127.0.0.1:53122 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
)
BOOT = (
    b"[2026-02-01 00:05:03 TP0] Mamba Cache is allocated. max_mamba_cache_size: 257, conv_state size: 0.46GB, "
    b"ssm_state size: 13.04GB \n[2026-02-01 00:05:03 TP0] KV Cache is allocated. dtype: torch.float8_e4m3fn, "
    b"#tokens: 1167552, KV size: 15.03 GB\n"
)
READ = (
    "import resource, sys, time\n"
    "from hybridcalc.bootlog.reader import read_log\n"
    "begun = time.process_time()\n"
    "count = sum(1 for _ in read_log(sys.argv[1], whole=sys.argv[2] == 'all'))\n"
    "print(time.process_time() - begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, count)\n"
)


def main() -> None:
    """Write the logs, read them, print the table."""
    gib = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
    alternation = "|".join(needle.literal.decode() for needle in sought().needles)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serving.log"
        size = write(log, int(gib * 2**30))
        mib = size / 2**20
        grep = min(timed(["grep", "-cE", alternation, str(log)]) for _ in range(3))
        runs = [read(log, "all") for _ in range(3)]
        head = min(read(log, "head")[0] for _ in range(3))
    seconds, memory = min(run[0] for run in runs), max(run[1] for run in runs)
    print(f"log of {mib:,.0f} MiB; literals {alternation}")
    print(f"  grep -cE          {mib / grep:7,.0f} MiB/s")
    print(f"  read to its end   {mib / seconds:7,.0f} MiB/s   {seconds / grep:.2f} x the time of grep")
    print(f"  memory            {memory / 1024:7,.1f} MiB")
    print(f"  boot at the head  {head:7.3f} s without --all")
    if seconds > 2 * grep or memory > 60 * 1024:
        sys.exit("slower than half the speed of grep, or above 60 MiB")


def write(path: Path, size: int) -> int:
    """A boot, then chatter up to ``size`` bytes."""
    block = CHATTER * (2**20 // len(CHATTER))
    with path.open("wb") as stream:
        stream.write(BOOT)
        while stream.tell() < size:
            stream.write(block)
        return stream.tell()


def timed(command: list[str]) -> float:
    """Processor seconds of a command, its output piped: grep stops at the first line where it goes to /dev/null."""
    begun = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.PIPE, check=False)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime - begun.ru_utime - begun.ru_stime


def read(path: Path, how: str) -> tuple[float, float]:
    """Processor seconds and KiB of a process that reads ``path``."""
    ran = subprocess.run([sys.executable, "-c", READ, str(path), how], capture_output=True, text=True, check=True)
    seconds, memory, _ = ran.stdout.split()
    return float(seconds), float(memory)


if __name__ == "__main__":
    main()
