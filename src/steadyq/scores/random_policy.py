"""What a uniformly random policy scores, played once and stored: a table that a run need not play again.

`python experiments/random_policy.py` plays the games and writes the table.
"""

from dataclasses import dataclass

from steadyq.scores.published import published_rows


@dataclass(frozen=True)
class StoredBaseline:
    """A row of the table."""

    mean_return: float
    rewarded: float
    """Share of the policy's steps that were rewarded."""
    episodes: int
    seed: int
    commit: str

    @property
    def source(self) -> str:
        """Where the figure comes from, for a result."""
        return f"stored: seed {self.seed}, commit {self.commit[:12]}"


def stored(env: str, rules: str) -> StoredBaseline | None:
    """Return the row for an environment under exactly these rules of play (`Protocol.rules`), if there is one."""
    for row in published_rows("random"):
        if (row["env"], row["rules"]) == (env, rules):
            return StoredBaseline(
                float(row["mean_return"]), float(row["rewarded"]), int(row["episodes"]), int(row["seed"]), row["commit"]
            )
    return None
