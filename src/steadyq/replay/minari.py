"""Trajectories as a Minari dataset (HDF5), and any Minari dataset as trajectories for a learner."""

import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from steadyq.envs.vector import EnvSpec
from steadyq.errors import UserError, one_line
from steadyq.replay.episodes import Episode

EXTRA = "pip install 'steadyq[minari]'"
MASK, AGE = "action_mask", "age"
"""Names among an episode's infos."""


def minari_module() -> Any:
    """Minari with HDF5, or one line saying how to get it."""
    try:
        import h5py  # noqa: F401  (Minari's storage)
        import minari
    except ImportError as error:
        raise UserError(f"datasets need the package {error.name}: {EXTRA}") from None
    return minari


def write_dataset(
    folder: Path, spec: EnvSpec, episodes: Iterable[Episode], about: Mapping[str, str]
) -> tuple[int, int]:
    """Write trajectories to a new folder; returns how many, and their steps. It appears whole or not at all.

    Observations are single frames as the learner sees them (images not compressed), actions the environment's numbers.
    """
    minari = minari_module()
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    if folder.exists():
        raise UserError(f"{folder} is there already: name a new folder")
    pixels = spec.frame_dtype == "uint8"
    seen = spaces.Box(0 if pixels else -np.inf, 255 if pixels else np.inf, spec.frame_shape, np.dtype(spec.frame_dtype))
    actions = spaces.Discrete(spec.num_actions, start=spec.first_action)

    def buffers() -> Iterator[Any]:
        for number, episode in enumerate(episodes):
            ended = np.arange(1, len(episode) + 1) == len(episode)
            infos = {AGE: episode.age + np.arange(len(episode) + 1)}
            infos |= {} if episode.allowed is None else {MASK: episode.allowed}
            yield EpisodeBuffer(
                id=number,
                observations=episode.frame,
                actions=episode.action + spec.first_action,
                rewards=episode.reward,
                terminations=ended & episode.terminated,
                truncations=ended & (not episode.terminated),
                infos=infos,
            )

    partial = folder.absolute().with_name(f"{folder.name}.{secrets.token_hex(4)}.unfinished")
    partial.mkdir(parents=True)
    try:
        storage = MinariStorage.new(partial / "data", seen, actions, jpeg_encoding=False)
        storage.update_metadata({"minari_version": minari.__version__, **about})
        storage.update_episodes(buffers())
        found = int(storage.total_episodes), int(storage.total_steps)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return found


class Dataset:
    """A Minari dataset that fits an environment; raises `UserError` where it does not."""

    def __init__(self, where: str, spec: EnvSpec) -> None:
        self.spec, self.where = spec, where
        self.dataset = _opened(where)
        shown, actions = self.dataset.observation_space, self.dataset.action_space
        self.plain = (
            isinstance(shown, spaces.Box) and shown.shape == spec.frame_shape and shown.dtype == spec.frame_dtype
        )
        if not self.plain and (spec.seen is None or spec.seen.space != shown):
            raise UserError(f"{where} shows {one_line(shown)}, {spec.name} frames of {spec.frame_shape}")
        if not isinstance(actions, spaces.Discrete) or actions.n != spec.num_actions:
            raise UserError(f"{where} has actions {one_line(actions)}, {spec.name} {spec.num_actions} of them")
        self.first_action = int(actions.start)

    @property
    def steps(self) -> int:
        """Of all episodes together."""
        return int(self.dataset.total_steps)

    @property
    def slots(self) -> int:
        """What a ring needs for all of it: an episode that was cut takes one for its last frame."""
        return self.steps + int(self.dataset.total_episodes)

    def episodes(self) -> Iterator[Episode]:
        """One after another."""
        for found in self.dataset.iterate_episodes():
            infos, steps = found.infos or {}, len(found.rewards)
            age = int(infos[AGE][0]) if AGE in infos else 0
            mask = np.asarray(infos[MASK]) > 0 if self.spec.masked and MASK in infos else None
            if mask is None and self.spec.masked:
                mask = np.ones((steps + 1, self.spec.num_actions), bool)
            yield Episode(
                self._frames(found.observations, steps + 1),
                np.asarray(found.actions, np.int64) - self.first_action,
                np.asarray(found.rewards, np.float32),
                bool(steps and found.terminations[-1]),
                age,
                mask,
            )

    def _frames(self, observations: Any, count: int) -> np.ndarray:
        if self.plain:
            return np.asarray(observations)
        assert self.spec.seen is not None
        return np.stack([self.spec.seen.frame(_at(observations, place)) for place in range(count)])


def _at(observations: Any, place: int) -> Any:
    """One observation of many, whatever holds them."""
    if isinstance(observations, Mapping):
        return {name: _at(part, place) for name, part in observations.items()}
    if isinstance(observations, tuple):
        return tuple(_at(part, place) for part in observations)
    return observations[place]


def _opened(where: str) -> Any:
    """A dataset by its folder, or by its name among Minari's own."""
    minari = minari_module()
    folder = Path(where)
    try:
        if not folder.is_dir():
            return minari.load_dataset(where)
        folder = folder.absolute()  # Minari joins parts of a path to it
        data = folder / "data" if (folder / "data").is_dir() else folder
        raw = minari.dataset.minari_storage.MinariStorage.read_raw_metadata(data)
        if not {"observation_space", "action_space"} <= raw.keys():
            # Minari would make the environment that the file names to ask it.
            raise UserError(f"{where} does not say what its observations and actions are")
        return minari.MinariDataset(data)
    except FileNotFoundError:
        raise UserError(f"no Minari dataset {where!r}: name its folder, or one of `minari list local`") from None
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise UserError(f"{where} is no Minari dataset: {one_line(error)}") from None
