"""What a uniformly random policy scores under the protocols of the presets: the table that runs compare with.

python experiments/random_policy.py                 plays all of them and writes src/steadyq/scores/data/random.csv
python experiments/random_policy.py Atari/Pong ...  plays these and keeps the other rows

100 games of each of Atari-100K's 26 games, by Stable-Baselines3's rules and by Dopamine's, 1,000 of each of MinAtar's
five, with the library's own evaluation.
"""

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np

import steadyq
from steadyq import envs
from steadyq.envs import Protocol
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


def protocols(env: str) -> list[Protocol]:
    """The rules that presets play it under."""
    usual = envs.protocol_for(env)
    return [usual, replace(usual, fire_reset=False, last_life=True)] if usual.fire_reset else [usual]


def measured(env: str, protocol: Protocol) -> dict[str, str | int | float | None]:
    """Play one environment's games under the protocol."""
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
    order = {(env, protocol.rules): None for env in every for protocol in protocols(env)}
    for env in parser.parse_args().env:
        for protocol in protocols(env):
            row = measured(env, protocol)
            with TABLE.open() as file:
                rows = {(kept["env"], kept["rules"]): kept for kept in csv.DictReader(file)}
            rows[env, protocol.rules] = {name: str(value) for name, value in row.items()}
            lines = [",".join(COLUMNS)]
            lines += [",".join(rows[key][name] for name in COLUMNS) for key in order if key in rows]
            replace_text(TABLE, "\n".join(lines) + "\n")
            said = f"{env}, {protocol.label}: {row['mean_return']:g} over {row['episodes']} games"
            print(f"{said} of {row['steps']} steps", flush=True)


if __name__ == "__main__":
    main()
