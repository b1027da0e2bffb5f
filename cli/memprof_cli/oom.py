"""``memprof oom``: why memory ran out, what filled the device, what would have helped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memprof.loading import load
from memprof.oom.failed_allocation import NO_STACKS, Failure
from memprof.oom.post_mortem import OomCause, PostMortem, post_mortems
from memprof.oom.remedies import Rescue
from memprof.runfile.remote_file import Location
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Phase
from memprof.units import format_bytes, format_count, format_percent
from memprof.views.owners import UNKNOWN_CATEGORY
from memprof.views.owners import Group as OwnerGroup
from memprof.views.sites import site_name
from memprof_cli.json_output import StackFrame, known_or_none, print_json
from memprof_cli.sources import RECORDING
from memprof_cli.terminal import terminal

__all__ = ["command"]

_WIDTH = 100
_LINES = 5
_FRAMES = 4
_DEVICES = 7
_OF_A_KIND = 2
_WORTH = 0.05
"""Share of what torch could have had from which a cause that was not enough alone is told."""
_LEAST_SHOWN = 0.001
_TITLE_WIDTH = 19
_BYTES_WIDTH = 14


@click.command()
@click.argument("file", type=RECORDING)
@click.option("--json", "as_json", is_flag=True, help="Print figures as JSON.")
def command(file: Location, as_json: bool) -> None:
    """Show why memory ran out in FILE, what filled the device and what would have helped.

    FILE is a run file of memprof or a snapshot that torch wrote. Every change that it names was
    replayed on the recorded allocations up to the failed request.
    """
    answers = post_mortems(load(file))
    if as_json:
        print_json({"file": str(file), "devices": [_device(one) for one in answers]})
        return
    console = terminal(_WIDTH)
    console.print(Text(str(file), style="dim"))
    for post_mortem in answers:
        console.print(_screen(post_mortem, file))


# -- text --------------------------------------------------------------------------------------


def _screen(post_mortem: PostMortem, file: Location) -> RenderableType:
    parts: list[RenderableType] = [
        _verdict(post_mortem),
        _with_heading("What filled it", _owners(post_mortem)),
    ]
    if post_mortem.failure.recorded != "state":
        parts.append(_with_heading("What was asked", Group(*map(Text, _request(post_mortem)))))
    parts.append(_with_heading("What was held", Group(*map(Text, _holdings(post_mortem.failure)))))
    if post_mortem.failure.recorded != "state":
        parts.append(_with_heading("What would have helped", _help(post_mortem, file)))
    elif post_mortem.layouts:
        parts.append(
            _with_heading("The same laid out otherwise, by replay", _otherwise(post_mortem))
        )
    return Padding(Group(*parts), (0, 0, 1, 0))


def _with_heading(title: str, body: RenderableType) -> RenderableType:
    return Padding(Group(Text(title, style="bold"), Padding(body, (0, 0, 0, 2))), (1, 0, 0, 0))


def _verdict(post_mortem: PostMortem) -> RenderableType:
    style = "bold yellow" if post_mortem.cause is OomCause.UNKNOWN else "bold red"
    lines = [Text(post_mortem.line, style=style), Text(post_mortem.why)]
    enough = [w for w in post_mortem.weights if w.enough and w.why != post_mortem.why]
    lines += [Text(f"and: {weight.why}") for weight in enough]
    worth = _WORTH * max(post_mortem.failure.limit, 0)
    partly = [
        w
        for w in post_mortem.weights
        if not w.enough and w.bytes > worth and post_mortem.shortage >= 0
    ]
    lines += [Text(f"not enough alone: {weight.why}", style="dim") for weight in partly]
    if post_mortem.failure.times > 1:
        lines.append(
            Text(f"the last of {format_count(post_mortem.failure.times)} times", style="dim")
        )
    return Group(*lines)


def _owners(post_mortem: PostMortem) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for width in (_TITLE_WIDTH, _BYTES_WIDTH):
        table.add_column(no_wrap=True, min_width=width)
    table.add_column(no_wrap=True, overflow="ellipsis")
    note = " (inferred)" if post_mortem.inferred else ""
    whole = max(post_mortem.failure.allocated, 0)
    has_categories = any(group.name != UNKNOWN_CATEGORY for group in post_mortem.categories)
    for title, groups in (
        (f"category{note}", post_mortem.categories if has_categories else ()),
        ("module", post_mortem.modules),
        ("line", post_mortem.sites),
        ("block", post_mortem.blocks),
        ("called from", post_mortem.callers),
    ):
        _add(table, title, groups, whole)
    if not table.row_count:
        return Text("not recorded: no trace of that moment, and no list by the job")
    if not post_mortem.failure.between_windows:
        return table
    return Group(table, Text(NO_STACKS, style="dim"))


def _add(table: Table, title: str, groups: Sequence[OwnerGroup], whole: int) -> None:
    large_groups = [group for group in groups[:_LINES] if group.bytes >= _LEAST_SHOWN * whole]
    for number, group in enumerate(large_groups):
        size = Text(format_bytes(group.bytes).rjust(8))
        share = Text(format_percent(group.bytes, whole).rjust(7), style="dim")
        table.add_row(
            Text("" if number else title, style="dim"), size + " " + share, Text(group.name)
        )


def _request(post_mortem: PostMortem) -> Iterator[str]:
    failure = post_mortem.failure
    if failure.requested < 0 and not failure.beside:
        yield "not in the file"
        return
    where = [f"step {failure.label.step}"] if failure.label.step >= 0 else []
    phase = failure.label.phase
    where += [phase.name.lower()] if phase not in (Phase.UNKNOWN, Phase.OTHER) else []
    where += [failure.label.module] if failure.label.module else []
    when = f" ({', '.join(where)})" if where else ""
    by = (
        f" by {post_mortem.asked_by}"
        if post_mortem.asked_by
        else ", by a line that was not recorded"
    )
    if failure.beside:
        verb = "reported at" if failure.asynchronous else "at"
        at = f", {verb} {post_mortem.asked_by}" if post_mortem.asked_by else ""
        yield f"not told: {failure.call or failure.beside}{at}{when}"
        if failure.asynchronous:
            yield "(an error of CUDA's may come from an earlier call than the line that reports it)"
    else:
        yield f"{format_bytes(failure.requested)}{by}{when}"
    if failure.rejected:
        yield "(torch refused it in advance: set_per_process_memory_fraction and its settings)"
    facts = failure.details or {}
    if "segment_bytes" in facts and (facts.get("moment") or failure.recorded == "finding"):
        yield "(the segment that torch wanted for it: it tells no more outside a window)"
    worker = facts.get("worker")
    if isinstance(worker, str):
        yield f"in {worker}, which has its own memory"
    if post_mortem.shortage > 0:
        yield f"{format_bytes(post_mortem.shortage)} were missing"
    own = [f for f in failure.stack if frame_kind(f.filename) is FrameKind.USER]
    for frame in own[1 : 1 + _FRAMES]:
        yield f"  called from {site_name(frame)}"


def _holdings(failure: Failure) -> Iterator[str]:
    if failure.reserved >= 0:
        yield f"torch: {format_bytes(failure.reserved)} reserved"
    if failure.allocated >= 0:
        under = "  " if failure.reserved >= 0 else ""
        yield f"{under}in tensors {format_bytes(failure.allocated)}"
    if failure.pending > 0:
        yield f"  freed, but waiting for another stream {format_bytes(failure.pending)}"
    if failure.unused >= 0:
        largest, apart = failure.largest_free, failure.apart
        block = f", largest block {format_bytes(largest)}" if largest >= 0 else ""
        beside = f", of other streams or pools {format_bytes(apart)}" if apart > 0 else ""
        yield f"  cached and free {format_bytes(failure.unused)}{block}{beside}"
    yield from _held_elsewhere(failure)


def _held_elsewhere(failure: Failure) -> Iterator[str]:
    if failure.free >= 0:
        yield f"free on the device: {format_bytes(failure.free)}"
    if failure.total >= 0:
        yield f"the device: {format_bytes(failure.total)}"
    elif failure.limit >= 0:
        could = format_bytes(failure.limit)
        yield f"torch could have had {could}: its own and the free; the card's size is not recorded"
    if failure.outside >= 0:
        text = f"outside torch (contexts, libraries, others): {format_bytes(failure.outside)}"
        yield text + (f"; other processes {format_bytes(failure.others)}" * (failure.others >= 0))
    for other in failure.neighbours:
        size = format_bytes(other.bytes) if other.bytes >= 0 else "bytes not told"
        yield f"  process {other.pid} {other.name}: {size}"
    if failure.elsewhere:
        beside = [f"{name} {format_bytes(nbytes)}" for name, nbytes in failure.elsewhere[:_DEVICES]]
        more = len(failure.elsewhere) - len(beside)
        yield f"reserved elsewhere: {', '.join(beside)}" + (f" and on {more} more" if more else "")


def _help(post_mortem: PostMortem, file: Location) -> RenderableType:
    fitting = post_mortem.rescues.fitting
    leaks = any(weight.cause is OomCause.LEAK and weight.bytes for weight in post_mortem.weights)
    lines: list[RenderableType] = [
        Text(f"`memprof leaks {file}` says what grows, who holds it and the fix", style="cyan")
    ] * leaks
    lines += [
        line for kind in dict.fromkeys(r.kind for r in fitting) for line in _kind(fitting, kind)
    ]
    lines += [Text(one) for one in post_mortem.advice]
    failed = [r for r in post_mortem.rescues.tried if not r.fits]
    if failed:
        settings = [r for r in failed if r.kind == "settings"]
        names = [r.name for r in failed if r.kind != "settings"]
        if settings:
            one = settings[0].name
            names.insert(0, one if len(settings) == 1 else f"{len(settings)} allocator settings")
        lines.append(Text(f"replayed without success: {', '.join(names)}", style="dim"))
    if post_mortem.rescues.unproven:
        lines.append(Text(post_mortem.rescues.unproven, style="dim"))
    if fitting:
        lines.append(
            Text("replayed up to the failed request; what the job needed after it is not known")
        )
    return Group(*lines)


def _kind(fitting: Sequence[Rescue], kind: str) -> Iterator[RenderableType]:
    """The changes of one kind; of several settings the one that leaves the most."""
    mine = [r for r in fitting if r.kind == kind]
    others = ""
    if kind == "settings":
        others = f" (and {len(mine) - 1} other settings)" if len(mine) > 1 else ""
        mine = [max(mine, key=lambda r: r.spare)]
    for rescue in mine[:_OF_A_KIND]:
        yield Text(f"[fits] {rescue.change}{others}")
        peak, spare = format_bytes(rescue.peak_reserved), format_bytes(rescue.spare)
        assumption = f"; taken for granted: {rescue.assumes}" if rescue.assumes else ""
        figures = Text(f"at most {peak} reserved, {spare} to spare{assumption}", style="dim")
        yield Padding(figures, (0, 0, 0, len("[fits] ")))


def _otherwise(post_mortem: PostMortem) -> RenderableType:
    rows = [
        f"{layout.change}: {format_bytes(layout.reserved)} reserved, "
        f"{format_bytes(layout.saved)} less"
        for layout in post_mortem.layouts
    ]
    return Group(*map(Text, rows))


# -- JSON --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Weight:
    """How many bytes speak for a cause."""

    cause: str
    bytes: int
    enough: bool
    why: str


@dataclass(frozen=True, slots=True)
class _Request:
    """The request that failed; None where something was not recorded."""

    bytes: int | None
    missing_bytes: int | None
    by: str
    step: int | None
    phase: str
    module: str
    beside: str
    call: str
    asynchronous: bool
    event: int | None
    window: int | None
    time_us: int | None
    stack: list[StackFrame]


@dataclass(frozen=True, slots=True)
class _Process:
    """Another process on the device."""

    pid: int
    name: str
    bytes: int | None


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """What torch held on another device."""

    device: str
    reserved_bytes: int


@dataclass(frozen=True, slots=True)
class _Holdings:
    """Who held the device's memory; None where something was not recorded."""

    allocated_bytes: int | None
    reserved_bytes: int | None
    pending_bytes: int | None
    unused_bytes: int | None
    largest_free_bytes: int | None
    apart_bytes: int | None
    limit_bytes: int | None
    outside_bytes: int | None
    others_bytes: int | None
    process_used_bytes: int | None
    device_free_bytes: int | None
    device_total_bytes: int | None
    processes: list[_Process]
    elsewhere: list[_Elsewhere]


