"""Environments that somebody makes: by a factory of their own, with keyword arguments, inside wrappers.

A recipe holds text alone: `module:name` for what can be imported, `<name>` for a factory that only this process has,
`name=value` for keyword arguments, `module:Wrapper(name=value)` for a wrapper.
"""

import ast
import functools
import importlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from steadyq.envs.modules import SCRIPT, WORKING_FOLDER, attribute_of, findable, may_import, module_of
from steadyq.errors import UserError, one_line, shown

if TYPE_CHECKING:
    import gymnasium  # elsewhere where it is needed: reading a name takes no half second

Env: TypeAlias = "gymnasium.Env[Any, Any]"
Factory = Callable[..., Any]
Wrapping = str | Callable[..., Any] | tuple[Callable[..., Any], Mapping[str, Any]]

_local: dict[str, Callable[..., Any]] = {}
"""What cannot be imported, by the name that a recipe has for it: the last of a name stands."""


@dataclass(frozen=True)
class Environment:
    """An environment by its name, what it is made with, and the wrappers around it, innermost first."""

    name: str
    kwargs: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()


AnyEnv = str | Factory | Environment
"""What is taken for an environment: a name, a function or class that makes one, or what `environment` returns."""


def environment(env: AnyEnv, kwargs: Mapping[str, Any] | None = None, wrappers: Sequence[Wrapping] = ()) -> Environment:
    """Describe an environment: `environment("FrozenLake-v1", {"map_name": "8x8"}, [ClipReward])`."""
    found = env if isinstance(env, Environment) else Environment(env if isinstance(env, str) else _named(env))
    given = tuple(_keyword(name, value) for name, value in (kwargs or {}).items())
    return Environment(found.name, (*found.kwargs, *given), (*found.wrappers, *map(_wrapper_text, wrappers)))


