"""The card of a failed allocation: why, what was asked, what was held, what would have helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memprof.oom.failed_allocation import NO_STACKS, Failure
from memprof.oom.post_mortem import PostMortem
from memprof.oom.remedies import Rescue
from memprof.units import format_bytes, format_count
from memprof_dashboards.text import coded, escaped

__all__ = ["cards"]

_SETTINGS_SHOWN = 2
_KINDS = {
    "settings": "allocator settings",
    "limit": "no limit",
    "others": "others' memory",
    "optimizer": "optimizer",
    "free": "free",
    "checkpoint": "checkpoint",
    "batch": "smaller batch",
    "bf16": "bfloat16",
    "card": "larger card",
}


def cards(post_mortems: Sequence[PostMortem]) -> str:
    """One card a device that ran out of memory; nothing where none did."""
    cards_html = "".join(_card(one) for one in post_mortems)
    if not cards_html:
        return ""
    return (
        '<section class="findings" aria-label="Out of memory"><h2>Out of memory</h2>'
        f"{cards_html}</section>"
    )


def _card(post_mortem: PostMortem) -> str:
    often = f" · the last of {format_count(post_mortem.failure.times)} times"
    facts = " · ".join(_facts(post_mortem)) + (often if post_mortem.failure.times > 1 else "")
    return (
        '<article class="card kind-leak"><header>'
        f'<span class="kind">{escaped(post_mortem.cause.value)}</span>'
        f"<h3>{coded(post_mortem.line)}</h3>"
        f'<p class="facts">{facts}</p></header><p>{coded(post_mortem.why)}</p>'
        f"{_source(post_mortem)}{_help(post_mortem)}</article>"
    )


def _source(post_mortem: PostMortem) -> str:
    return (
        f'<p class="hint">{escaped(NO_STACKS)}</p>' if post_mortem.failure.between_windows else ""
    )


def _facts(post_mortem: PostMortem) -> Iterator[str]:
    failure = post_mortem.failure
    if failure.requested >= 0:
        by = f" by {escaped(post_mortem.asked_by, 200)}" if post_mortem.asked_by else ""
        step = f" in step {failure.label.step}" if failure.label.step >= 0 else ""
        yield f"<b>{format_bytes(failure.requested)}</b> asked{by}{step}"
    if post_mortem.shortage > 0:
        yield f"<b>{format_bytes(post_mortem.shortage)}</b> missing"
    yield from _holdings(failure)


def _holdings(failure: Failure) -> Iterator[str]:
    if min(failure.reserved, failure.allocated) >= 0:
        yield (
            f"<b>{format_bytes(failure.allocated)}</b> in tensors of "
            f"<b>{format_bytes(failure.reserved)}</b> reserved"
        )
    if failure.free >= 0:
        yield f"<b>{format_bytes(failure.free)}</b> free on the device"
    if failure.outside >= 0:
        yield f"<b>{format_bytes(failure.outside)}</b> outside torch"


def _help(post_mortem: PostMortem) -> str:
    items = "".join(_rescue(rescue) for rescue in _fewest_changes(post_mortem.rescues.fitting))
    note = (
        f'<p class="hint">{escaped(post_mortem.rescues.unproven)}</p>'
        if post_mortem.rescues.unproven
        else ""
    )
    if not items:
        return note
    return (
        '<div class="remedies"><h4>What would have let this request succeed, each replayed up to '
        f"it</h4>{items}</div>{note}"
    )


def _fewest_changes(fitting: Sequence[Rescue]) -> Iterator[Rescue]:
    """All kinds; of many settings those that leave the most."""
    settings = sorted((r for r in fitting if r.kind == "settings"), key=lambda r: -r.spare)
    yield from settings[:_SETTINGS_SHOWN]
    yield from (rescue for rescue in fitting if rescue.kind != "settings")


def _rescue(rescue: Rescue) -> str:
    assumption = f" Taken for granted: {escaped(rescue.assumes)}." if rescue.assumes else ""
    return (
        f'<div class="remedy"><p><code class="fix">{_KINDS.get(rescue.kind, "")}</code>'
        f"{escaped(rescue.change)}.{assumption}"
        f'<span class="saves">at most {format_bytes(rescue.peak_reserved)} reserved</span>'
        f'<span class="saves">{format_bytes(rescue.spare)} to spare</span></p></div>'
    )
