"""``memprof doctor``: what can be recorded here, and why not the rest."""

from __future__ import annotations

import click

from memprof.record.doctor import Diagnosis, Fact, describe_card, diagnose
from memprof_cli.json_output import print_json

__all__ = ["command"]

_MARKS = {True: ("ok", "green"), False: ("no", "red"), None: ("--", "yellow")}
_WORDS = {
    "cpu": "CPU tensors",
    "cuda": "CUDA tensors",
    "nvml": "device memory outside torch",
    "host": "host memory",
}


@click.command(name="doctor")
@click.option("--json", "as_json", is_flag=True, help="Print the facts as JSON.")
@click.option(
    "--describe-gpu",
    is_flag=True,
    help="Print a description of the card of this machine, for memprof dry-run --gpu FILE.",
)
def command(as_json: bool, describe_gpu: bool) -> int:
    """Check what can be recorded on this machine, and say of the rest why not and what to do.

    Exits with 0 if tensors can be recorded, else with 1.
    """
    if describe_gpu:
        print_json(describe_card())
        return 0
    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis)
    else:
        _print(diagnosis)
    return 0 if {"cpu", "cuda"} & set(diagnosis.recordable) else 1


def _print(diagnosis: Diagnosis) -> None:
    width = max(len(fact.name) for fact in diagnosis.facts)
    for fact in diagnosis.facts:
        _print_fact(fact, width)
    can = ", ".join(_WORDS[name] for name in diagnosis.recordable)
    cannot = ", ".join(word for name, word in _WORDS.items() if name not in diagnosis.recordable)
    click.echo()
    click.echo(f"memprof can record here: {can}")
    if cannot:
        click.echo(f"and not: {cannot}")


def _print_fact(fact: Fact, width: int) -> None:
    mark, color = _MARKS[fact.ok]
    click.echo(f"{click.style(mark, fg=color)}  {fact.name:{width}}  {fact.found}")
    if fact.hint:
        click.echo(f"{'':{width + 6}}{click.style(fact.hint, fg='cyan')}")
