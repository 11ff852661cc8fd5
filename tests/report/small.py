"""Settings of runs that train in a second."""

SMALL = {
    "ensemble.members": 2,
    "estimator.quantiles": 5,
    "network.hidden": (16, 16),
    "replay.warmup": 100,
    "record.every": 40,
    "record.tensorboard": False,
    "regulation.every": 40,
    "monitor.every": 40,
    "monitor.batch": 16,
    "explore.epsilon": "1 -> 0.01 linear 300 steps",
    "evaluation.episodes": 4,
    "evaluation.random_episodes": 4,
    "compute.threads": 1,
}
