"""What an update of each variant of a study costs, alone on this machine: plan a sweep by it, or choose at equal cost.

python experiments/variant_times.py studies/swift-settling.toml --json results/bench/h200-swift-settling.json
"""

import argparse
import json
from pathlib import Path

from steadyq.bench.every import update_times
from steadyq.run.provenance import provenance
from steadyq.suite.study import find_study


def main() -> None:
    """Time every variant on the study's first game; print, and write if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help="a study's name or file")
    parser.add_argument("--json", type=Path, help="where to write what was measured")
    args = parser.parse_args()
    study = find_study(args.study)
    found = {}
    for name in study.labels:
        found[name], _ = update_times(study.recipe(name, study.games[0], study.seeds[0]))
        print(f"{found[name]:8.3f} ms  {name}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"ms an update": found, "machine": provenance()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
