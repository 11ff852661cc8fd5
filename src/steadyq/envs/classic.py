"""Any registered Gymnasium environment whose spaces can be laid out (`spaces.py`)."""

import contextlib
import math
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from steadyq.envs import atari as ale
from steadyq.envs.episodes import EpisodeVector, Opening, Outcome, replay
from steadyq.envs.factories import Env, factory_of, keywords, takes, wrapped
from steadyq.envs.modules import may_import, module_of
from steadyq.envs.protocol import LONGEST, Protocol
from steadyq.envs.spaces import Actions, Observations, short
from steadyq.envs.vector import Array, BadEnvironment, EnvSpec
from steadyq.errors import UserError, nearest

EXAMPLES = ("CartPole-v1", "Acrobot-v1", "MountainCar-v0", "LunarLander-v3")


def canonical(name: str) -> str:
    """Return the registered id that is meant; `module:Id-v0` imports the module that registers it first."""
    if module_of(name) or name.startswith("<"):
        return name
    if atari := re.fullmatch(r"(?:ALE/)?(\w+?)(?:NoFrameskip)?-v\d+", name, re.IGNORECASE):
        folded = {game.lower(): game for game in ale.games()}
        # ale-py registers these too, but plays them without the protocol: no 84x84, no lives, no stickiness of ours.
        registered = gymnasium.registry.get(name)
        others = registered is not None and not str(registered.entry_point).startswith("ale_py")  # Blackjack-v1
        if atari[1].lower() in folded and not others:
            raise UserError(f"{name!r} is played as 'Atari/{folded[atari[1].lower()]}'")
    folded = {known.lower(): known for known in gymnasium.registry}
    if name.lower() in folded:
        return folded[name.lower()]
    versions = [known for known in gymnasium.registry if known.lower().rsplit("-v", 1)[0] == name.lower()]
    if versions:
        return max(versions, key=lambda known: int(known.rsplit("-v", 1)[1]))
    raise UserError(
        f"no environment {name!r} is registered with Gymnasium; {nearest(name, gymnasium.registry)} "
        "(one of your own: module:Id-v0)"
    )


def _open(game: str, protocol: Protocol, render_mode: str | None = None) -> Env:
    given, limit = keywords(protocol.kwargs), protocol.max_frames
    may_import(game, protocol.wrappers)
    factory = factory_of(game)
    if render_mode and (factory is None or takes(factory, "render_mode")):  # some do not take the word at all
        given["render_mode"] = render_mode
    if limit and factory is None:
        given["max_episode_steps"] = limit
    try:
        env: Env = factory(**given) if factory else gymnasium.make(game, disable_env_checker=True, **given)
    except gymnasium.error.DependencyNotInstalled as missing:
        raise UserError(f"{game} needs a package that is not installed: {missing}") from missing
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError) as wrong:
        raise UserError(f"{'its factory' if factory else 'Gymnasium'} cannot make {game}: {wrong}") from wrong
    except Exception as raised:
        raise UserError(f"{'its factory' if factory else 'Gymnasium'} cannot make {game}: {_said(raised)}") from raised
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"the factory {game} returned {short(env)}; it must return a Gymnasium environment")
    for wrapper in protocol.wrappers:
        env = wrapped(env, wrapper)
    if limit and factory is not None:
        env = gymnasium.wrappers.TimeLimit(env, limit)
    return env if limit or _limited(env) else gymnasium.wrappers.TimeLimit(env, LONGEST)


def _limited(env: Env) -> bool:
    """Whether anything cuts a game of this environment."""
    while isinstance(env, gymnasium.Wrapper):
        if isinstance(env, gymnasium.wrappers.TimeLimit):
            return True
        env = env.env
    return env.spec is not None and env.spec.max_episode_steps is not None


def spec(name: str, game: str, protocol: Protocol, lanes: int) -> EnvSpec:
    """Return what the environment looks like under these rules."""
    env = _open(game, protocol)
    seen, actions = Observations(game, env.observation_space), Actions(game, env.action_space)
    masked = protocol.masks == "given" and _gives_masks(env)
    env.close()
    return EnvSpec(
        name=name,
        frame_shape=seen.shape,
        frame_dtype=seen.dtype,
        pixel_max=seen.pixel_max,
        stack=protocol.stack,
        num_actions=actions.count,
        lanes=lanes,
        action_names=actions.names,
        frames_per_step=1,
        first_action=actions.first,
        shown_shape=() if seen.shape == seen.shown else seen.shown,
        seen=seen,
        actions=actions,
        masked=masked,
    )


def _gives_masks(env: Env) -> bool:
    """Whether the environment says which actions may be played: by a method, or in what `reset` returns."""
    if env.has_wrapper_attr("action_masks"):
        return True
    try:
        returned = env.reset(seed=0)
    except Exception:  # what is wrong with it is said where it is played
        return False
    info = returned[1] if isinstance(returned, tuple) and len(returned) == 2 else None
    return isinstance(info, Mapping) and "action_mask" in info


def make(
    name: str, game: str, protocol: Protocol, *, seed: int, training: bool, lanes: int, episodes: int | None = None
) -> EpisodeVector:
    """Return `lanes` environments; their restore is exact where `reset(seed=...)` determines all that follows."""
    described = spec(name, game, protocol, lanes)
    return EpisodeVector(
        described,
        [GymnasiumGame(game, protocol, masked=described.masked) for _ in range(lanes)],
        seed=seed,
        training=training,
        life_loss_terminal=False,
        episodes=episodes,
    )


