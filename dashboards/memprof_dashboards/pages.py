"""The pages about fixes inside a report: as much of Markdown as they are written in."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

from memprof.rules.fixes import FIXES
from memprof.rules.pages import page
from memprof_dashboards.text import coded

__all__ = ["anchor", "fix_pages"]

_LONGEST = 4000
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
_BLOCK = re.compile(r"```\w*\n(.*?)```|(.+?)(?:\n\n|\Z)", re.DOTALL)


def anchor(fix: str) -> str:
    """The address of a fix's page within the report; empty for what is no fix."""
    return f"fix-{fix}" if fix in FIXES else ""


def fix_pages(fixes: Iterable[str]) -> str:
    """The pages about ``fixes``, each once and closed; nothing where there is none."""
    fixes_with_page = [fix for fix in dict.fromkeys(fixes) if anchor(fix)]
    if not fixes_with_page:
        return ""
    pages = "".join(
        f'<details class="fix-page"><summary>{coded(FIXES[fix])}</summary>'
        # Inside, so that a browser that goes there opens it.
        f'<div id="{anchor(fix)}">{"".join(_blocks(page(fix)))}</div></details>'
        for fix in fixes_with_page
    )
    return f'<div class="fix-pages"><h3>About these fixes</h3>{pages}</div>'


def _blocks(text: str) -> Iterator[str]:
    for match in _BLOCK.finditer(text):
        code, block = match[1], (match[2] or "").strip()
        if code is not None:
            yield f'<pre class="source">{html.escape(code)}</pre>'
        elif block.startswith("#"):
            yield f"<h4>{_prose(block.lstrip('# '))}</h4>"
        elif block.startswith("- "):
            items = re.split(r"^- ", block, flags=re.MULTILINE)[1:]
            yield f"<ul>{''.join(f'<li>{_prose(item)}</li>' for item in items)}</ul>"
        elif block:
            yield f"<p>{_prose(block)}</p>"


def _prose(text: str) -> str:
    """Text with its code set as such; a link to another page is its name alone."""
    return coded(_LINK.sub(r"\1", text), _LONGEST)
