"""``memprof dry-run``: a program run for a GPU that is not there, and whether it would fit."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import msgspec
from rich.table import Table
from rich.text import Text

from memprof.dry_run.cards import Card, card_named, listed
from memprof.dry_run.launch import OneRank, environment
from memprof.dry_run.verdict import Fit, fits
from memprof.errors import MemprofError, SettingsError
from memprof.loading import load
from memprof.record.process import DEFAULT_PATH, Rank, path_of_rank
from memprof.report.summary import Summary, summarize
from memprof.rules.findings import findings
from memprof.run import Run
from memprof.units import format_bytes, parse_bytes
from memprof.views.examination import examine
from memprof_cli.limits import EXIT_ABOVE, fail_above, peaks
from memprof_cli.oom import command as oom
from memprof_cli.screen import print_summary
from memprof_cli.terminal import terminal

__all__ = ["command"]

_WIDTH = 100
_WHOLE_S = 1e9
"""Recording may take this long: without a device nothing is slowed down by it."""
_EVENTS = 50_000_000
_BYTES = 4 << 30


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
@click.option("--no-record", is_flag=True, help="Run any command below the card, record nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
@click.option(
    "--fail-above",
    "limit",
    metavar="SIZE",
    help="Exit with status 3 when a peak of allocated bytes is above SIZE, or memory runs out.",
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
    no_record: bool,
    as_json: bool,
    limit: str | None,
    program: tuple[str, ...],
) -> int:
    """Run PROGRAM with its arguments for a GPU that is not there, and say whether it would fit.

    torch's own CUDA code runs (its allocator, its operators, autograd) on the memory of the card
    that is named. No kernel runs, so nothing is computed. It takes a torch that was built with
    CUDA, and needs neither a GPU nor a driver.

    \b
        memprof dry-run --gpu h100 train.py --batch-size 64
        memprof dry-run --gpu 24GiB --steps 3 --fail-above 20GiB train.py
        memprof dry-run --gpu t4 --no-record pytest tests/
    """  # noqa: D301 - click marks a paragraph to be left as it is with this very character
    if list_gpus:
        _print_cards(as_json=as_json)
        return 0
    if gpu is None or not program:
        missing = "--gpu CARD" if gpu is None else "the program"
        raise SettingsError(f"{missing} is missing", "memprof dry-run --gpu h100 train.py")
    if limit is not None:
        parse_bytes(limit)  # before the work is done
    card = card_named(gpu)
    variables = environment(card, gpus, one=_one_rank(rank, world_size))
    if no_record:
        return _replace_this_process(program, variables)
    status = _recorded(output, steps, [*(["-m"] if as_module else []), *program], variables)
    written = path_of_rank(output, Rank.of(variables).rank)
    return _answer(Path(written), status, limit, as_json=as_json)


def _one_rank(rank: int | None, world_size: int | None) -> OneRank | None:
    if rank is None and world_size is None:
        return None
    if world_size is None:
        raise SettingsError("--world-size is missing", "--rank 0 --world-size 64 is one of 64")
    return OneRank(rank or 0, world_size)


def _recorded(output: str, steps: int, program: list[str], variables: dict[str, str]) -> int:
    """Run and record the program whole; its exit status."""
    options = {
        "path": output,
        "quiet": True,
        "steps": steps,
        "allowance_s": _WHOLE_S,
        "max_events": _EVENTS,
        "max_bytes": _BYTES,
    }
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    words = [sys.executable, *flags, "-m", "memprof.record.launch", json.dumps(options), *program]
    sys.stdout.flush()
    return subprocess.call(words, env={**variables, "MEMPROF": "0"})


def _replace_this_process(program: tuple[str, ...], variables: dict[str, str]) -> int:
    found = shutil.which(program[0], path=variables.get("PATH"))
    if found is None:
        raise SettingsError(f"there is no command {program[0]}", "name what would be typed alone")
    sys.stdout.flush()
    os.execve(found, list(program), variables)  # noqa: S606 - no shell is wanted


# -- the answer --------------------------------------------------------------------------------


def _answer(output: Path, status: int, limit: str | None, *, as_json: bool) -> int:
    if not output.exists():
        raise MemprofError(
            f"the program ended with status {status} before anything was recorded",
            "see above what it said",
        )
    run = load(output)
    examination = examine(run)
    found = findings(run, examination)
    summary = summarize(examination, found)
    answers = fits(run, summary)
    if as_json:
        _print_json(run, summary, answers, status)
    else:
        _print_answer(summary, answers)
        print_summary(summary, found)
        if any(not answer.fits for answer in answers):
            assert oom.callback is not None
            oom.callback(output, as_json=False)
    if limit is not None:
        fail_above(limit, peaks([summary]))
        if any(not answer.fits for answer in answers):
            return EXIT_ABOVE
    return status


def _print_answer(summary: Summary, answers: tuple[Fit, ...]) -> None:
    console = terminal(_WIDTH)
    if not answers:
        console.print(Text(f"{summary.dry_run}, and nothing was allocated on it", style="yellow"))
    for answer in answers:
        style = "bold green" if answer.fits else "bold red"
        of = f"{answer.device} " if len(answers) > 1 else ""
        console.print(Text(f"{of}{answer}", style=style))
        if answer.where:
            console.print(Text(f"peak in {answer.where}"))
    console.print()


def _print_json(run: Run, summary: Summary, answers: tuple[Fit, ...], status: int) -> None:
    data = {
        "file": summary.source,
        "dry_run": msgspec.to_builtins(run.header.dry_run),
        "fits": all(answer.fits for answer in answers),
        "devices": msgspec.to_builtins(answers),
        "program_status": status,
        "not_seen": list(summary.unseen),
    }
    click.echo(json.dumps(data, indent=1))


# -- cards -------------------------------------------------------------------------------------


def _print_cards(*, as_json: bool) -> None:
    cards = listed()
    if as_json:
        click.echo(json.dumps({key: msgspec.to_builtins(card) for key, card in cards.items()}))
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
    assumed = " (assumed)" if card.sources["context_bytes"].startswith("not found") else ""
    return (
        format_bytes(card.total_bytes),
        f"{format_bytes(card.context_bytes)}{assumed}",
        card.capability,
        str(card.multiprocessors),
        format_bytes(card.l2_bytes),
    )