def pictures(game: str, protocol: Protocol, seed: int, actions: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Yield what the environment draws of a recorded game, cropped to even sides for video."""
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # else pygame looks for a screen, and says that there is none
    player = GymnasiumGame(game, protocol, render_mode="rgb_array")
    with contextlib.closing(player):
        try:
            for _ in replay(player, player.begin(seed), actions):
                yield player.picture()
        except gymnasium.error.DependencyNotInstalled as missing:
            raise UserError(
                f"drawing {game} needs a package that is not installed: {missing} (pygame is in 'steadyq[video]')"
            ) from missing


def frames_per_second(game: str, protocol: Protocol) -> float:
    """Return the speed that the environment declares for its pictures."""
    env = _open(game, protocol)
    env.close()
    return float(env.metadata.get("render_fps") or 30)


class GymnasiumGame:
    """A `Game` over one Gymnasium environment, seeded at every reset."""

    def __init__(self, game: str, protocol: Protocol, render_mode: str | None = None, masked: bool = False):
        self._name, self._env, self._masked = f"Gymnasium/{game}", _open(game, protocol, render_mode), masked
        self._method = masked and self._env.has_wrapper_attr("action_masks")
        self._seen = Observations(game, self._env.observation_space)
        self._actions = Actions(game, self._env.action_space)

    def prepare(self, seeds: Sequence[int]) -> None:
        """Do nothing: Gymnasium resets when asked."""

    def begin(self, seed: int) -> Opening:
        """Reset with this seed."""
        self._seed, self._steps = seed, 0
        returned = self._call("reset", lambda: self._env.reset(seed=seed))
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise self._bad(f"reset() returned {short(returned)}; it must return an observation and a dictionary")
        return Opening(self._frame(returned[0]), allowed=self._allowed(returned[1]))

    def send(self, action: int) -> None:
        """Play one step."""
        self._steps += 1
        returned = self._call("step", lambda: self._env.step(self._actions[action]))
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._bad(f"step() returned {short(returned)}; it must return five things, as Gymnasium's do")
        observation, reward, terminated, truncated, info = returned
        over = self._flag("terminated", terminated)
        self._outcome = Outcome(
            self._frame(observation),
            self._reward(reward),
            over,
            self._flag("truncated", truncated),
            allowed=None if over else self._allowed(info),
        )

    def receive(self) -> Outcome:
        """Return what the step led to."""
        return self._outcome

    def next_life(self) -> Opening:
        """Do nothing: Gymnasium knows no lives."""
        raise AssertionError("Gymnasium knows no lives")

    def finish(self) -> None:
        """Do nothing: the next game is played here too."""

    def picture(self) -> NDArray[np.uint8]:
        """Return what the environment draws."""
        try:
            picture = self._env.render()
        except NotImplementedError:
            raise UserError(f"{self._name} draws no pictures (no render()): it cannot be filmed") from None
        if picture is None:
            raise UserError(
                f"{self._name} draws no pictures: it must take render_mode='rgb_array', and render() return one"
            )
        drawn = np.asarray(picture, np.uint8)
        return drawn[: drawn.shape[0] // 2 * 2, : drawn.shape[1] // 2 * 2]

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except UserError:
            raise
        except Exception as raised:
            if isinstance(raised, ValueError) and "unpack" in str(raised):  # in one of Gymnasium's own wrappers
                five = "five things, as Gymnasium's do" if what == "step" else "an observation and a dictionary"
                raise self._bad(f"{what}() must return {five}: {raised}") from raised
            raise self._bad(f"{what}() raised {_said(raised)}") from raised

    def _frame(self, observation: Any) -> Array:
        try:
            return self._seen.frame(observation)
        except ValueError as wrong:
            raise self._bad(f"it showed {wrong}") from None

    def _allowed(self, info: Any) -> NDArray[np.bool_] | None:
        """Which actions may be played now, if that is said."""
        if not self._masked:
            return None
        if self._method:
            given = self._call("action_masks", self._env.get_wrapper_attr("action_masks"))
        elif isinstance(info, Mapping) and "action_mask" in info:
            given = info["action_mask"]
        else:
            raise self._bad('it gave no info["action_mask"], which it had given before')
        try:
            return self._actions.allowed(given)
        except ValueError as wrong:
            raise self._bad(f"it gave {wrong} for an action mask") from None

    def _reward(self, reward: Any) -> float:
        try:
            number = float(reward) if np.shape(reward) == () else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not abs(number) <= float(np.finfo(np.float32).max):
            raise self._bad(f"it gave the reward {short(reward)}; a reward must be one number, finite in 32 bits")
        return number

    def _flag(self, name: str, value: Any) -> bool:
        if isinstance(value, bool | int | float | np.generic) and value in (0, 1):
            return bool(value)
        raise self._bad(f"it returned {short(value)} for {name}; it must be true or false")

    def _bad(self, what: str) -> BadEnvironment:
        return BadEnvironment(f"{self._name}, step {self._steps} of the game with seed {self._seed}: {what}")


def _said(raised: Exception) -> str:
    """What was raised, and the line of whose code raised it."""
    where = traceback.extract_tb(raised.__traceback__)[-1]
    words = " ".join(str(raised).split())
    return f"{type(raised).__name__}: {words[:200]} ({os.path.basename(where.filename)}, line {where.lineno})"
