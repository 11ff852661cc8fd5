"""Which environments there are, and which one a name means."""

import re

from steadyq.envs import minatar, procgen
from steadyq.envs.protocol import Backend
from steadyq.errors import UserError, nearest

_TITLES: dict[Backend, str] = {
    "atari": "Atari",
    "minatar": "MinAtar",
    "procgen": "Procgen",
    "gymnasium": "Gymnasium",
}


def known() -> dict[str, list[str]]:
    """Return backend -> canonical names; for Gymnasium a few examples, since any registered id works."""
    from steadyq.envs import classic

    listed: dict[str, list[str]] = {
        _TITLES[backend]: [f"{_TITLES[backend]}/{game}" for game in sorted(_games(backend))]
        for backend in ("minatar", "atari", "procgen")
    }
    listed["Gymnasium"] = [f"Gymnasium/{game}" for game in classic.EXAMPLES]
    return listed


def parse(env: str) -> tuple[Backend, str]:
    """Return the backend and the game that a name means, in any case and with or without underscores."""
    prefix, _, rest = env.partition("/")
    backend = _backend(prefix)
    if backend is None or not rest:
        # CartPole-v1, or a namespace of Gymnasium's own; module:Room, or <Room>, a factory that only this process has
        if re.search(r"-v\d+$", env) or ":" in env or env.startswith("<"):
            return "gymnasium", _gymnasium(env)
        raise UserError(_unknown(env, prefix if rest else None))
    if backend == "gymnasium":
        return backend, _gymnasium(rest)
    games = {_fold(game): game for game in _games(backend)}
    if _fold(rest) in games:
        return backend, games[_fold(rest)]
    raise UserError(f"{_TITLES[backend]} has no game {rest!r}; {nearest(rest, games.values())}")


def canonical(env: str) -> str:
    """Return the one spelling of an environment's name, such as Atari/MsPacman for atari/ms_pacman."""
    backend, game = parse(env)
    return f"{_TITLES[backend]}/{game}"


def _backend(prefix: str) -> Backend | None:
    folded = _fold(prefix)
    if folded == "gym":
        return "gymnasium"
    for backend in _TITLES:
        if folded == backend:
            return backend
    return None


def _games(backend: str) -> list[str]:
    if backend == "atari":
        from steadyq.envs import atari

        return list(atari.games())
    return list(minatar.GAMES if backend == "minatar" else procgen.GAMES)


def _gymnasium(name: str) -> str:
    from steadyq.envs import classic

    return classic.canonical(name)


def _unknown(env: str, prefix: str | None) -> str:
    if prefix is not None:
        return f"{env!r} names no known backend {prefix!r}; {nearest(prefix, _TITLES.values())}"
    same = [f"{_TITLES[backend]}/{game}" for backend in ("minatar", "atari", "procgen") for game in _games(backend)
            if _fold(game) == _fold(env)]  # fmt: skip
    if same:
        return f"{env!r} needs its backend: write {' or '.join(same)}"
    every = [name for names in known().values() for name in names]
    by_game = {name.partition("/")[2]: name for name in reversed(every)}
    return f"unknown environment {env!r}; write it with its backend, as in MinAtar/Breakout: {nearest(env, by_game)}"


def _fold(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
