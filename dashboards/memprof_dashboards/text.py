"""Text that somebody else chose (paths, names, labels), made safe to show; no markup."""

from __future__ import annotations

import html
import re

__all__ = ["coded", "escaped", "visible"]

LONGEST = 400
"""Characters of one name that a page shows; its two ends are kept, which tell paths apart."""

# Controls, direction marks and line separators would hide or reorder what a reader sees; a lone
# surrogate cannot be written at all.
_UNSEEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)


def visible(text: str, longest: int = LONGEST) -> str:
    """``text`` on one line with its invisible characters spelt out, cut in the middle if long."""
    if len(text) > longest:
        half = (longest - 1) // 2
        text = f"{text[:half]}…{text[-half:]}"
    return _UNSEEN.sub(_spelt, text)


def _spelt(match: re.Match[str]) -> str:
    code = ord(match[0])
    if match[0] in "\t\n\r":
        return " "
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def escaped(text: str, longest: int = LONGEST) -> str:
    """`visible` text for the inside of an HTML element or of a quoted attribute."""
    return html.escape(visible(text, longest), quote=True)


def coded(text: str, longest: int = 1200) -> str:
    """`escaped` text in which what stands between backticks is set as code."""
    parts = escaped(text, longest).split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is a backtick
        return "`".join(parts)
    return "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(parts))
