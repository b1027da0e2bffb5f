"""The ``memprof`` command: its help at once, everything else through the click group."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["ABOUT", "COMMANDS", "EPILOG", "help_text", "main"]

ABOUT = "Where the memory of a PyTorch job went, what leaks, who holds it and what to type."
EPILOG = "Start with: memprof run train.py, then: memprof report memprof-run.json"
COMMANDS = {
    "run": ("run", "Run a script or module and record where its memory goes."),
    "attach": ("attach", "Begin to record a process that runs already, or list such processes."),
    "detach": ("detach", "End a recording that attach began; the process goes on."),
    "dry-run": ("dry_run", "Run it for a GPU that is not there: would it fit, what would it take."),
    "report": ("report", "Show where the memory went, and write an interactive page."),
    "live": ("live", "Watch a job while it runs: memory, owners, findings, time to full."),
    "serve": ("serve", "Serve the page of a job to a browser, and follow the job."),
    "leaks": ("leaks", "Find what grows from step to step, who holds it and the fix."),
    "explain": ("explain", "Explain a rule or a fix that was named, or list all of them."),
    "oom": ("oom", "Show why memory ran out, what filled it, what would have helped."),
    "what-if": ("what_if", "Replay a recording on another card or under other settings."),
    "replay": ("replay", "Check the allocator model against a recording."),
    "export": (
        "export",
        "Write a recording as a snapshot for PyTorch's viewer, or serve its metrics.",
    ),
    "native": ("native", "Build the C++ part that makes recording cheaper and complete."),
    "doctor": ("doctor", "Check what can be recorded on this machine, and why not the rest."),
}
"""Command: (module, help). The help stands here so that listing commands loads none of them."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    The bare help is answered without click, which takes longer to import than Python to start.
    """
    words = sys.argv[1:] if args is None else list(args)
    if words in ([], ["-h"], ["--help"]):
        sys.stdout.write(help_text())
        sys.exit(0)
    from memprof_cli.group import run_command

    run_command(words)


def help_text() -> str:
    """What ``memprof --help`` prints."""
    width = max(map(len, COMMANDS))
    rows = [f"  {name:<{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    options = (
        "  -V, --version  Show the version and exit.",
        "  -h, --help     Show this message and exit.",
    )
    return "\n".join(
        [
            "Usage: memprof [OPTIONS] COMMAND [ARGS]...",
            "",
            f"  {ABOUT}",
            "",
            "Options:",
            *options,
            "",
            "Commands:",
            *rows,
            "",
            f"  {EPILOG}",
            "",
        ]
    )
