"""HTML by construction: whatever comes from a run becomes part of a page through `tag`, which escapes it."""

import base64
import hashlib
import json
from collections.abc import Iterable
from html import escape
from typing import Any, TypeAlias

Child: TypeAlias = "Markup | str | int | float | Iterable[Child] | None"

VOID = ("br", "img", "link", "meta")


class Markup(str):
    """HTML. Only this module makes it, so a page cannot hold text that was not escaped."""

    __slots__ = ()

    def __add__(self, other: str) -> "Markup":
        return Markup(str(self) + text(other))


def text(value: Child) -> Markup:
    """What is shown for a value: HTML as it is, anything else with its special characters escaped; nothing for None."""
    if value is None:
        return Markup()
    if isinstance(value, Markup):
        return value
    if isinstance(value, str | int | float):
        return Markup(escape(str(value)))
    return Markup("".join(map(text, value)))


def tag(name: str, /, *children: Child, **attributes: Any) -> Markup:
    """An element. `class_` is class and `aria_label` aria-label; True is an attribute without value, None is none."""
    words = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        word = key.rstrip("_").replace("_", "-")
        words += f" {word}" if value is True else f' {word}="{escape(str(value))}"'
    if name in VOID:
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{text(children)}</{name}>")


def joined(parts: Iterable[Child], between: Child) -> Markup:
    """Parts with something between them."""
    return Markup(text(between).join(map(text, parts)))


def document(title: str, body: Child, data: Any, *, style: str, script: str) -> Markup:
    """A whole page: the given style and script, which are ours, and no other may run in it or be loaded by it."""
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'"
    )
    values = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("link", rel="icon", href="data:,"),
        tag("title", title),
        tag("style", Markup(style)),
    )
    scripts = (tag("script", Markup(values), type="application/json", id="data"), tag("script", Markup(script)))
    return Markup("<!DOCTYPE html>\n") + tag("html", head, tag("body", body, scripts), lang="en") + "\n"


def _digest(content: str) -> str:
    """What a policy calls the one inline script or style that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
