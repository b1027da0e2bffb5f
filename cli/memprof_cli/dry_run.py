"""``memprof dry-run``: a program run for a GPU that is not there, and whether it would fit."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec
from rich.table import Table
from rich.text import Text

from memprof.dry_run.assumptions import ASSUMPTIONS, Assumptions
from memprof.dry_run.cards import Card, card_named, listed
from memprof.dry_run.launch import MESSAGES, OneRank, environment
from memprof.dry_run.verdict import CardVerdict, fits, how_sure
from memprof.errors import MemprofError, SettingsError
from memprof.loading import load
from memprof.record.autostart import STEPS
from memprof.record.process import DEFAULT_PATH, is_path_of_launch
from memprof.report.summary import Summary, summarize
from memprof.rules.ranked_findings import findings
from memprof.run import Run
from memprof.units import format_bytes
from memprof.views.examination import examine
from memprof_cli.json_output import print_json
from memprof_cli.limits import EXIT_ABOVE, Limit, fail_above, limit_of, peaks
from memprof_cli.oom import command as oom
from memprof_cli.screen import print_summary
from memprof_cli.terminal import terminal

__all__ = ["command"]

_WIDTH = 100
_WHOLE_S = 1e9
"""Recording may take this long: without a device nothing is slowed down by it."""
_EVENTS = 50_000_000
_BYTES = 4 << 30
_PYTHON = (".py", ".pyc", ".pyz", ".zip")
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)
_OF_NCCL = (
    "NCCL takes its buffers outside torch's allocator. Fewer process groups, or smaller buffers "
    "(NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS), or less in torch's tensors leaves room for them."
)
_TICK_NS = 20_000_000
"""A file's time is that of the kernel's last tick."""


@click.command(
    name="dry-run",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--gpu", metavar="CARD", help="A card of --list-gpus, a size as 24GiB, or a file.")
@click.option("--gpus", type=int, help="How many of it; with --rank how many a node has. [1, 8]")
@click.option("--rank", type=int, help="Be this one rank of a job; the others are not there.")
@click.option("--world-size", type=int, metavar="N", help="How many ranks the job of --rank has.")
@click.option("--list-gpus", is_flag=True, help="List the cards, with the source of each figure.")
@click.option("-o", "--output", default=DEFAULT_PATH, show_default=True, help="The run file.")
@click.option("-m", "as_module", is_flag=True, help="Run a module, like python -m.")
@click.option("--steps", default=0, metavar="N", help="End the program after N training steps.")
@click.option(
    "--assume",
    "assumption_texts",
    multiple=True,
    metavar="KIND=VALUE",
    help="What values on the device are, of which sizes depend: nonzero=0.5, unique=0.1, item=1, "
    "bool=true. Without it all are zeros.",
)
@click.option("--no-record", is_flag=True, help="Run any command below the card, record nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option(
    "--fail-above",
    "limit",
    metavar="LIMIT",
    help="Exit with status 3 when a peak of allocated bytes is above LIMIT, a size or the peak of "
    "another run as base.json+2%, or memory runs out.",
)
@click.argument("program", nargs=-1, type=click.UNPROCESSED)
def command(  # noqa: PLR0917 - click names them all
    gpu: str | None,
    gpus: int | None,
    rank: int | None,
    world_size: int | None,
    list_gpus: bool,
    output: str,
    as_module: bool,
    steps: int,
    assumption_texts: tuple[str, ...],
    no_record: bool,
    as_json: bool,
    limit: str | None,
    program: tuple[str, ...],
) -> int:
    """Run PROGRAM with its arguments for a GPU that is not there, and say whether it would fit.

    PROGRAM is a Python script, a module with -m, or a command that starts some, such as torchrun.

    torch's own CUDA code runs (its allocator, its operators, autograd) on the memory of the card
    that is named. No kernel runs, so nothing is computed. It takes a torch that was built with
    CUDA, and needs neither a GPU nor a driver.

    \b
        memprof dry-run --gpu h100 train.py --batch-size 64
        memprof dry-run --gpu 24GiB --steps 3 --fail-above 20GiB train.py
        memprof dry-run --gpu a100-80gb --rank 0 --world-size 64 train.py
        memprof dry-run --gpu h100 --gpus 2 torchrun --nproc-per-node 2 train.py
        memprof dry-run --gpu t4 --no-record pytest tests/
    """  # noqa: D301 - click marks a paragraph to be left as it is with this very character
    if list_gpus:
        _print_cards(as_json=as_json)
        return 0
    if gpu is None or not program:
        missing = "--gpu CARD" if gpu is None else "the program"
        raise SettingsError(f"{missing} is missing", "memprof dry-run --gpu h100 train.py")
    card = card_named(gpu)
    most = _limit(limit, card)  # before the work is done
    variables = environment(card, gpus, one=_one_rank(rank, world_size))
    if assumption_texts:
        variables[ASSUMPTIONS] = str(Assumptions.of(assumption_texts))
    if no_record:
        return _replace_this_process(program, {**variables, "MEMPROF": "0"})
    before_ns = time.time_ns()
    with tempfile.TemporaryDirectory() as folder:
        messages = Path(folder, "messages")
        variables[MESSAGES] = str(messages)
        status = _run_recorded(output, steps, [*(["-m"] if as_module else []), *program], variables)
        message_lines = (
            messages.read_text("utf-8", "replace").splitlines() if messages.exists() else []
        )
    _raise_if_crashed(status, message_lines)
    return _answer(
        _new_runs(output, before_ns), _Ending(status, message_lines), most, as_json=as_json
    )


@dataclass(frozen=True, slots=True)
class _Ending:
    """How the program ended, and what the library below it had to say."""

    status: int
    messages: Sequence[str]

    def __str__(self) -> str:
        """In a sentence; empty where there is nothing to be said."""
        if not self.status or not self.messages:
            return ""
        messages = "; ".join(dict.fromkeys(self.messages))
        return f"the program ended with status {self.status}; {messages}"


def _raise_if_crashed(status: int, message_lines: Sequence[str]) -> None:
    """Raise of a crash, with the function of CUDA that was called last if that is known."""
    crashed = [line for line in message_lines if " crashed (" in line]
    if -status not in _CRASHES and not (status and crashed):
        return
    raise MemprofError(
        crashed[-1] if crashed else f"the program crashed ({signal.Signals(-status).name})",
        "python -X faulthandler prints the line; where a function of CUDA is named, the simulated "
        "card is at fault: please report it with its name and torch's version",
    )


def _limit(text: str | None, card: Card) -> Limit | None:
    if text is None:
        return None
    limit = limit_of(text)
    if limit.card and limit.card != card.name:
        raise SettingsError(
            f"{limit.text} is a run for another card: {limit.card}",
            f"record it with the same --gpu as this one, {card.name}",
        )
    return limit


def _one_rank(rank: int | None, world_size: int | None) -> OneRank | None:
    if rank is None and world_size is None:
        return None
    if world_size is None:
        raise SettingsError("--world-size is missing", "--rank 0 --world-size 64 is one of 64")
    return OneRank(rank or 0, world_size)


def _run_recorded(output: str, steps: int, program: list[str], variables: dict[str, str]) -> int:
    """Run and record the program whole, and processes that it starts; its exit status."""
    options = {"allowance_s": _WHOLE_S, "max_events": _EVENTS, "max_bytes": _BYTES}
    description = {"path": output, "quiet": True, "steps": steps, **options}
    # Processes that the program starts record themselves, as with MEMPROF= before a launcher.
    environment = {
        **{name: value for name, value in variables.items() if name != "MEMPROF_SINCE"},
        "MEMPROF": str(Path(output).absolute()),
        "MEMPROF_ALLOWANCE": str(_WHOLE_S),
        "MEMPROF_MAX_EVENTS": str(_EVENTS),
        "MEMPROF_MAX_BYTES": str(_BYTES),
        STEPS: str(steps),
    }
    sys.stdout.flush()
    command = _command(program)
    if command is not None:
        return subprocess.call(command, env=environment)
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    python = [sys.executable, *flags, "-m", "memprof.record.launch"]
    return subprocess.call([*python, json.dumps(description), *program], env=environment)


def _command(program: list[str]) -> list[str] | None:
    """The program, if it is a command to be found and no script or module of Python."""
    if program[0] == "-m" or _is_python(Path(program[0])):
        return None
    executable = shutil.which(program[0])
    return [executable, *program[1:]] if executable is not None else None


def _is_python(path: Path) -> bool:
    """Whether a file is there that Python runs: no program of the machine, no script of a shell."""
    if not path.exists() or path.is_dir() or path.suffix in _PYTHON:
        return path.exists()
    with path.open("rb") as file:
        head = file.readline(256)
    if head.startswith(b"#!"):
        return b"python" in head
    return not head.startswith(b"\x7fELF")


def _new_runs(output: str, since_ns: int) -> list[Run]:
    """What this run recorded on its cards, by rank; files of its other processes are taken away.

    A launcher, and a loader that prepares data on the CPU, record themselves too. Where nothing was
    on a card, the file that was asked for is what there is.
    """
    folder = Path(output).parent
    recent = [
        file
        for file in folder.iterdir()
        if is_path_of_launch(output, file.name) and file.stat().st_mtime_ns >= since_ns - _TICK_NS
    ]
    runs = {file: load(file) for file in recent if file.stat().st_size}
    used = {file: run for file, run in runs.items() if any(_on_a_card(run))}
    chosen_runs = used or {file: run for file, run in runs.items() if file == Path(output)}
    for file in recent:
        if file not in chosen_runs and (used or not file.stat().st_size):
            file.unlink()
    return sorted(chosen_runs.values(), key=lambda run: (run.header.rank, run.header.created_us))


def _on_a_card(run: Run) -> Iterator[str]:
    return (d.device for d in run.devices if d.device.startswith("cuda"))


def _replace_this_process(program: tuple[str, ...], variables: dict[str, str]) -> int:
    executable = shutil.which(program[0], path=variables.get("PATH"))
    if executable is None:
        raise SettingsError(f"there is no command {program[0]}", "name what would be typed alone")
    sys.stdout.flush()
    os.execve(executable, list(program), variables)  # noqa: S606 - no shell is wanted


# -- the answer --------------------------------------------------------------------------------


def _answer(runs: Sequence[Run], ending: _Ending, limit: Limit | None, *, as_json: bool) -> int:
    if not runs:
        raise MemprofError(
            str(ending)
            or f"the program ended with status {ending.status} before anything was recorded",
            "see above what it said; a command's processes record themselves where memprof is "
            "installed in their Python, and use torch",
        )
    examinations = [examine(run) for run in runs]
    all_findings = [
        findings(run, examination) for run, examination in zip(runs, examinations, strict=True)
    ]
    summaries = [
        summarize(examination, its)
        for examination, its in zip(examinations, all_findings, strict=True)
    ]
    answers = [fits(run, summary) for run, summary in zip(runs, summaries, strict=True)]
    if as_json:
        _print_json(runs, summaries, answers, ending)
    else:
        _print_answers(runs, summaries, answers, failed=bool(ending.status))
        tightest = _tightest(answers)
        print_summary(summaries[tightest], all_findings[tightest])
        if len(runs) > 1:
            files = " ".join(summary.source for summary in summaries)
            terminal(_WIDTH).print(Text(f"All     memprof report {files}", style="cyan"))
        if any(answer.nccl_lacking_bytes for answer in answers[tightest]):
            terminal(_WIDTH).print(Text(_OF_NCCL, style="yellow"))
        elif any(not answer.fits for answer in answers[tightest]):
            assert oom.callback is not None
            oom.callback(Path(summaries[tightest].source), as_json=False)
        if str(ending):
            terminal(_WIDTH).print(Text(str(ending), style="yellow"))
    if limit is not None:
        fail_above(limit, peaks(summaries, cards_only=limit.of_run))
        if any(not answer.fits for its in answers for answer in its):
            return EXIT_ABOVE
    return ending.status


def _tightest(answers: Sequence[tuple[CardVerdict, ...]]) -> int:
    """Of several processes the one to look at: that did not fit, or had least left."""
    spare = [
        min(((answer.fits, answer.left_bytes) for answer in its), default=(True, 1 << 62))
        for its in answers
    ]
    return spare.index(min(spare))


def _print_answers(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    answers: Sequence[tuple[CardVerdict, ...]],
    *,
    failed: bool,
) -> None:
    console = terminal(_WIDTH)
    several = sum(map(len, answers)) > 1
    for run, summary, its in zip(runs, summaries, answers, strict=True):
        if not its:
            notice = f"{summary.dry_run}, and nothing was allocated on it"
            console.print(Text(notice, style="yellow"))
        for answer in its:
            style = "bold green" if answer.fits else "bold red"
            of = f"{answer.device} " if several else ""
            rank = f"rank {run.header.rank}, " if several and run.header.rank >= 0 else ""
            until = ""
            if failed and answer.fits:  # what it would have taken after that is not known
                until, style = "the program failed; until then it ", "bold yellow"
            console.print(Text(f"{rank}{of}{until}{answer}", style=style))
            if answer.where:
                console.print(Text(f"peak in {answer.where}"))
        sure = how_sure(run)
        if its and sure:
            console.print(Text(sure, style="yellow"))
    console.print()


def _print_json(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    answers: Sequence[tuple[CardVerdict, ...]],
    ending: _Ending,
) -> None:
    devices = [
        {"file": summary.source, "rank": run.header.rank, **msgspec.to_builtins(answer)}
        for run, summary, its in zip(runs, summaries, answers, strict=True)
        for answer in its
    ]
    print_json(
        {
            "file": summaries[0].source,
            "dry_run": runs[0].header.dry_run,
            "fits": all(device["fits"] for device in devices),
            "devices": devices,
            "program_status": ending.status,
            "workspaces": next(filter(None, map(how_sure, runs)), ""),
            "not_stood_in_for": list(dict.fromkeys(ending.messages)),
            "not_seen": list(dict.fromkeys(one for each in summaries for one in each.unseen)),
        }
    )


# -- cards -------------------------------------------------------------------------------------


def _print_cards(*, as_json: bool) -> None:
    cards = listed()
    if as_json:
        print_json(cards)
        return
    console = terminal(_WIDTH)
    table = Table(box=None, pad_edge=False)
    for title in ("--gpu", "memory", "of it context", "capability", "multiprocessors", "L2"):
        table.add_column(title, no_wrap=True)
    for key, card in cards.items():
        table.add_row(key, *_row(card))
    console.print(table)
    console.print("\nThe source of each figure: memprof dry-run --list-gpus --json", style="dim")


def _row(card: Card) -> tuple[str, ...]:
    note = " (assumed)" if "context_bytes" in card.assumed else ""
    return (
        format_bytes(card.total_bytes),
        f"{format_bytes(card.context_bytes)}{note}",
        card.capability,
        str(card.multiprocessors),
        format_bytes(card.l2_bytes),
    )
