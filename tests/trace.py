"""What short runs learn, as hashes: `python tests/trace.py OUT.json` before and after what should change nothing.

Each case trains a miniature run on this CPU and records the hash of every learned tensor and of every row it logged.
Two files made on one machine are compared by `python tests/trace.py --compare A.json B.json`.
"""

import hashlib
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import steadyq as sq

SMALL = {
    "replay.warmup": 200,
    "replay.capacity": 1000,
    "record.tensorboard": False,
    "record.every": 200,
    "record.checkpoint_every": 500,
    "evaluation.episodes": 2,
    "evaluation.random_episodes": 2,
    "regulation.every": 100,
    "monitor.every": 300,
}
IMAGES = {
    **SMALL,
    "network.scale": 1,
    "network.head_multiple": 4,
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "replay.batch": 4,
}
UNWATCHED = {"monitor.every": 0}
CASES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "steady-cartpole": ("steady", "CartPole-v1", 1200, SMALL),
    "steady-cartpole-unwatched": ("steady", "CartPole-v1", 1200, {**SMALL, **UNWATCHED}),
    "steady-cartpole-resets": ("steady", "CartPole-v1", 1200, {**SMALL, "regulation.threshold": 1.2}),
    "steady-cartpole-auto": ("steady", "CartPole-v1", 800, {**SMALL, "operator.forbid": "auto", "replay.n_step": 3}),
    "steady-cartpole-online": ("steady", "CartPole-v1", 800, {**SMALL, "operator.selector": "online"}),
    "steady-cartpole-target": ("steady", "CartPole-v1", 800, {**SMALL, "explore.act_with": "target"}),
    "steady-minatar": ("steady", "MinAtar/Breakout", 1000, SMALL),
    "steady-minatar-unwatched": ("steady", "MinAtar/Breakout", 1000, {**SMALL, **UNWATCHED}),
    "dqn-cartpole": ("dqn", "CartPole-v1", 1000, SMALL),
    "dqn-minatar": ("dqn", "MinAtar/Asterix", 1000, {**SMALL, "optim.hard_copy_every": 50}),
    "double_dqn-cartpole": ("double_dqn", "CartPole-v1", 1000, SMALL),
    "double_dqn-minatar": ("double_dqn", "MinAtar/Breakout", 800, {**SMALL, "replay.ratio": 2}),
    "qr_dqn-cartpole": ("qr_dqn", "CartPole-v1", 1000, SMALL),
    "qr_dqn-minatar": ("qr_dqn", "MinAtar/Freeway", 800, SMALL),
    "steady-atari": ("steady", "Atari/Breakout", 320, {**IMAGES, "replay.every": 4, "monitor.every": 100}),
    "steady-atari-unwatched": ("steady", "Atari/Breakout", 320, {**IMAGES, "replay.every": 4, **UNWATCHED}),
    "steady-procgen": (
        "steady",
        "Procgen/CoinRun",
        800,
        {**IMAGES, "protocol.lanes": 8, "replay.every": 2, "protocol.max_frames": 60},
    ),
}


def digest(tensor: torch.Tensor) -> str:
    """Of shape, type and bytes."""
    head = f"{tuple(tensor.shape)} {tensor.dtype}".encode()
    return hashlib.sha256(head + tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def trace(preset: str, env: str, steps: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train, and hash what is left."""
    from safetensors.torch import load_file

    recipe = getattr(sq.presets, preset)(env, "tiny", steps=steps, **changes)
    with tempfile.TemporaryDirectory() as place:
        folder = sq.train(recipe, run=Path(place) / "run")
        newest = folder.checkpoints()[-1]
        groups = {name: load_file(newest / f"{name}.safetensors") for name in ("online", "target", "adam_second")}
        rows = {name: getattr(folder, name)() for name in ("metrics", "diagnostics", "events")}
        result = folder.result or {}
    hashes = {f"{group}/{name}": digest(t) for group, tensors in groups.items() for name, t in sorted(tensors.items())}
    for name, found in rows.items():
        for number, row in enumerate(found):
            kept = {key: value for key, value in row.items() if key != "seconds"}
            hashes[f"{name}/{number}"] = json.dumps(kept, sort_keys=True)
    return hashes | {"returns": json.dumps(result.get("returns")), "random": json.dumps(result.get("random_return"))}


def same(one: str | None, other: str | None) -> bool:
    """Hashes to the letter; logged numbers to six digits, because a mean may be taken in another order."""
    if one == other or one is None or other is None:
        return one == other
    try:
        return close(json.loads(one), json.loads(other))
    except ValueError:
        return False


def close(one: Any, other: Any) -> bool:
    """Whether two logged values agree."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(close(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=2e-6, abs_tol=1e-9)
    return bool(one == other)


def compare(first: Path, second: Path) -> int:
    """Print what differs, case by case; returns the number of cases that differ."""
    before, after = (json.loads(path.read_text()) for path in (first, second))
    different = 0
    for case in before | after:
        one, other = before.get(case, {}), after.get(case, {})
        changed = [name for name in one | other if not same(one.get(name), other.get(name))]
        different += bool(changed)
        print(f"{case}: {f'{len(changed)} of {len(one | other)} differ' if changed else 'identical'}")
        for name in changed[:4]:
            print(f"    {name}\n      {str(one.get(name))[:300]}\n      {str(other.get(name))[:300]}")
    return different


if __name__ == "__main__":
    if sys.argv[1] == "--compare":
        sys.exit(min(1, compare(Path(sys.argv[2]), Path(sys.argv[3]))))
    wanted = sys.argv[2:] or list(CASES)
    Path(sys.argv[1]).write_text(json.dumps({case: trace(*CASES[case]) for case in wanted}, indent=1))
