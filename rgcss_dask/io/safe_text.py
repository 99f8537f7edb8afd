"""Text that may be shown and kept: without what would steer a terminal, and without the secrets of an address."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# What turns the direction of the text after it, or ends a line without being a line feed.
_TURNING = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

_USER = re.compile(r"(?<=://)[^/?#\s@\"'<>]*(?:@[^/?#\s@\"'<>]*)*@")
_SECRET = re.compile(
    r"(?i)([?&;][\w.%-]*(?:sig|signature|token|secret|passw|pwd|password|credential|auth|key|session)[\w.%-]*=)"
    r"[^&;#,\s\"'<>]+"
)


def plain(text: object) -> str:
    """Write control characters, and those that turn text around, by their numbers: a name stays in its line."""
    return "".join(_plain(character) for character in str(text))


def _plain(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    kind = unicodedata.category(character)
    if kind == "Cs":  # half a pair of surrogates, which cannot be written at all
        return "?"
    return character.encode("unicode_escape").decode() if kind == "Cc" or character in _TURNING else character


def without_secrets(address: object) -> str:
    """Leave out the user and password of each URL in a text, and the values of parameters that let somebody in."""
    text = str(address)
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1...", _USER.sub("", text))


def shown(text: object) -> str:
    """Return lines of text as they may be shown to people."""
    return "\n".join(plain(line) for line in without_secrets(text).split("\n"))


def kept(content: Any) -> Any:
    """Leave out the secrets of every address in a JSON value, as it may be kept."""
    if isinstance(content, dict):
        return {without_secrets(key) if isinstance(key, str) else key: kept(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [kept(value) for value in content]
    return without_secrets(content) if isinstance(content, str) else content
