"""A warning that our hooks would cause is not shown; what was warned of once is not shown again."""

from __future__ import annotations

import warnings

import torch

import memprof
from memprof.sources.loop.suppress_warning import silence


def warn_of(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=1)


def test_what_was_warned_of_once_stays_said() -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        warn_of("deprecated")
        undo = silence("a hook")
        warn_of("a hook of ours")
        warn_of("deprecated")
        undo()
        warn_of("deprecated")
        warn_of("a hook of the program's")
    assert [str(one.message) for one in said] == ["deprecated", "a hook of the program's"]


def test_nothing_is_said_twice_because_a_job_is_recorded(tmp_path) -> None:
    """Windows open and close around the calls, and each of them hooks modules."""
    layer = torch.nn.Linear(4, 4)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        for number in range(3):
            warn_of("deprecated")
            with memprof.track(tmp_path / f"{number}.json", sources=("cpu",)):
                layer(torch.ones(2, 4)).sum().backward()
                warn_of("deprecated")
                memprof.step()
    assert [str(one.message) for one in said] == ["deprecated"]
