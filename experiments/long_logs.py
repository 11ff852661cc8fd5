"""How much memory and time a page of very long logs takes: `python experiments/long_logs.py results/long-logs.json`.

Rows of a stored Atari run are repeated until the logs of one run have the wanted size; `steadyq report` and
`steadyq compare` then read them in processes of their own, whose peak memory and time are written.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import Any

from steadyq.run.provenance import provenance
from steadyq.suite.archive import unpacked

ARCHIVE = Path("results/atari.tar.xz")


def lengthen(log: Path, size: int) -> int:
    """Repeat a log's rows, with steps that go on, until it has so many bytes."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    written, each = 0, max(1, rows[-1]["step"] // len(rows))
    with log.open("w") as file:
        for number, row in enumerate(cycle(rows)):
            written += file.write(json.dumps({**row, "step": (number + 1) * each}) + "\n")
            if written >= size:
                return written
    return written


def measured(words: list[str]) -> dict[str, Any]:
    """Seconds, of the clock and of the processor, and peak memory of a command."""
    start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "steadyq", *words, "--no-verify"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    computed = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    seconds = {"seconds": round(time.monotonic() - start, 1), "cpu_seconds": round(computed, 1)}
    return {**seconds, "peak_bytes": after.ru_maxrss * 1024}


def main() -> None:
    """Make the logs, read them, write what it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--megabytes", type=int, default=494)
    given = parser.parse_args()
    with unpacked(ARCHIVE) as place, tempfile.TemporaryDirectory() as pages:
        run = next(path for path in sorted(place.rglob("metrics.jsonl"))).parent
        each = given.megabytes * 10**6 // 3
        size = sum(lengthen(run / f"{name}.jsonl", each) for name in ("metrics", "diagnostics", "events"))
        options = {"compare": ("--figure", "curves.svg"), "report": ("--out", "page.html")}
        found = {
            name: measured([name, str(run), option, str(Path(pages) / file)])
            for name, (option, file) in options.items()
        }
    command = " ".join(["python experiments/long_logs.py", *sys.argv[1:]])
    given.out.write_text(json.dumps({**provenance(), "command": command, "log_bytes": size, **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
