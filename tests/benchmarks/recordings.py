"""Whether a recording that was timed recorded anything: one that failed costs nothing."""

from __future__ import annotations

from pathlib import Path

from memprof.loading import load

__all__ = ["check"]


def check(path: Path | str, device: str, steps: int) -> None:
    """Look for events of every step of the device.

    Raises:
        RuntimeError: there are fewer than steps.
    """
    run = load(path)
    found = run.device(device)
    events = found.events if found is not None else 0
    if events < steps:
        notes = "; ".join(note.message for note in run.notes) or "no note"
        raise RuntimeError(f"{events} events of {device} in {steps} steps: {notes}")
