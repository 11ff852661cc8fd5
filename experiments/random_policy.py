"""What a uniformly random policy scores under each environment's own protocol: the table that runs compare with.

python experiments/random_policy.py                 plays all of them and writes src/steadyq/scores/data/random.csv
python experiments/random_policy.py Atari/Pong ...  plays these and keeps the other rows

100 games of each of Atari-100K's 26 games, 1,000 of each of MinAtar's five, with the library's own evaluation.
"""

import argparse
import csv
from pathlib import Path

import numpy as np

import steadyq
from steadyq import envs
from steadyq.run.evaluate import different, play_games, random_policy, standard_error
from steadyq.run.files import replace_text
from steadyq.run.provenance import provenance
from steadyq.scores.published import atari100k

TABLE = Path(steadyq.__file__).parent / "scores" / "data" / "random.csv"
SEED = 0
GAMES = {"atari": 100, "minatar": 1000}
COLUMNS = (
    *("env", "rules", "episodes", "seed", "mean_return", "standard_error", "different_games", "rewarded", "steps"),
    *("emulator", "commit"),
)


def measured(env: str) -> dict[str, str | int | float | None]:
    """Play one environment's games."""
    protocol = envs.protocol_for(env)
    actions = envs.spec(env, protocol).num_actions
    games = play_games(random_policy(actions, SEED), env, protocol, episodes=GAMES[protocol.backend], seed=SEED)
    steps = [game.steps for game in games]
    versions = provenance()["versions"]
    package = "ale-py" if protocol.backend == "atari" else "MinAtar"
    return {
        "env": env,
        "rules": protocol.rules,
        "episodes": len(games),
        "seed": SEED,
        "mean_return": float(np.mean([game.score for game in games])),
        "standard_error": standard_error(games),
        "different_games": different(games),
        "rewarded": float(np.average([game.rewarded for game in games], weights=steps)),
        "steps": sum(steps),
        "emulator": f"{package} {versions[package]}",
        "commit": provenance()["commit"],
    }


def main() -> None:
    """Play what is asked for and write the table after each environment."""
    every = [f"Atari/{game}" for game in atari100k().games] + envs.known()["MinAtar"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", nargs="*", type=envs.canonical, default=every)
    for env in parser.parse_args().env:
        with TABLE.open() as file:
            rows = {row["env"]: row for row in csv.DictReader(file)}
        row = measured(env)
        rows[env] = {name: str(value) for name, value in row.items()}
        ordered = [rows[name] for name in every if name in rows]
        lines = [",".join(COLUMNS), *(",".join(row[name] for name in COLUMNS) for row in ordered)]
        replace_text(TABLE, "\n".join(lines) + "\n")
        print(f"{env}: {row['mean_return']:g} over {row['episodes']} games of {row['steps']} steps", flush=True)


if __name__ == "__main__":
    main()
