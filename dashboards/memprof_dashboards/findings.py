"""Findings as cards: what grows, where, who holds it, what to type and what that saves."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memprof.chain_description import label
from memprof.records import Holder, Site
from memprof.reference_chain import Link
from memprof.rules.finding import Remedy, RuleFinding
from memprof.rules.floor import is_needed
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame
from memprof.units import format_bytes, format_count, format_percent
from memprof.views.sites import short_path
from memprof_dashboards.pages import anchor, fix_pages
from memprof_dashboards.text import coded, escaped, visible

__all__ = ["FindingSeries", "cards", "series"]

_KINDS = {
    "leak": "Leak",
    "cycle": "Reference cycle",
    "waste": "Waste",
    "fragmentation": "Fragmentation",
    "non_torch": "Outside torch",
    "host_growth": "Host growth",
}
Lines = set[tuple[str, int]]
"""Source lines, by file, that a card has shown."""

_MOST_ROWS = 30
_REMEDIES = 4
_FRAMES = 40
_PATCH_LINES = 200


class FindingSeries(msgspec.Struct):
    """The live bytes of a finding's site at step ends, for its chart; empty where not measured."""

    title: str
    steps: list[int]
    bytes: list[int]


def series(findings: Sequence[RuleFinding]) -> list[FindingSeries]:
    """The charts of the cards, in their order."""
    return [
        FindingSeries(
            visible(finding.title),
            finding.series.steps.tolist() if finding.series else [],
            finding.series.bytes.tolist() if finding.series else [],
        )
        for finding in findings[:_MOST_ROWS]
    ]


def cards(findings: Sequence[RuleFinding]) -> str:
    """One card a finding, best first; nothing where there is none."""
    if not findings:
        return ""
    cards_html = "".join(
        _card(finding, number) for number, finding in enumerate(findings[:_MOST_ROWS])
    )
    more = len(findings) - _MOST_ROWS
    rest = f'<p class="hint">and {format_count(more)} more: see --json</p>' if more > 0 else ""
    about = fix_pages(
        r.fix for finding in findings[:_MOST_ROWS] for r in finding.remedies[:_REMEDIES]
    )
    return (
        f'<section class="findings" aria-label="Findings"><h2>Findings</h2>'
        f"{cards_html}{rest}{about}"
        "</section>"
    )


def _word(finding: RuleFinding) -> str:
    if is_needed(finding):
        return "Largest part"
    return "Also seen" if finding.minor else _KINDS[finding.kind.value]


def _class(finding: RuleFinding) -> str:
    return "seen" if finding.minor or is_needed(finding) else finding.kind.value


def _card(finding: RuleFinding, number: int) -> str:
    places = {(finding.site.filename, finding.site.line)}
    chart = (
        f'<div class="spark" data-finding="{number}"></div>'
        if finding.series is not None and len(finding.series.steps) > 1
        else ""
    )
    return (
        f'<article class="card kind-{_class(finding)}"><header>'
        f'<span class="kind">{_word(finding)}</span>'
        f"<h3>{coded(finding.title)}</h3>{_weight(finding)}</header>"
        f'<div class="columns"><div>{_site(finding.site)}{_stack(finding.stack)}</div>{chart}</div>'
        f"{_holders(finding, places)}{_remedies(finding, places)}</article>"
    )


def _weight(finding: RuleFinding) -> str:
    facts = []
    if finding.bytes_per_step:
        facts.append(f"<b>{format_bytes(finding.bytes_per_step)}</b> per step")
    if finding.bytes:
        facts.append(f"<b>{format_bytes(finding.bytes)}</b> in all")
    if finding.first_step >= 0:
        facts.append(f"seen in steps {finding.first_step} to {finding.last_step}")
    if finding.steps_left >= 0:
        full = "host" if finding.device == "host" else "device"
        facts.append(f"{full} full in about {format_count(round(finding.steps_left))} steps")
    facts.append(f"{format_percent(finding.confidence, 1)} sure")
    return f'<p class="facts">{" · ".join(facts)}</p>'


# -- where -----------------------------------------------------------------------------------------


def _place(filename: str, line: int, function: str = "") -> str:
    if not filename:
        return ""
    within = f" in {escaped(function, 120)}" if function else ""
    short = escaped(short_path(filename), 120)
    at = f":{line}" if line > 0 else ""
    return f'<span class="place" title="{escaped(filename)}">{short}{at}{within}</span>'


