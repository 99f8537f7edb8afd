"""Safe text for display and storage: without terminal control characters, and without secrets in addresses."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# Characters that change the direction of text, and line separators other than the line feed.
_TURNING = "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"

_USER = re.compile(r"(?<=://)[^/?#\s@\"'<>]*(?:@[^/?#\s@\"'<>]*)*@")
_SECRET = re.compile(
    r"(?i)([?&;][\w.%-]*(?:sig|signature|token|secret|passw|pwd|password|credential|auth|key|session)[\w.%-]*=)"
    r"[^&;#,\s\"'<>]+"
)


def plain(text: object) -> str:
    """Escape control characters and characters that change the direction of text: a name stays in its line."""
    return "".join(_plain(character) for character in str(text))


def _plain(character: str) -> str:
    if character.isascii() and character.isprintable():
        return character
    kind = unicodedata.category(character)
    if kind == "Cs":  # an unpaired surrogate, which cannot be encoded
        return "?"
    return character.encode("unicode_escape").decode() if kind == "Cc" or character in _TURNING else character


def without_secrets(address: object) -> str:
    """Remove user and password of each URL in a text, and the values of secret URL parameters."""
    text = str(address)
    if "://" not in text:
        return text
    return _SECRET.sub(r"\1...", _USER.sub("", text))


def shown(text: object) -> str:
    """Return lines of text that are safe to display."""
    return "\n".join(plain(line) for line in without_secrets(text).split("\n"))


def kept(content: Any) -> Any:
    """Remove the secrets of all addresses in a JSON value, before it is stored."""
    if isinstance(content, dict):
        return {without_secrets(key) if isinstance(key, str) else key: kept(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [kept(value) for value in content]
    return without_secrets(content) if isinstance(content, str) else content
