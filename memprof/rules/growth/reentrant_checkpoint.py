"""reentrant-checkpoint: its graph node keeps the function, and that reaches its own output."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.graph_lines import on_the_way
from memprof.rules.rule import Advice, Cause, GrowthRule
from memprof.source_code.idioms import keyword
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Program, calls_in

__all__ = ["RULE"]

_NODE = "CheckpointFunction"
"""What torch calls the node of a reentrant checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint(Cause):
    """The call, and the file that it is in."""

    program: Program
    call: ast.Call


class ReentrantCheckpoint(GrowthRule[Checkpoint]):
    """`self.y = checkpoint(self.block, x)`: node, block, object and output hold each other."""

    name = "reentrant-checkpoint"
    summary = "a reentrant checkpoint keeps its function, and that its output"
    fixes = ("break_cycle",)
    precedes = ("kept-graph",)

    def match(self, case: Case) -> Checkpoint | None:
        """The node of such a checkpoint in a chain of references, and a call that makes one."""
        links = [link for holder in case.finding.holders for link in holder.links]
        classes = [link.type_name for link in links]
        classes += [node for link in links for node, _ in link.nodes]
        if not any(name.startswith(_NODE) for name in classes):
            return None
        for place in {id(place.scope): place for place in on_the_way(case)}.values():
            for call in calls_in(place.scope, "checkpoint", "checkpoint_sequential"):
                value = keyword(call, "use_reentrant")
                if not (isinstance(value, ast.Constant) and value.value is False):
                    return Checkpoint(place.program, call)
        return None

    def advice(self, cause: Checkpoint, case: Case) -> Iterator[Advice]:  # noqa: ARG002 - the call says all
        """Take the other implementation."""
        yield Advice(
            "break_cycle",
            "The reentrant checkpoint keeps its function on the output's graph node, and the "
            "function reaches what holds the output: `use_reentrant=False` keeps none.",
            cause.program.place(cause.call),
            patch=diff(cause.program, with_keyword(cause.call, "use_reentrant", "False")),
        )


RULE = ReentrantCheckpoint()