@dataclass(frozen=True, slots=True)
class _OwnerGroup:
    """Bytes and blocks of one owner."""

    name: str
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class _FilledBy:
    """What was alive, grouped in five ways."""

    inferred: bool
    between_windows: bool
    category: list[_OwnerGroup]
    module: list[_OwnerGroup]
    line: list[_OwnerGroup]
    block: list[_OwnerGroup]
    caller: list[_OwnerGroup]


@dataclass(frozen=True, slots=True)
class _ReplayedChange:
    """A change that was replayed up to the failed request."""

    kind: str
    change: str
    fits: bool
    limit_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    spare_bytes: int
    assumes: str


@dataclass(frozen=True, slots=True)
class _Layout:
    """Another way to hold the same tensors."""

    change: str
    reserved_bytes: int
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class _DevicePostMortem:
    """A device as ``memprof oom --json`` prints it; `docs/oom.md` explains the fields."""

    device: str
    recorded: str
    times: int
    cause: str
    verdict: str
    why: str
    weights: list[_Weight]
    asked: _Request
    held: _Holdings
    filled_by: _FilledBy
    changes: list[_ReplayedChange]
    unproven: str
    advice: list[str]
    layouts: list[_Layout]


def _device(post_mortem: PostMortem) -> _DevicePostMortem:
    failure = post_mortem.failure
    return _DevicePostMortem(
        device=failure.device,
        recorded=failure.recorded,
        times=failure.times,
        cause=post_mortem.cause.value,
        verdict=post_mortem.line,
        why=post_mortem.why,
        weights=[_Weight(w.cause.value, w.bytes, w.enough, w.why) for w in post_mortem.weights],
        asked=_request_record(post_mortem),
        held=_held_by(failure),
        filled_by=_FilledBy(
            inferred=post_mortem.inferred,
            between_windows=failure.between_windows,
            category=_groups(post_mortem.categories),
            module=_groups(post_mortem.modules),
            line=_groups(post_mortem.sites),
            block=_groups(post_mortem.blocks),
            caller=_groups(post_mortem.callers),
        ),
        changes=[_change(rescue) for rescue in post_mortem.rescues.tried],
        unproven=post_mortem.rescues.unproven,
        advice=list(post_mortem.advice),
        layouts=[_Layout(one.change, one.reserved, one.saved) for one in post_mortem.layouts],
    )


