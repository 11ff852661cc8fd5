"""The named rules under which an environment is played, printed and saved with every run."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

from steadyq.envs.factories import check_wrapper, keywords
from steadyq.errors import UserError

Backend = Literal["atari", "minatar", "procgen", "gymnasium"]

LONGEST = 27_000
"""Steps after which a game of Gymnasium is cut where neither environment nor protocol has a limit: those of Atari's
longest game.
"""

_NAMES = ("atari", "minatar", "procgen-easy", "procgen-hard", "gymnasium")
_EVERYWHERE = {"name", "lanes", "stack", "reward", "max_frames"}
_APPLIES: dict[Backend, set[str]] = {
    "atari": {"frame_skip", "noop_max", "sticky", "action_set", "fire_reset", "life_loss_terminal", "last_life"},
    "minatar": {"sticky", "action_set", "ramping"},
    "procgen": {"train_levels", "train_start_level", "test_levels", "test_start_level", "timeout_terminal"},
    "gymnasium": {"kwargs", "wrappers", "masks"},
}


@dataclass(frozen=True)
class Protocol:
    """How games are played: the defaults are neutral, `protocol_for` gives each backend's own."""

    name: str
    """Label, beginning with its backend: atari..., minatar..., procgen-easy..., procgen-hard..., gymnasium..."""
    lanes: int = 1
    """Environments played side by side in training."""
    stack: int = 1
    """Frames per observation; a trajectory's first observations are padded with zeros."""
    frame_skip: int = 1
    """Emulator frames per step; the action is repeated, and Atari shows the maximum of the last two frames."""
    noop_max: int = 0
    """Atari: a game begins with 1 to this many no-op frames, drawn anew for each game; 0 = none."""
    sticky: float = 0.0
    """Probability that the emulator repeats its previous action: per frame in Atari, per step in MinAtar."""
    action_set: Literal["minimal", "full"] = "full"
    """Atari and MinAtar: only the actions that do something in this game, or all of them."""
    fire_reset: bool = False
    """Atari: press FIRE and the action after it, unseen, where a game (or life) begins; scores and frames count it."""
    life_loss_terminal: bool = False
    """Atari: a lost life ends the trajectory in training; scores always count full games."""
    last_life: bool = False
    """Atari: so does one after which none is shown and the game goes on, as it does in BankHeist."""
    reward: Literal["raw", "sign"] = "raw"
    """What the learner sees; scores are always raw."""
    max_frames: int = 0
    """Emulator frames after which a game is cut (truncated, not terminated); 0 = the environment's own limit, in
    Gymnasium 27,000 steps where it has none."""
    ramping: bool = False
    """MinAtar: the game gets harder the longer it lasts."""
    timeout_terminal: bool = False
    """Procgen: the game's own time limit terminates (the original environment does not tell it from a lost game);
    otherwise it truncates, and the value bootstraps."""
    train_levels: int = 0
    """Procgen: how many levels training draws from; 0 = all."""
    train_start_level: int = 0
    """Procgen: the first training level."""
    test_levels: int = 0
    """Procgen: how many levels evaluation draws from; 0 = all, and then the first test level is ignored by Procgen."""
    test_start_level: int = 0
    """Procgen: the first test level."""
    kwargs: tuple[str, ...] = ()
    """Gymnasium: what the environment is made with, as name=value (also --env.kwargs)."""
    wrappers: tuple[str, ...] = ()
    """Gymnasium: wrappers around it, innermost first, as module:Wrapper or "module:Wrapper(name=value)" (also
    --env.wrappers)."""
    masks: Literal["given", "none"] = "given"
    """Gymnasium: keep to the actions that the environment allows, where it says so in info["action_mask"] or by
    action_masks(); or choose among all of them."""

    def __post_init__(self) -> None:
        if not self.name.startswith(_NAMES):
            raise UserError(f"protocol.name is {self.name!r}; it must begin with one of {', '.join(_NAMES)}")
        for field, low, high in (
            ("lanes", 1, 4096),
            ("stack", 1, 64),
            ("frame_skip", 1, 60),
            ("noop_max", 0, 1000),
            ("sticky", 0, 1),
            ("max_frames", 0, 2**31 - 1),
            ("train_levels", 0, 2**31 - 1),
            ("train_start_level", 0, 2**31 - 1),
            ("test_levels", 0, 2**31 - 1),
            ("test_start_level", 0, 2**31 - 1),
        ):
            value = getattr(self, field)
            if not low <= value <= high:
                raise UserError(f"protocol.{field} is {value}; it must be between {low} and {high}")
        for field, choices in (
            ("action_set", ("minimal", "full")),
            ("reward", ("raw", "sign")),
            ("masks", ("given", "none")),
        ):
            if getattr(self, field) not in choices:
                raise UserError(f"protocol.{field} is {getattr(self, field)!r}; it must be one of {', '.join(choices)}")
        keywords(self.kwargs)
        for wrapper in self.wrappers:
            check_wrapper(wrapper)
        applies = _EVERYWHERE | _APPLIES[self.backend]
        for entry in dataclasses.fields(self):
            value = getattr(self, entry.name)
            if entry.name not in applies and value != entry.default:
                raise UserError(
                    f"protocol.{entry.name} is {value!r}, but means nothing to {self.name}; leave it {entry.default!r}"
                )

    @property
    def backend(self) -> Backend:
        """Return the backend these rules are for."""
        for backend in _APPLIES:
            if self.name.startswith(backend):
                return backend
        raise AssertionError(self.name)

    @property
    def label(self) -> str:
        """The name, and what differs from the rules known by it."""
        known = DEFAULTS[self.backend]
        if self.name != known.name:
            return self.name
        differing = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(known, f.name)]
        values = {name: getattr(self, name) for name in differing}
        said = {name: " ".join(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return ", ".join([self.name, *(f"{name} {value}" for name, value in said.items())])

    @property
    def rules(self) -> str:
        """All that the course of an evaluation game depends on beside its actions, as words: field=value ..."""
        applies = (_APPLIES[self.backend] | {"max_frames"}) - {"train_levels", "train_start_level"}
        named = [field.name for field in dataclasses.fields(self) if field.name in applies]
        # Not said: scores are stored by these words.
        usual = {"kwargs": (), "wrappers": (), "masks": "given", "last_life": False}
        named = [name for name in named if name not in usual or getattr(self, name) != usual[name]]
        mode = [self.name] if self.backend == "procgen" else []  # its name says easy or hard
        return " ".join([self.backend, *mode, *(f"{name}={getattr(self, name)}" for name in named)])

    def lines(self) -> list[str]:
        """Describe the rules for a reader, leaving out what does not apply to this backend."""
        return [
            f"protocol {self.name}: {self.lanes} training lane{'s' * (self.lanes > 1)}",
            *_BACKEND_LINES[self.backend](self),
            self._reward_line(),
            self._limit_line(),
        ]

    def _reward_line(self) -> str:
        return f"learner sees {'the sign of each reward' if self.reward == 'sign' else 'raw rewards'}, scores are raw"

    def _limit_line(self) -> str:
        if self.max_frames == 0:
            own = "time limit: the environment's own"
            return f"{own}, or {LONGEST:,} steps where it has none" if self.backend == "gymnasium" else own
        return f"time limit: {self.max_frames:,} frames per game, which truncates (bootstraps), not terminates"


def _stack(protocol: Protocol) -> str:
    return f"stack of {protocol.stack}, zeros before a trajectory's first frame" if protocol.stack > 1 else "no stack"


def _atari(protocol: Protocol) -> list[str]:
    skip = (
        f"{protocol.frame_skip} frames per step, maximum of the last two"
        if protocol.frame_skip > 1
        else "no frame skip"
    )
    fire = "FIRE and the next action" if protocol.fire_reset else ""
    begin = [f"1 to {protocol.noop_max} no-op frames"] * (protocol.noop_max > 0) + [fire] * bool(fire)
    life = ["a no-op step"] + [fire] * bool(fire)
    return [
        f"{skip}, gray 84x84, {_stack(protocol)}",
        f"{protocol.action_set} action set, {_sticky(protocol)}",
        f"a game begins with {', then '.join(begin) or 'nothing pressed'} (unseen: in scores and frames, not in steps)",
        f"a lost life{', the last one shown too,' * protocol.last_life} ends the trajectory in training and never in "
        f"evaluation; in both the stack begins anew and the "
        f"next life begins with {', then '.join(life)} (as unseen)"
        if protocol.life_loss_terminal
        else "a lost life changes nothing: the game goes on and nothing is pressed",
    ]


def _minatar(protocol: Protocol) -> list[str]:
    return [
        f"10x10 binary channels, {_stack(protocol)}",
        f"{protocol.action_set} action set, {_sticky(protocol)}",
        f"difficulty ramping {'on' if protocol.ramping else 'off'}",
    ]


def _procgen(protocol: Protocol) -> list[str]:
    mode = protocol.name.removeprefix("procgen-")[:4]
    return [
        f"{mode} mode, RGB 64x64, {_stack(protocol)}, all 15 actions",
        f"training {_levels(protocol.train_start_level, protocol.train_levels)}; "
        f"evaluation {_levels(protocol.test_start_level, protocol.test_levels)}",
        f"a game's own time limit {'terminates' if protocol.timeout_terminal else 'truncates (bootstraps)'}",
    ]


def _gymnasium(protocol: Protocol) -> list[str]:
    made = [f"made with {' '.join(protocol.kwargs)}"] * bool(protocol.kwargs)
    wrapped = [f"wrapped in {', then '.join(protocol.wrappers)}"] * bool(protocol.wrappers)
    return [*made, *wrapped, f"observations as given, {_stack(protocol)}"]


def _sticky(protocol: Protocol) -> str:
    return f"sticky actions {protocol.sticky:g}" if protocol.sticky else "no sticky actions"


def _levels(start: int, count: int) -> str:
    return (
        f"on levels {start} to {start + count - 1}" if count else "on all levels (Procgen then ignores the start level)"
    )


_BACKEND_LINES = {"atari": _atari, "minatar": _minatar, "procgen": _procgen, "gymnasium": _gymnasium}

DEFAULTS: dict[Backend, Protocol] = {
    # Atari-100K as in the paper: the wrapper of Stable-Baselines3 on NoFrameskip-v4, 108,000 frames = 30 minutes.
    "atari": Protocol(
        name="atari-100k",
        stack=4,
        frame_skip=4,
        noop_max=30,
        action_set="minimal",
        fire_reset=True,
        life_loss_terminal=True,
        reward="sign",
        max_frames=108_000,
    ),
    # Sticky 0.1 and ramping are MinAtar's own defaults. A near-perfect Breakout player never loses the ball, so games
    # need a cap: 5,000 is twice the length of Freeway, the only game with a clock (2,500).
    "minatar": Protocol(name="minatar", sticky=0.1, action_set="minimal", ramping=True, max_frames=5_000),
    "procgen": Protocol(
        name="procgen-easy",
        lanes=128,
        reward="sign",
        timeout_terminal=True,
        train_levels=200,
        train_start_level=0,
        test_levels=0,
        test_start_level=200,
    ),
    "gymnasium": Protocol(name="gymnasium"),
}
