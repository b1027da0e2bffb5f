"""The screen of ``memprof live`` on files that grow, by Textual's own pilot."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from memprof.errors import MissingError
from memprof.live.watched_runs import WatchedRuns
from memprof.records import Finding, Footer, Header, Readings
from memprof.runfile.writer import RunWriter
from memprof_cli import main
from tests.live.test_live_run import BEGIN, GIB, header, steps

textual = pytest.importorskip("textual", reason="needs textual: pip install 'cuda-memprof[live]'")

from textual.widgets import DataTable, Static  # noqa: E402

from memprof_cli.live_screen import LiveScreen  # noqa: E402


def text(screen, name):
    """What a part shows, as plain text."""
    from rich.console import Console

    console = Console(width=400, file=None, record=True, quiet=True)
    widget = screen.query_one(f"#{name}", Static)
    with console.capture() as shown:
        console.quiet = False
        console.print(widget.content)
    return f"{widget.border_title or ''}\n{shown.get()}"


async def until(pilot, holds, seconds=20.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the screen never showed it"
        await pilot.pause(0.05)


def watched(target, play):
    async def run():
        screen = LiveScreen(WatchedRuns(target), interval_s=0.1)
        async with screen.run_test(size=(140, 48)) as pilot:
            await play(screen, pilot)

    asyncio.run(run())


def test_the_screen_follows_a_file_that_grows(tmp_path):
    path = tmp_path / "run.json"
    writer = RunWriter(path, header(argv=["train.py", "--lr", "1"]))

    async def play(screen, pilot):
        await until(pilot, lambda: "train.py --lr 1" in text(screen, "head"))
        assert "nothing was counted yet" not in text(screen, "head")
        writer.write(steps(0, 10))
        writer.flush()
        await until(pilot, lambda: "step 9" in text(screen, "head"))
        assert "A100" in text(screen, "chart")
        assert "9.04 GiB" in text(screen, "figures")
        assert "100 ms" in text(screen, "steps")
        assert "runs out" not in text(screen, "head")
        writer.write(steps(10, 90))
        writer.write(Finding("holders", step=40, bytes=5 << 20, count=3))
        writer.write(
            Readings("nvml", "cuda:0", [BEGIN], {"used": [16 * GIB], "process_used": [12 * GIB]})
        )
        writer.flush()
        await until(pilot, lambda: "step 99" in text(screen, "head"))
        assert "cuda:0 runs out of memory at about step" in text(screen, "head")
        assert "4 MiB/step" in text(screen, "figures")
        assert "at about step" in text(screen, "figures")
        assert "3 tensors, 5 MiB, outlived their step" in text(screen, "said")
        assert "█" in text(screen, "chart")
        writer.close(Footer(BEGIN + 1, 100, status="ValueError: no"))
        await until(pilot, lambda: "ended: ValueError: no" in text(screen, "head"))
        assert "runs out" not in text(screen, "head")

    watched(path, play)


def test_a_file_without_a_record_is_waited_for(tmp_path):
    path = tmp_path / "run.json"
    path.write_bytes(b"")

    async def play(screen, pilot):
        await until(pilot, lambda: "waiting for its first record" in text(screen, "head"))
        assert "late.py" not in text(screen, "head")
        writer = RunWriter(path, header(argv=["late.py"]))
        await until(pilot, lambda: "late.py" in text(screen, "head"))
        assert "waiting for its first record" not in text(screen, "head")
        writer.close()

    watched(path, play)


def test_all_ranks_are_seen_at_a_glance_sorted_and_looked_into(tmp_path):
    writers = []
    for rank in range(4):
        path = tmp_path / f"run.rank{rank}.json"
        writer = RunWriter(path, header(rank=rank, world_size=4, argv=["ddp.py"]))
        writer.write(steps(0, 100, held=(8 + rank) * GIB, grows=(4 << 20) if rank == 2 else 0))
        writer.flush()
        writers.append(writer)

    async def play(screen, pilot):
        table = screen.query_one("#ranks", DataTable)
        await until(pilot, lambda: table.row_count == 4)
        column = lambda n: [str(table.get_row_at(row)[n]) for row in range(4)]  # noqa: E731
        await until(pilot, lambda: column(1) == ["99"] * 4)
        assert column(0) == ["0", "1", "2", "3"]
        assert "rank 0 of 4" in text(screen, "head")
        assert [name != "–" for name in column(6)] == [False, False, True, False]
        for _ in range(3):
            await pilot.press("s")
        assert column(0) == ["3", "2", "1", "0"]
        assert table.border_title == "ranks, by peak"
        for _ in range(3):
            await pilot.press("s")
        assert column(0)[0] == "2"
        table.focus()
        await pilot.press("enter")
        await until(pilot, lambda: "rank 2 of 4" in text(screen, "head"))
        await pilot.press("r")
        await until(pilot, lambda: "rank 3 of 4" in text(screen, "head"))

    watched(tmp_path, play)
    for writer in writers:
        writer.close()


def test_keys_show_the_next_device_and_other_owners_and_pause(tmp_path):
    writer = RunWriter(tmp_path / "run.json", header())
    writer.write(steps(0, 20))
    writer.write(steps(0, 20, device="cuda:1", held=2 * GIB))
    writer.flush()

    async def play(screen, pilot):
        await until(pilot, lambda: "memory of cuda:0" in text(screen, "chart"))
        await pilot.press("d")
        await pilot.press("d")
        await until(pilot, lambda: "memory of cuda:1" in text(screen, "chart"))
        assert "category" in text(screen, "owners")
        await pilot.press("o")
        assert "module" in text(screen, "owners")
        await pilot.press("space")
        assert "paused" in text(screen, "head")
        writer.write(steps(20, 20))
        writer.close()
        await pilot.pause(0.4)
        assert "step 19" in text(screen, "head")
        await pilot.press("space")
        await until(pilot, lambda: "step 39" in text(screen, "head"))

    watched(tmp_path / "run.json", play)


def test_a_key_writes_the_page_and_opens_it(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr("memprof_cli.live_screen.webbrowser.open", opened.append)
    writer = RunWriter(tmp_path / "run.json", header())
    writer.write(steps(0, 20))
    writer.flush()

    async def play(screen, pilot):
        await until(pilot, lambda: "step 19" in text(screen, "head"))
        await pilot.press("p")
        await until(pilot, lambda: opened, 60)
        await until(pilot, lambda: "page: " in text(screen, "head"))

    watched(tmp_path / "run.json", play)
    writer.close()
    assert opened[0].startswith("file://")


def test_a_name_in_a_file_does_not_command_the_terminal(tmp_path):
    argv = ["\x1b[2J[bold red]train.py[/]"]
    writer = RunWriter(tmp_path / "run.json", Header(schema=(1, 6), created_us=1, argv=argv))
    writer.close(Footer(1, status="[/x]\x07"))

    async def play(screen, pilot):
        await until(pilot, lambda: "ended" in text(screen, "head"))
        assert "\\x1b[2J[bold red]train.py[/]" in text(screen, "head")
        assert "[/x]\\x07" in text(screen, "head")

    watched(tmp_path / "run.json", play)


def said(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["live", *words])
    return ended.value.code, capsys.readouterr()


def test_a_picture_is_written_without_a_terminal(tmp_path, capsys):
    writer = RunWriter(tmp_path / "run.json", header(argv=["train.py"]))
    writer.write(steps(0, 200))
    writer.close()
    picture = tmp_path / "live.svg"
    code, out = said(capsys, str(tmp_path / "run.json"), "--screenshot", str(picture))
    assert (code, out.out) == (0, f"picture: {picture}\n")
    drawn = picture.read_text().replace("&#160;", " ")
    assert drawn.startswith("<svg")
    assert "train.py" in drawn
    assert "last steps" in drawn
    assert "Quit" in drawn


def test_without_a_terminal_it_says_what_to_type(tmp_path, capsys):
    RunWriter(tmp_path / "run.json", header()).close()
    code, out = said(capsys, str(tmp_path / "run.json"))
    assert code == 1
    assert "memprof report" in out.err


def test_without_textual_it_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "memprof_cli.live_screen")
    code, out = said(capsys, str(tmp_path))
    assert code == MissingError("x").exit_code
    assert "pip install 'cuda-memprof[live]'" in out.err