def _request_record(post_mortem: PostMortem) -> _Request:
    failure = post_mortem.failure
    of_event = failure.recorded == "event"
    return _Request(
        bytes=known_or_none(failure.requested),
        missing_bytes=known_or_none(post_mortem.shortage),
        by=post_mortem.asked_by,
        step=known_or_none(failure.label.step),
        phase=failure.label.phase.name.lower(),
        module=failure.label.module,
        beside=failure.beside,
        call=failure.call,
        asynchronous=failure.asynchronous,
        event=known_or_none(failure.event) if of_event else None,
        window=known_or_none(failure.number) if of_event else None,
        time_us=known_or_none(failure.time_us),
        stack=[StackFrame(frame.name, frame.filename, frame.line) for frame in failure.stack],
    )


def _held_by(failure: Failure) -> _Holdings:
    return _Holdings(
        allocated_bytes=known_or_none(failure.allocated),
        reserved_bytes=known_or_none(failure.reserved),
        pending_bytes=known_or_none(failure.pending),
        unused_bytes=known_or_none(failure.unused),
        largest_free_bytes=known_or_none(failure.largest_free),
        apart_bytes=known_or_none(failure.apart),
        limit_bytes=known_or_none(failure.limit),
        outside_bytes=known_or_none(failure.outside),
        others_bytes=known_or_none(failure.others),
        process_used_bytes=known_or_none(failure.process_used),
        device_free_bytes=known_or_none(failure.free),
        device_total_bytes=known_or_none(failure.total),
        processes=[_Process(n.pid, n.name, known_or_none(n.bytes)) for n in failure.neighbours],
        elsewhere=[_Elsewhere(name, size) for name, size in failure.elsewhere],
    )


def _groups(groups: Sequence[OwnerGroup]) -> list[_OwnerGroup]:
    return [_OwnerGroup(group.name, group.bytes, group.count) for group in groups]


def _change(rescue: Rescue) -> _ReplayedChange:
    return _ReplayedChange(
        kind=rescue.kind,
        change=rescue.change,
        fits=rescue.fits,
        limit_bytes=rescue.limit,
        peak_allocated_bytes=rescue.peak_allocated,
        peak_reserved_bytes=rescue.peak_reserved,
        spare_bytes=rescue.spare,
        assumes=rescue.assumes,
    )
