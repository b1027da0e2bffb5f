"""``memprof leaks``: what outlives its step, who holds it, what to type and what that saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from memprof.chain_description import names_line
from memprof.errors import MemprofError
from memprof.records import Holder, Site
from memprof.report.recorded_steps import why_no_more
from memprof.report.recording_gaps import is_bare_state
from memprof.rules.finding import Kind, Remedy, RuleFinding
from memprof.rules.floor import is_needed
from memprof.rules.pages import explained_by
from memprof.rules.ranked_findings import findings
from memprof.rules.unexplained_growth import UnexplainedGrowth, unexplained_growth
from memprof.run import DeviceRun, Run
from memprof.runfile.remote_file import Location
from memprof.source_code.locate import not_here
from memprof.source_code.merge_patches import merged
from memprof.trace import NOT_RECORDED
from memprof.units import format_bytes, format_count, format_percent
from memprof.views.examination import examine
from memprof.views.sites import library_frame, short_path, site_name
from memprof.views.time_to_full import TimeToFull, times_to_full
from memprof_cli.json_output import known_or_none, print_json
from memprof_cli.sources import RECORDING, open_run, source_option
from memprof_cli.terminal import terminal

__all__ = ["FindingsRecord", "command", "findings_record"]

EXIT_LEAK = 3
_WIDTH = 110
_LEAKS = (Kind.LEAK, Kind.CYCLE, Kind.HOST_GROWTH, Kind.NON_TORCH)
_STYLES = {Kind.LEAK: "bold red", Kind.CYCLE: "bold red", Kind.HOST_GROWTH: "bold yellow"}
_MOST_HOLDERS = 3
_MOST_MISSING = 3
_ENOUGH_STEPS = 12
_LATE_BYTES, _MANY_TIMES = 32 << 20, 4
"""What must be there at the end, and over the peak before, that a part unseen is told of."""
_RECORD = f"record at least {_ENOUGH_STEPS} steps with `memprof run train.py`"


@click.command()
@click.argument("file", type=RECORDING)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--all", "in_full", is_flag=True, help="Also show in full what is only seen.")
@click.option(
    "--patch",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the fixes that are mechanical as one unified diff, for `git apply`.",
)
@source_option
@click.option(
    "--fail-on-leak",
    is_flag=True,
    help="Exit with status 3 when something grows; with 1 where that cannot be judged.",
)
@click.pass_context
def command(
    ctx: click.Context,
    file: Location,
    as_json: bool,
    in_full: bool,
    patch: Path | None,
    roots: tuple[Path, ...],
    fail_on_leak: bool,
) -> None:
    """Find what grows from step to step in the recording FILE, who holds it and the fix.

    FILE is a run file of memprof or a snapshot that torch wrote. What grows comes first, then
    memory that is there at the peak and need not be. What is too little to act on, may be meant, or
    is needed as the program is, has one line each at the end.
    """
    run = open_run(file, roots)
    examination = examine(run)
    all_findings = findings(run, examination)
    unexplained = unexplained_growth(examination, all_findings)
    full = tuple(times_to_full(run))
    if patch is not None:
        _write_patch(patch, all_findings)
        _say_what_is_not_here(run, all_findings)
    if as_json:
        print_json(findings_record(all_findings, unexplained, full))
    else:
        _print(run, all_findings, unexplained, in_full=in_full)
        for one in full:
            terminal(_WIDTH).print(Text(str(one), style="bold yellow"))
    if fail_on_leak and (unexplained is not None or any(map(_grows, all_findings))):
        ctx.exit(EXIT_LEAK)
    if fail_on_leak and _steps(run) < _ENOUGH_STEPS:
        raise MemprofError(
            f"{file} cannot show whether anything leaks: {_nothing(run)}",
            "what cannot be judged does not pass --fail-on-leak",
        )


@dataclass(frozen=True, slots=True)
class _Site:
    """The line that a finding is about."""

    filename: str
    line: int
    function: str
    code: str


@dataclass(frozen=True, slots=True)
class _Holder:
    """What keeps the tensors alive."""

    description: str
    kind: str
    filename: str
    line: int
    code: str


@dataclass(frozen=True, slots=True)
class _Remedy:
    """What to change, and what that saves; peaks are None where nothing was replayed."""

    fix: str
    rule: str
    why: str
    typed: str
    filename: str
    line: int
    code: str
    saves_bytes: int
    peak_before: int | None
    peak_after: int | None
    patch: str
    page: str


@dataclass(frozen=True, slots=True)
class _Finding:
    """One finding as ``memprof leaks --json`` prints it; `docs/leaks.md` explains the fields."""

    kind: str
    rule: str
    title: str
    device: str
    bytes_per_step: int
    bytes: int
    confidence: float
    minor: bool
    first_step: int
    last_step: int
    steps_left: int | None
    module: str
    category: str
    site: _Site
    holders: list[_Holder]
    remedies: list[_Remedy]


@dataclass(frozen=True, slots=True)
class _Unexplained:
    """What rises and no finding explains."""

    device: str
    bytes_per_step: int
    bytes: int
    explained_bytes: int
    first_step: int
    last_step: int
    way_on: str


@dataclass(frozen=True, slots=True)
class FindingsRecord:
    """The findings of one run as ``memprof leaks --json`` prints them, best first."""

    findings: list[_Finding]
    unexplained: _Unexplained | None
    time_to_full: list[TimeToFull] | msgspec.UnsetType = msgspec.UNSET
    """Of the devices that fill up, where it is known when; left out where none does."""


def findings_record(
    all_findings: Sequence[RuleFinding],
    unexplained: UnexplainedGrowth | None = None,
    full: Sequence[TimeToFull] = (),
) -> FindingsRecord:
    """The findings as records, best first, and what rises beside them."""
    rest = None
    if unexplained is not None:
        rest = _Unexplained(
            device=unexplained.device,
            bytes_per_step=round(unexplained.per_step),
            bytes=unexplained.bytes,
            explained_bytes=unexplained.explained,
            first_step=unexplained.first_step,
            last_step=unexplained.last_step,
            way_on=unexplained.way_on,
        )
    records = [_as_record(one) for one in all_findings]
    return FindingsRecord(records, rest, list(full) or msgspec.UNSET)


def _as_record(one: RuleFinding) -> _Finding:
    site = one.site
    return _Finding(
        kind=one.kind.value,
        rule=one.rule,
        title=one.title,
        device=one.device,
        bytes_per_step=round(one.bytes_per_step),
        bytes=one.bytes,
        confidence=one.confidence,
        minor=one.minor,
        first_step=one.first_step,
        last_step=one.last_step,
        steps_left=known_or_none(round(one.steps_left)),
        module=one.module,
        category=one.category,
        site=_Site(site.filename, site.line, site.function, site.code),
        holders=[
            _Holder(holder.description, holder.kind, holder.filename, holder.line, holder.code)
            for holder in one.holders
        ],
        remedies=[_remedy(remedy) for remedy in one.remedies],
    )


def _remedy(one: Remedy) -> _Remedy:
    return _Remedy(
        fix=one.fix,
        rule=one.rule,
        why=one.why,
        typed=one.typed,
        filename=one.filename,
        line=one.line,
        code=one.code,
        saves_bytes=one.saves_bytes,
        peak_before=known_or_none(one.peak_before),
        peak_after=known_or_none(one.peak_after),
        patch=one.patch,
        page=one.page,
    )


def _write_patch(path: Path, all_findings: Sequence[RuleFinding]) -> None:
    """The best patch of every finding as one diff, each file's lines changed once."""
    best = [next((r.patch for r in one.remedies if r.patch), "") for one in all_findings]
    patch = merged(filter(None, best), Path.cwd())
    try:
        # Line ends as the sources have them, and names of any bytes.
        path.write_bytes(patch.text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise MemprofError(
            f"cannot write {path}: {error.strerror}", "name a file in a folder that exists"
        ) from error
    click.echo(_count_of_patches(patch.patch_count, path), err=True)
    if patch.left_out:
        rest = format_count(patch.left_out)
        click.echo(f"{rest} left out: they change the same lines; apply, record again", err=True)


def _count_of_patches(patches: int, path: Path) -> str:
    if not patches:
        return f"no patch: none of the fixes is surely right without a look at it; {path} is empty"
    return (
        f"1 patch written to {path}" if patches == 1 else f"{patches:,} patches written to {path}"
    )


def _say_what_is_not_here(run: Run, all_findings: Sequence[RuleFinding]) -> None:
    filenames = {name for one in all_findings for name in _files_of(one)}
    missing = [name for name in not_here(run) if name in filenames]
    if missing:
        names = ", ".join(short_path(name) for name in missing[:_MOST_MISSING])
        more = ", …" if len(missing) > _MOST_MISSING else ""
        click.echo(f"not here as it ran, so not patched: {names}{more}", err=True)
        click.echo("--source FOLDER says where the source of that run lies", err=True)


def _files_of(one: RuleFinding) -> list[str]:
    held_in = [holder.filename for holder in one.holders]
    return [one.site.filename, *held_in, *(remedy.filename for remedy in one.remedies)]


def _print(
    run: Run,
    all_findings: Sequence[RuleFinding],
    unexplained: UnexplainedGrowth | None,
    *,
    in_full: bool,
) -> None:
    console = terminal(_WIDTH)
    console.print(Text(run.source, style="dim"))
    main_findings = [one for one in all_findings if in_full or not one.minor]
    minor = [one for one in all_findings if one not in main_findings]
    if unexplained is not None:
        growth_text = Text(f"{unexplained}: {unexplained.way_on}", style="bold red")
        console.print(Padding(growth_text, (0, 0, 1 if all_findings else 0, 0)))
    elif not main_findings:
        console.print(Text(_nothing(run)))
    elif not any(map(_grows, all_findings)):
        console.print(Padding(Text(_no_growth(run)), (0, 0, 1, 0)))
    for number, one in enumerate(main_findings, start=1):
        console.print(_finding(number, one))
    if minor:
        console.print(_minor_findings(minor))
    first = next((one for one in main_findings if one.remedies), None)
    if first is not None:
        fix = first.remedies[0].page
        text = f"More: {explained_by(first.rule)} (what it is), {fix} (what to do)"
        console.print(Text(text, style="dim"))


def _grows(one: RuleFinding) -> bool:
    """Whether it grows, and by what a person would act on."""
    return one.kind in _LEAKS and not one.minor


def _minor_findings(minor: Sequence[RuleFinding]) -> RenderableType:
    """A line for each finding that is no headline."""
    lines = [Text("also seen, nothing that must change (`--all` says more):", style="dim")]
    lines += [Text(f"  {one.title}{_at(one.site)}{_way_out(one)}", style="dim") for one in minor]
    return Padding(Group(*lines), (0, 0, 1, 0))


def _way_out(one: RuleFinding) -> str:
    """What makes the largest part smaller, for who has too little; empty where none is known."""
    first = next(iter(one.remedies), None)
    if first is None or not is_needed(one):
        return ""
    saves = f" saves {format_bytes(first.saves_bytes)}" if first.saves_bytes > 0 else ""
    return f"; where memory is short, `{first.fix}`{saves}"


def _at(site: Site) -> str:
    return f" ({short_path(site.filename)}:{site.line})" if site.filename else ""


def _nothing(run: Run) -> str:
    """What no finding means depends on how much there was to see."""
    steps = _steps(run)
    if is_bare_state(run):
        return f"the file holds a final state and no steps, so nothing shows what grows: {_RECORD}"
    if not any(device.events for device in run.devices):
        return "no data: the file holds no allocations"
    if not steps:
        return "no steps are marked in this file, so growth from step to step cannot be seen"
    if steps < _ENOUGH_STEPS:
        return f"nothing found in {_of_all(run)}; {_more_steps(run)}"
    return f"no leak in {_of_all(run)}{_late_rise(run)}"


def _late_rise(run: Run) -> str:
    """What is there at the end after steps that nobody looked at; empty where that is no more."""
    for device in run.devices:
        steps = device.steps
        known = np.flatnonzero(steps.allocated != NOT_RECORDED)
        if len(known) < _ENOUGH_STEPS or known[-1] - known[-2] == 1:
            continue
        before, last = int(steps.peak_allocated[known[:-1]].max()), int(steps.allocated[known[-1]])
        if last >= max(_LATE_BYTES, _MANY_TIMES * before):
            limit = why_no_more(run)
            why = f" ({limit})" if limit else ""
            return (
                f"; {format_bytes(last)} are there in the last, where those seen before it had "
                f"{format_bytes(before)} at most, and nothing was recorded in between{why}"
            )
    return ""


def _no_growth(run: Run) -> str:
    """The answer to the question that was asked, where only other things were found."""
    steps = _steps(run)
    if 0 < steps < _ENOUGH_STEPS and not is_bare_state(run):
        few = f"{_of_all(run)} {'is' if steps == 1 else 'are'} too few"
        return f"{few}: {_more_steps(run)}; what else was found:"
    return f"{_nothing(run)}; what else was found:"


def _more_steps(run: Run) -> str:
    """What would show a leak, and which limit kept the recording from it."""
    why = why_no_more(run)
    return f"record at least {_ENOUGH_STEPS} to see a leak{f' ({why})' if why else ''}"


def _of_all(run: Run) -> str:
    """``40 steps``; ``60 of the 100 steps`` where nothing was counted in the others."""
    step_count = _steps(run)
    rows = max((len(device.steps) for device in run.devices), default=0)
    if step_count < rows:
        total = max(int(device.steps.last.max(initial=0)) + 1 for device in run.devices)
        return f"{format_count(step_count)} of the {format_count(total)} steps"
    return "1 step" if step_count == 1 else f"{format_count(step_count)} steps"


def _steps(run: Run) -> int:
    """Steps whose bytes are known, or that the labels of allocations name."""
    return max(
        (_counted_steps(device) or _named_steps(device) for device in run.devices), default=0
    )


def _counted_steps(device: DeviceRun) -> int:
    """Rows of counters that say something: at a step that nobody looked at a leak may begin."""
    steps = device.steps
    is_known = (steps.allocated != NOT_RECORDED) | (steps.window != NOT_RECORDED)
    return int(is_known.sum())


def _named_steps(device: DeviceRun) -> int:
    labels = (label for window in device.windows for label in window.tables.labels)
    return len({label.step for label in labels if label.step >= 0})


def _finding(number: int, one: RuleFinding) -> RenderableType:
    head = Text(f"{number}. {_kind(one)}  ", style=_STYLES.get(one.kind, "bold"))
    head.append(one.title, style="bold")
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text, style in _rows(one):
        grid.add_row(name, Text(text, style=style))
    return Padding(Group(head, Padding(grid, (0, 0, 0, 3))), (0, 0, 1, 0))


def _kind(one: RuleFinding) -> str:
    if is_needed(one):
        return "largest part"
    if one.is_tentative:
        return "perhaps"  # it may well be meant
    return one.kind.value.replace("_", " ")


def _rows(one: RuleFinding) -> list[tuple[str, str, str]]:
    rows = [("grows", text, "") for text in [_growth(one)] if text]
    if one.site.filename:
        where = f"{short_path(one.site.filename)}:{one.site.line} {one.site.code}".rstrip()
        module = f"  ({one.module})" if one.module else ""
        is_backward = one.match is not None and one.match.in_backward_of
        rows.append(("backward of" if is_backward else "made at", where + module, ""))
        inner = library_frame(one.stack)
        if inner is not None and (inner.filename, inner.line) != (one.site.filename, one.site.line):
            rows.append(("", f"by {site_name(inner)}", "dim"))
    places = {(one.site.filename, one.site.line)}
    holders = one.holders[:_MOST_HOLDERS]
    rows += [("held by", holder.description + _place(holder, places), "") for holder in holders]
    fixes = [_fix(remedy) + _place(remedy, places) for remedy in one.remedies]
    if not one.remedies and one.hint:
        fixes.append(one.hint)
    return [*rows, *[("fix", text, "green") for text in fixes]]


def _place(at: Holder | Remedy, places: set[tuple[str, int]]) -> str:
    """Where it is, on a line of its own: with the source the first time that it is told."""
    if not at.line:
        return ""
    name = f"{short_path(at.filename)}:{at.line}"
    if (at.filename, at.line) in places:
        links = at.links if isinstance(at, Holder) else ()
        return f" ({name})" if not names_line(links, at.filename, at.line) else ""
    places.add((at.filename, at.line))
    return f"\n{name} {at.code}".rstrip()


def _growth(one: RuleFinding) -> str:
    if not one.bytes_per_step:
        return ""
    full = "host" if one.device == "host" else "device"
    limit = f"; the {full} is full in {one.steps_left:,.0f} steps" if one.steps_left >= 0 else ""
    return (
        f"{format_bytes(one.bytes_per_step)} per step, {format_bytes(one.bytes)} so far, "
        f"steps {one.first_step} to {one.last_step}, "
        f"confidence {format_percent(one.confidence, 1)}{limit}"
    )


def _fix(remedy: Remedy) -> str:
    often = " per step" if remedy.saves_per_step else ""
    saves = [f"saves {format_bytes(remedy.saves_bytes)}{often}"] if remedy.saves_bytes > 0 else []
    if remedy.peak_before > remedy.peak_after >= 0:
        saves.append(f"peak {format_bytes(remedy.peak_before)} → {format_bytes(remedy.peak_after)}")
    savings = f" ({'; '.join(saves)})" if saves else ""
    patch = " [patch]" if remedy.patch else ""
    typed = f" Write `{remedy.typed}`." if remedy.typed else ""
    return f"{remedy.fix}: {remedy.why}{typed}{savings}{patch}"
