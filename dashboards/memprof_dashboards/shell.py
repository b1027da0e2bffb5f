"""The frame of every page, one self-contained HTML file; what stands in it is the pages'."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from memprof.errors import MemprofError
from memprof_dashboards import assets
from memprof_dashboards.text import escaped

__all__ = ["save_page", "shell"]

_TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<meta name="generator" content="memprof">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#{first}">Skip to the charts</a>
<nav class="bar" aria-label="Page">
<span class="brand">memprof</span>
<span class="links"></span>
<span class="switches">{switches}<button id="theme" type="button">Theme: system</button></span>
</nav>
<main>
{words}
<noscript><p class="notice">The charts need JavaScript; everything above is text.</p></noscript>
<p class="notice" id="broken" role="alert" hidden></p>
{charts}
</main>
<div id="tip" role="status" hidden></div>
<script type="application/octet-stream" id="plotly">{plotly}</script>
<script type="application/octet-stream" id="data">{data}</script>
<script>
{script}
</script>
</body>
</html>
"""


def shell(
    title: str,
    words: str,
    charts: Sequence[tuple[str, str, str]],
    data: bytes,
    scripts: Sequence[str],
    switches: str = "",
) -> str:
    """The whole page as text; of ``charts`` the name, title and lead, ``data`` what is drawn.

    Raises:
        MissingError: plotly is not installed whole.
    """
    return _TEMPLATE.format(
        title=escaped(title, 120),
        style=assets.style(),
        first=charts[0][0],
        switches=switches,
        words=words,
        charts=_figures(charts),
        plotly=assets.plotly_script(),
        data=assets.packed(data),
        script=assets.script(scripts),
    )


def _figures(charts: Iterable[tuple[str, str, str]]) -> str:
    """The places that the scripts draw in."""
    return "".join(
        f'<section class="figure" id="{name}" aria-labelledby="{name}-title">'
        f'<header><h2 id="{name}-title">{title}</h2><div class="controls"></div></header>'
        f'<p class="lead">{lead}</p><div class="legend"></div><div class="chart"></div>'
        f'<div class="below"></div></section>'
        for name, title, lead in charts
    )


def save_page(text: str, path: str | Path) -> Path:
    """``text`` written into ``path``; returns the path.

    Raises:
        MemprofError: the file cannot be written.
    """
    path = Path(path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise MemprofError(
            f"cannot write {path}: {error.strerror}", "choose another with -o"
        ) from error
    return path
