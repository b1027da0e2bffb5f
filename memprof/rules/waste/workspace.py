"""workspace: scratch memory of cuDNN's and cuBLAS's algorithms makes the peak."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import numpy as np

from memprof.rules.case import Case
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.program import Place
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.stacks import made_through
from memprof.views.window import Window

__all__ = ["RULE"]

_LIBRARY = re.compile(r"cudnn|cublas|[Ww]orkspace|miopen")
"""In the names of torch's C++ functions: ``cudnn_convolution``, ``getNewCUDABlasLtWorkspace``."""


class Workspace(WasteRule[Match]):
    """Algorithms of cuDNN and cuBLAS ask torch's allocator for scratch memory."""

    name = "workspace"
    summary = "workspaces of cuDNN or cuBLAS make the peak"
    fixes = ("limit_workspace",)

    def matches(self, window: Window) -> Iterator[Match]:
        """What torch's own C++ made for these libraries, at the peak."""
        if window.peak.event < 0:
            return
        scratch = ~window.has_owner & made_through(window, _is_of_a_library)
        mask = scratch & window.at_peak
        if not mask.any():
            return
        yield Match(
            row=window.main_site(mask),
            rows=np.flatnonzero(mask),
            nbytes=window.bytes_of(mask),
            # Without those of every step: else the next step's peak would be as high.
            saving=window.replayed(window.whole(np.flatnonzero(scratch))),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say whose they are."""
        return "are workspaces of cuDNN or cuBLAS"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Limit them, first of all where `cudnn.benchmark` asks for the largest."""
        why = f"Workspaces take {format_bytes(match.nbytes)}"
        place = next(_benchmarking(case), None)
        if place is not None:
            why += ": `cudnn.benchmark` tries algorithms with large ones for each shape"
        yield Advice("limit_workspace", f"{why}.", place or case.site)


def _is_of_a_library(frame: Frame) -> bool:
    native = frame_kind(frame.filename) is FrameKind.NATIVE
    return native and _LIBRARY.search(frame.name) is not None


def _benchmarking(case: Case) -> Iterator[Place]:
    """Statements of the program that turn `cudnn.benchmark` on."""
    for program in case.programs:
        for node in program.nodes:
            if not isinstance(node, ast.Assign):
                continue
            off = isinstance(node.value, ast.Constant) and not node.value.value
            targets = [ast.unparse(target) for target in node.targets]
            place = program.place(node)
            if not off and place and any(one.endswith("cudnn.benchmark") for one in targets):
                yield place


RULE = Workspace()