def _site(site: Site) -> str:
    place = _place(site.filename, site.line, site.function)
    return f"{place}{_code(site.line, site.code)}" if place else ""


def _code(line: int, code: str) -> str:
    """A source line as a box; each line has one in a card, the first time that it is told."""
    if not code:
        return ""
    return f'<pre class="source"><span class="no">{line}</span>{escaped(code.strip(), 300)}</pre>'


def _stack(stack: Sequence[Frame]) -> str:
    if not stack:
        return ""
    items = "".join(_frame(frame) for frame in stack[:_FRAMES])
    return (
        f'<details class="stack"><summary>Stack, {len(stack)} frames</summary>'
        f"<ol>{items}</ol></details>"
    )


def _frame(frame: Frame) -> str:
    own = "own" if frame_kind(frame.filename) is FrameKind.USER else "library"
    place = _place(frame.filename, frame.line)
    return f'<li class="{own}"><b>{escaped(frame.name, 120)}</b> {place}</li>'


# -- who -------------------------------------------------------------------------------------------


def _holders(finding: RuleFinding, places: Lines) -> str:
    if not finding.holders:
        return ""
    items = "".join(_holder(holder, places) for holder in finding.holders[:5])
    return f'<div class="holders"><h4>Who holds it</h4>{items}</div>'


def _holder(holder: Holder, places: Lines) -> str:
    place = _place(holder.filename, holder.line)
    return (
        f'<div class="holder"><p>{coded(holder.description, 600)} {place}</p>'
        f"{_new_code(holder, places)}{_chain(holder.links)}</div>"
    )


def _new_code(at: Holder | Remedy, places: Lines) -> str:
    if (at.filename, at.line) in places:
        return ""
    places.add((at.filename, at.line))
    return _code(at.line, at.code)


def _chain(links: Sequence[Link]) -> str:
    """The references from a name down to the tensor, as a row of boxes."""
    if not links:
        return ""
    boxes = "".join(f"<li>{_link(link)}</li>" for link in links)
    return f'<ol class="chain" aria-label="Chain of references">{boxes}</ol>'


def _link(link: Link) -> str:
    length = f" ({format_count(link.length)} items)" if link.length >= 0 else ""
    type_name = f'<span class="type">{escaped(link.type_name, 80)}{length}</span>'
    return (
        f'<span class="how">{escaped(link.kind, 40)}</span>'
        f"<b>{escaped(label(link), 80)}</b>{type_name if link.type_name or length else ''}"
        f"{_place(link.filename, link.line)}"
    )


# -- what to do ------------------------------------------------------------------------------------


def _remedies(finding: RuleFinding, places: Lines) -> str:
    if not finding.remedies:
        return ""
    items = "".join(_remedy(remedy, places) for remedy in finding.remedies[:_REMEDIES])
    return f'<div class="remedies"><h4>What to do</h4>{items}</div>'


def _remedy(remedy: Remedy, places: Lines) -> str:
    saves, often = "", " per step" if remedy.saves_per_step else ""
    if remedy.saves_bytes > 0:
        saves = f'<span class="saves">saves {format_bytes(remedy.saves_bytes)}{often}</span>'
    if remedy.peak_before >= 0 and remedy.peak_after >= 0:
        before, after = format_bytes(remedy.peak_before), format_bytes(remedy.peak_after)
        saves += f'<span class="saves">peak {before} → {after}</span>'
    what = f"{remedy.why} Write `{remedy.typed}`." if remedy.typed else remedy.why
    return (
        f'<div class="remedy"><p><code class="fix">{escaped(remedy.fix, 60)}</code>'
        f"{coded(what, 600)} {_place(remedy.filename, remedy.line)} "
        f"{_link_to(remedy.fix)}{saves}</p>{_new_code(remedy, places)}{_patch(remedy.patch)}</div>"
    )


def _link_to(fix: str) -> str:
    """To the fix's page further down in this report."""
    return f'<a href="#{anchor(fix)}">about this fix</a>' if anchor(fix) else ""


def _patch(patch: str) -> str:
    if not patch:
        return ""
    rows = "".join(_patch_line(line) for line in patch.splitlines()[:_PATCH_LINES])
    return f'<pre class="patch" aria-label="Patch">{rows}</pre>'


def _patch_line(line: str) -> str:
    marks = {"+": "added", "-": "removed", "@": "where"}
    return f'<span class="{marks.get(line[:1], "same")}">{escaped(line, 300)}\n</span>'
