"""The screen of ``memprof live``: what is known of a job by now, drawn anew when there is more."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.widgets import DataTable, Footer, Static

from memprof.live.finding_words import in_words
from memprof.live.live_run import LiveDevice, LiveRun
from memprof.live.watched_runs import WatchedRuns
from memprof.trace import NOT_RECORDED
from memprof.units import format_bytes, format_count, format_duration, format_percent
from memprof_cli.live_chart import chart
from memprof_dashboards.text import visible

__all__ = ["LiveScreen"]

_OWNERS = 8
_STEPS = 10
_FINDINGS = 50
_SILENT_S = 120
"""Without a record for so long a job that has not ended may have been killed."""
_DRAWN_EVERY_S = 5.0
"""Without anything new: whether a job is silent is a matter of time."""
_WIDEST = 500
_UNTIL_DRAWN_S = 0.5
"""The parts of a screen are drawn by then, as a rule."""


class LiveScreen(App[None]):
    """Follows `WatchedRuns` and shows one rank at a time, or all of them in a table."""

    TITLE = "memprof live"
    CSS = """
    Screen { layout: vertical; }
    #head { height: auto; padding: 0 1; }
    #chart { height: 1fr; min-height: 6; border: round $primary; padding: 0 1; }
    #figures { height: auto; padding: 0 1; }
    #below { height: 13; }
    #owners, #steps { border: round $primary; padding: 0 1; }
    #owners { width: 1fr; height: 1fr; }
    #steps { width: 56; height: 1fr; }
    #ranks { height: 10; border: round $primary; display: none; }
    #ranks.many { display: block; }
    #findings { height: 8; border: round $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar = [
        Binding("q", "quit", "Quit"),
        Binding("d", "next_device", "Device"),
        Binding("o", "owners", "Modules"),
        Binding("s", "sort", "Sort ranks"),
        Binding("r", "next_rank", "Next rank"),
        Binding("p", "page", "Open the page"),
        Binding("space", "pause", "Pause"),
    ]

    def __init__(
        self, runs: WatchedRuns, *, interval_s: float = 1.0, picture: str | None = None
    ) -> None:
        """``picture``: write the screen there as SVG once it is drawn, and end."""
        super().__init__()
        self._runs = runs
        self._interval_s = interval_s
        self._picture = picture
        self._device = ""
        self._by_module = False
        self._rank = 0
        """The place of the rank that is shown, in ``runs.runs``."""
        self._sorted_by = 0
        self._is_paused = False
        self._status_text = ""
        self._drawn_s = float("-inf")

    def compose(self) -> ComposeResult:
        """The parts from top to bottom."""
        yield Static(id="head")
        yield Static(id="chart")
        yield Static(id="figures")
        yield DataTable(id="ranks", cursor_type="row")
        with Horizontal(id="below"):
            yield Static(id="owners")
            yield Static(id="steps")
        with VerticalScroll(id="findings"):
            yield Static(id="said")
        yield Footer()

    def on_mount(self) -> None:
        """Look for the first time, and then again and again."""
        for name, title in (
            ("chart", "memory"),
            ("owners", "owners"),
            ("steps", "last steps"),
            ("findings", "findings"),
            ("ranks", "ranks"),
        ):
            self.query_one(f"#{name}").border_title = title
        self.query_one("#ranks", DataTable).add_columns(*(name for name, _ in _COLUMNS))
        self._look()
        self.set_interval(self._interval_s, self._look)

    @work(thread=True, exclusive=True, group="look")
    def _look(self) -> None:
        """Read what is new: on a thread, because a share may take its time."""
        if self._is_paused:
            return
        is_new = self._runs.poll() > 0
        if not is_new and time.monotonic() - self._drawn_s < _DRAWN_EVERY_S:
            return
        self._drawn_s = time.monotonic()
        with contextlib.suppress(RuntimeError):  # the screen was closed meanwhile
            self.call_from_thread(self.draw)

    def on_resize(self) -> None:
        """The chart is as wide as the terminal."""
        self.call_after_refresh(self.draw)

    # -- keys ----------------------------------------------------------------------------------

    def action_next_device(self) -> None:
        """Show the next device of this rank."""
        names = list(self._shown_run.devices)
        if names:
            at = names.index(self._device) if self._device in names else -1
            self._device = names[(at + 1) % len(names)]
        self.draw()

    def action_owners(self) -> None:
        """Owners by category, or by module."""
        self._by_module = not self._by_module
        self.draw()

    def action_sort(self) -> None:
        """Order the ranks by the next column."""
        self._sorted_by = (self._sorted_by + 1) % len(_COLUMNS)
        self.draw()

    def action_next_rank(self) -> None:
        """Show the next rank."""
        self._rank = (self._rank + 1) % max(1, len(self._runs.runs))
        self.draw()

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self._is_paused = not self._is_paused
        self.draw()

    def action_page(self) -> None:
        """Write the page of the rank that is shown, and open it."""
        self._say("the page is being written …")
        self._write_page(self._shown_run.source)

    @work(thread=True, exclusive=True, group="page")
    def _write_page(self, source: str) -> None:
        page = Path(tempfile.mkdtemp(prefix="memprof-"), "report.html")
        command = [sys.executable, "-m", "memprof_cli", "report", source, "-o", str(page)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode == 0:
            webbrowser.open(page.as_uri())
            status = f"page: {page}"
        else:
            status = done.stderr.strip().partition("\n")[0]
        with contextlib.suppress(RuntimeError):
            self.call_from_thread(self._say, status)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Look into one rank."""
        key = event.row_key.value
        for place, run in enumerate(self._runs.runs):
            if run.source == key:
                self._rank = place
        self.draw()

    def _say(self, text: str) -> None:
        self._status_text = text
        self.draw()

    # -- drawing -------------------------------------------------------------------------------

    @property
    def _shown_run(self) -> LiveRun:
        runs = self._runs.runs
        return runs[min(self._rank, len(runs) - 1)]

    def draw(self) -> None:
        """Everything anew, from what is known now."""
        if not self.query("#head"):  # it is not there yet, or no more
            return
        run = self._shown_run
        with run.lock:
            device = run.devices.get(self._device) or run.main
            self.query_one("#head", Static).update(self._head(run))
            self._draw_chart(device)
            self.query_one("#figures", Static).update(_figures(run))
            self.query_one("#owners", Static).update(self._owners(device))
            self.query_one("#steps", Static).update(_last_steps(device))
            self.query_one("#said", Static).update(_findings(run))
        self._draw_ranks()
        if self._picture is not None and run.header is not None:
            self._take_picture(self._picture)

    def _take_picture(self, path: str) -> None:
        self._picture = None
        self.set_timer(_UNTIL_DRAWN_S, lambda: self._write_picture(path))

    def _write_picture(self, path: str) -> None:
        keys = self.query("Footer > *")
        if not keys or not keys.last().region:  # they come last
            self._take_picture(path)
            return
        Path(path).write_text(self.export_screenshot(title="memprof live"), encoding="utf-8")
        self.exit()

    def _head(self, run: LiveRun) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        if run.header is None:
            return text.append(
                f"{_plain(run.source)}  waiting for its first record", style="yellow"
            )
        ranks = len(self._runs.runs)
        if run.rank >= 0:
            text.append(f"rank {run.rank} of {run.header.world_size}  ", style="bold")
        text.append(_plain(" ".join(run.header.argv) or run.source), style="bold")
        text.append(f"  {_plain(run.source)}", style="dim")
        if ranks > 1:
            text.append(f"  {format_count(ranks)} files", style="dim")
        text.append("\n")
        text.append(*_state(run))
        if run.step >= 0:
            text.append(f"  step {format_count(run.step)}", style="bold")
        main = run.main
        if main is not None and main.last is not None and main.last.each_us > 0:
            text.append(f", {format_duration(main.last.each_us)} each", style="")
        for one in run.times_to_full()[:1]:
            text.append(f"  {one}", style="bold red")
        if self._is_paused:
            text.append("  paused", style="yellow")
        if self._status_text:
            text.append(f"  {_plain(self._status_text)}", style="cyan")
        return text

    def _draw_chart(self, device: LiveDevice | None) -> None:
        widget = self.query_one("#chart", Static)
        if device is None:
            widget.update(Text("nothing was counted yet", style="dim"))
            return
        name = f", {_plain(device.info.name)}" if device.info.name else ""
        widget.border_title = f"memory of {device.device}{name}: █ allocated  · reserved"
        size = widget.content_size
        rows = [*device.rows]
        widget.update(chart(rows, size.width, size.height, device.info.total_bytes))

    def _owners(self, device: LiveDevice | None) -> Text | Table:
        owners = () if device is None else device.modules if self._by_module else device.categories
        widget = self.query_one("#owners")
        by = "module" if self._by_module else "category"
        widget.border_title = f"owners by {by}"
        if device is None or not owners:
            return Text("known at the end of the first window", style="dim")
        if device.owners_step >= 0:
            widget.border_title += f", after step {format_count(device.owners_step)}"
        total = sum(one.bytes for one in owners)
        table = Table.grid(padding=(0, 1))
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True, width=20)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for one in owners[:_OWNERS]:
            bar = "█" * round(20 * one.bytes / max(1, total))
            share = format_percent(one.bytes, total)
            figures = (Text(format_bytes(one.bytes)), Text(share, style="dim"))
            table.add_row(*figures, Text(bar or "▏", style="cyan"), Text(_plain(one.name)))
        return table

    def _draw_ranks(self) -> None:
        table = self.query_one("#ranks", DataTable)
        runs = self._runs.runs
        table.set_class(len(runs) > 1, "many")
        if len(runs) < 2:
            return
        name, key = _COLUMNS[self._sorted_by]
        table.border_title = f"ranks, by {name}"
        ordered = sorted(runs, key=key) if not self._sorted_by else sorted(runs, key=key)[::-1]
        at, scroll = table.cursor_row, table.scroll_y
        table.clear()
        for run in ordered:
            table.add_row(*_rank_row(run), key=run.source)
        table.move_cursor(row=at, scroll=False)
        table.scroll_to(y=scroll, animate=False)


# -- words -------------------------------------------------------------------------------------


def _plain(text: str) -> str:
    """A name in a file must not command the reader's terminal."""
    return visible(text, _WIDEST)


def _state(run: LiveRun) -> tuple[str, str]:
    if run.footer is not None:
        good = run.footer.status == "ok"
        return ("ended" if good else f"ended: {_plain(run.footer.status)}", "" if good else "red")
    silent_s = time.time() - run.last_us / 1e6
    if run.last_us and silent_s > _SILENT_S:
        return f"nothing new for {format_duration(silent_s * 1e6)}", "yellow"
    return "running", "green"


def _size(nbytes: float) -> str:
    return format_bytes(nbytes) if nbytes >= 0 else "–"


def _figures(run: LiveRun) -> Table:
    """A line for each device, and one for the host."""
    table = Table.grid(padding=(0, 2))
    heads = ("", "allocated", "peak", "reserved", "outside torch", "others", "of", "growth", "full")
    for number in range(len(heads)):
        table.add_column(justify="left" if number in (0, 8) else "right", no_wrap=True)
    table.add_row(*(Text(head, style="dim") for head in heads))
    full = {one.device: one for one in run.times_to_full()}
    for device in run.devices.values():
        last, trend = device.last, device.trend()
        then = full.get(device.device)
        if last is None:
            continue
        rising = trend is not None and trend.keeps_rising
        rate = f"{format_bytes(round(trend.bytes_per_step))}/step" if rising and trend else "none"
        table.add_row(
            Text(device.device, style="bold"),
            _size(last.allocated),
            _size(device.peak_allocated),
            _size(last.reserved) if device.device != "cpu" else "–",
            _size(device.outside_bytes),
            _size(device.readings.get("others_used", NOT_RECORDED)),
            _size(device.info.total_bytes or NOT_RECORDED),
            Text(rate if trend is not None else "–", style="yellow" if rising else ""),
            Text(then.when if then is not None else "–", style="bold red" if then else ""),
        )
    host = run.host
    if "rss" in host:
        free_bytes = min(host[name] for name in ("available", "limit_free") if name in host)
        unknown = ["–"] * 4
        table.add_row(
            Text("host", style="bold"),
            _size(host["rss"]),
            *unknown,
            f"{_size(free_bytes)} free",
            "–",
            "–",
        )
    return table


def _last_steps(device: LiveDevice | None) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(5):
        table.add_column(justify="right", no_wrap=True)
    heads = ("step", "time", "at its end", "peak", "reserved")
    table.add_row(*(Text(head, style="dim") for head in heads))
    for row in list(device.last_rows)[: -_STEPS - 1 : -1] if device is not None else ():
        name = format_count(row.last)
        table.add_row(
            f"{format_count(row.first)}–{name}" if row.first < row.last else name,
            format_duration(row.each_us) if row.each_us >= 0 else "–",
            _size(row.allocated),
            _size(row.peak),
            _size(row.reserved),
        )
    return table


def _findings(run: LiveRun) -> Text:
    text = Text()
    for finding in list(run.findings)[: -_FINDINGS - 1 : -1]:
        text.append(f"step {format_count(finding.step):>7}  ", style="dim")
        grave = finding.finding in ("oom", "time_to_full")
        text.append(f"{_plain(in_words(finding))}\n", style="red" if grave else "")
    for note in list(run.notes)[-3:]:
        text.append(f"not seen: {_plain(note.source)}: {_plain(note.message)}\n", style="dim")
    return text if text.plain else Text("none so far", style="dim")


def _rank_row(run: LiveRun) -> list[Text]:
    with run.lock:
        main, full = run.main, run.times_to_full()
        last = main.last if main is not None else None
        trend = main.trend() if main is not None else None
    rising = trend is not None and trend.keeps_rising
    return [
        Text(str(run.rank) if run.rank >= 0 else _plain(Path(run.source).name)),
        Text(format_count(run.step) if run.step >= 0 else "–"),
        Text(_size(last.allocated) if last else "–"),
        Text(_size(main.peak_allocated) if main else "–"),
        Text(_size(last.reserved) if last else "–"),
        Text(f"{format_bytes(round(trend.bytes_per_step))}/step" if rising and trend else "–"),
        Text(full[0].when if full else "–", style="bold red" if full else ""),
        Text(format_count(run.findings_count)),
        Text(*_state(run)),
    ]


def _of_main(figure: Callable[[LiveDevice], float]) -> Callable[[LiveRun], float]:
    def key(run: LiveRun) -> float:
        return figure(run.main) if run.main is not None else -1.0

    return key


def _rate(device: LiveDevice) -> float:
    trend = device.trend()
    return trend.bytes_per_step if trend is not None else -1.0


def _nearness(run: LiveRun) -> float:
    full = run.times_to_full()
    return -float(full[0].steps_left) if full else float("-inf")


_COLUMNS: tuple[tuple[str, Callable[[LiveRun], Any]], ...] = (
    ("rank", lambda run: (run.rank, run.source)),
    ("step", lambda run: run.step),
    ("allocated", _of_main(lambda one: one.last.allocated if one.last else -1)),
    ("peak", _of_main(lambda one: one.peak_allocated)),
    ("reserved", _of_main(lambda one: one.last.reserved if one.last else -1)),
    ("growth", _of_main(_rate)),
    ("full", _nearness),
    ("findings", lambda run: run.findings_count),
    ("state", lambda run: _state(run)[0]),
)
"""Columns of the ranks, and by what each orders them."""