def keywords(texts: Sequence[str]) -> dict[str, Any]:
    """Keyword arguments from their texts: numbers, true and false, lists and quoted text as such, the rest as text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UserError(f"{shown(text)} is no keyword argument of an environment: write name=value")
        if name in found:
            raise UserError(f"the keyword argument {name} of the environment is given twice")
        found[name] = _value(value)
    return found


def check_wrapper(text: str) -> None:
    """Raise if the text names no wrapper; imports nothing."""
    _parsed_wrapper(text)


def factory_of(game: str) -> Factory | None:
    """What makes this game, if that is a factory and no id registered with Gymnasium."""
    if game.startswith("<"):
        local: Factory = _known(game, "environment")
        return local
    module, name = module_of(game), attribute_of(game)
    if module is None or name is None:
        return None
    found: Factory = _imported(module, name, "Env")
    return found


def wrapped(env: Env, text: str) -> Env:
    """The environment in the wrapper that the text names."""
    path, given = _parsed_wrapper(text)
    if path.startswith("<"):
        wrapper = _known(path, "wrapper")
    else:
        module, name = path.split(":")
        wrapper = _imported(module, name, "Wrapper")
    try:
        outer = wrapper(env, **given)
    except Exception as raised:
        raise UserError(f"the wrapper {text} failed: {type(raised).__name__}: {one_line(raised)}") from raised
    if not _is_env(outer):
        raise UserError(f"the wrapper {text} returned {shown(outer)}; it must return a Gymnasium environment")
    return outer  # type: ignore[no-any-return]


def network_text(factory: Any) -> str:
    """The name by which a recipe knows a function that makes networks."""
    if not callable(factory):
        raise UserError(
            f"network takes a function of the observation's shape and the outputs, or layers; got {shown(factory)}"
        )
    path = _import_path(factory) or f"<{_plain_name(factory) or 'network'}>"
    if path.startswith("<"):
        _local[path] = factory
    return path


def network_factory(text: str) -> Callable[..., Any]:
    """The function that a recipe names."""
    if text.startswith("<"):
        local: Callable[..., Any] = _known(text, "network")
        return local
    may_import(text)
    module, name = module_of(text), attribute_of(text)
    if module is None or name is None:
        raise UserError(f"network.factory {shown(text)} names no function: write module:name")
    found: Callable[..., Any] = _imported(module, name, "network")
    return found


def takes(factory: Factory, name: str) -> bool:
    """Whether a factory may be called with this keyword."""
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(each.name == name or each.kind is each.VAR_KEYWORD for each in parameters)


def _named(factory: Any) -> str:
    """The name by which a recipe knows a factory: where it is imported from, or one that this process remembers."""
    if _is_env(factory):
        raise UserError(
            f"env takes a name, or what makes an environment, not one that is made ({type(factory).__name__}): several "
            f"are needed, so write env=lambda: ..."
        )
    if not callable(factory):
        raise UserError(f"env takes a name such as 'CartPole-v1', or what makes an environment; got {shown(factory)}")
    if (path := _import_path(factory)) is not None:
        return path
    name = _plain_name(factory)
    if not name:
        made = factory()
        if not _is_env(made):
            raise UserError(f"the factory returned {shown(made)}; it must return a Gymnasium environment")
        made.close()
        name = type(made.unwrapped).__name__
    _local[f"<{name}>"] = factory
    return f"<{name}>"


def _wrapper_text(wrapper: Wrapping) -> str:
    """A wrapper as a recipe writes it."""
    if isinstance(wrapper, str):
        return _call(*_parsed_wrapper(wrapper))
    made, given = wrapper if isinstance(wrapper, tuple) else (wrapper, dict[str, Any]())
    if not callable(made):
        raise UserError(f"wrappers are names, classes or functions of an environment; got {shown(made)}")
    path = _import_path(made) or f"<{_plain_name(made) or 'wrapper'}>"
    if path.startswith("<"):
        _local[path] = made
    return _call(path, given)


def _call(path: str, given: Mapping[str, Any]) -> str:
    for name, value in given.items():
        _plain(name, value)
    return path + (f"({', '.join(f'{name}={value!r}' for name, value in given.items())})" if given else "")


def _parsed_wrapper(text: str) -> tuple[str, dict[str, Any]]:
    """Path and keyword arguments of `module:Wrapper(name=value)`; `module.Wrapper` is taken too."""
    path, bracket, rest = text.partition("(")
    if ":" not in path and "." in path:
        path = ":".join(path.rsplit(".", 1))
    name = r"[^\W\d]\w*"
    known = re.fullmatch(rf"{name}(\.{name})*:{name}(\.{name})*|<[\w.]+>", path)
    try:
        if not known:
            raise ValueError
        call = ast.parse(f"f{bracket}{rest}" if bracket else "f()", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise ValueError
        given = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords if word.arg}
        if len(given) < len(call.keywords):
            raise ValueError
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        raise UserError(
            f"{shown(text)} names no wrapper: write module:Wrapper, or module:Wrapper(name=value) with plain values"
        ) from None
    return path, given


def _keyword(name: str, value: Any) -> str:
    _plain(name, value)
    written = value if isinstance(value, str) else repr(value)
    return f"{name}={written if _value(written) == value else repr(value)}"


def _plain(name: str, value: Any) -> None:
    """Raise unless a value can be written into a recipe and read again."""
    try:
        plain = ast.literal_eval(repr(value)) == value
    except (ValueError, SyntaxError):
        plain = False
    if not plain or not name.isidentifier():
        raise UserError(
            f"the argument {name}={shown(value)} cannot be written into a recipe: it may be a number, text, true, "
            f"false or a list of them; whatever else, a factory can make"
        )


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _import_path(made: Any) -> str | None:
    """Where a function or class can be imported from, if it can."""
    module, name = getattr(made, "__module__", None), getattr(made, "__qualname__", None)
    if not module or not name or module == SCRIPT or "<" in name:
        return None
    there: Any = sys.modules.get(module)
    for part in name.split("."):
        there = getattr(there, part, None)
    return f"{module}:{name}" if there is made else None


def _plain_name(made: Any) -> str:
    inner = made.func if isinstance(made, functools.partial) else made
    name = str(getattr(inner, "__qualname__", "")).rpartition(">.")[2]
    return name if re.fullmatch(r"[\w.]+", name) else ""


def _known(path: str, what: str) -> Any:
    if path not in _local:
        raise UserError(
            f"the {what} {path} was made by a function that cannot be imported, and this process does not have it: "
            f"the script that trained it can go on; elsewhere, move it to a module and name it module:function"
        )
    return _local[path]


def _is_env(made: Any) -> bool:
    import gymnasium

    return isinstance(made, gymnasium.Env)


def _imported(module: str, name: str, kind: Literal["Env", "Wrapper", "network"]) -> Any:
    """A class of this kind from anywhere, or a function from a module that is the user's own.

    A recipe may come from a stranger, and the functions of installed packages do anything at all.
    """
    import gymnasium

    what = {"Env": "environment", "Wrapper": "wrapper", "network": "network"}[kind]
    findable(module)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as missing:
        raise UserError(f"{module}:{name} cannot be imported: {missing} ({WORKING_FOLDER})") from missing
    except AttributeError:
        raise UserError(f"{module} has no {name}: it makes no {what}") from None
    except Exception as raised:
        raise UserError(f"importing {module} failed: {type(raised).__name__}: {one_line(raised)}") from raised
    if kind != "network" and isinstance(found, type) and issubclass(found, getattr(gymnasium, kind)):
        return found
    if (inspect.isfunction(found) or inspect.isclass(found)) and _own(sys.modules[found.__module__]):
        return found
    if kind == "network":
        raise UserError(f"{module}:{name} makes no network: name a function or class in a module of your own")
    raise UserError(
        f"{module}:{name} makes no {what}: name a class of Gymnasium's {kind}, or a function in a module of your own"
    )


def _own(module: Any) -> bool:
    """Whether a module is neither Python's nor an installed package's."""
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    installed = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return not any(Path(file).resolve().is_relative_to(Path(place).resolve()) for place in installed)
