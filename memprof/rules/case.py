"""A finding with what the rules ask about it: who holds it, through what, at which statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from memprof.chain_description import shortened
from memprof.records import Holder
from memprof.reference_chain import THROUGH_GRAPH, LinkKind
from memprof.rules.finding import Kind, RuleFinding
from memprof.run import Run
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import attribute_set, growing, is_cut_off, last_name
from memprof.source_code.program import (
    FUNCTIONS,
    Place,
    Program,
    bound_names,
    calls_in,
    excerpt,
    loaded_names,
    program_of,
    with_imported,
)
from memprof.source_code.torch_modes import without_gradients
from memprof.trace import Category, Frame, Phase, Trace
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.owners import CATEGORY_NAMES, OWNED
from memprof.views.peak_without import Saving
from memprof.views.window import Window

__all__ = ["NO_FIGURE", "Case", "attribute_of_graph", "says"]

_MODEL = frozenset(CATEGORY_NAMES[category] for category in OWNED)
_IN_MODEL = frozenset(
    {
        LinkKind.MODULE_ATTRIBUTE,
        LinkKind.PARAMETER,
        LinkKind.BUFFER,
        LinkKind.GRAD,
        LinkKind.OPTIMIZER_STATE,
    }
)
_ATTRIBUTES = frozenset({LinkKind.ATTRIBUTE, LinkKind.MODULE_ATTRIBUTE, LinkKind.BUFFER})
_SCALAR_BYTES = 512
_MOSTLY = 0.5
_CLOCK_SKEW_US = 2_000_000
"""By how much the clocks of a file server and of the job may differ."""

NO_FIGURE = Saving(-1, -1)
"""Of a change that was not replayed."""


@dataclass(eq=False)
class Case:
    """A finding, the examined run it is of, and the source around it."""

    finding: RuleFinding
    examination: Examination
    links: frozenset[LinkKind] = field(init=False)
    """The kinds of all links of all holders."""
    changed: set[str] = field(default_factory=set)
    """Files that are not what ran any more, of those that were asked for."""

    def __post_init__(self) -> None:
        self.links = frozenset(
            [link.kind for holder in self.finding.holders for link in holder.links]
            + [holder.kind for holder in self.finding.holders]
        )

    @property
    def run(self) -> Run:
        """The run that it is of."""
        return self.examination.run

    @property
    def grows(self) -> bool:
        """Whether it is growth of any kind."""
        return self.finding.kind in (Kind.LEAK, Kind.CYCLE, Kind.HOST_GROWTH)

    @cached_property
    def device(self) -> DeviceExamination | None:
        """The examined device that the finding is about; None where that is the host."""
        examination = self.examination.devices
        return next((one for one in examination if one.name == self.finding.device), None)

    @cached_property
    def window(self) -> Window | None:
        """The window that the evidence is in."""
        windows = self.device.windows if self.device is not None else ()
        index = self.finding.evidence.window
        return windows[index] if -len(windows) <= index < len(windows) else None

    @property
    def trace(self) -> Trace | None:
        """The trace of that window."""
        return self.window.trace if self.window is not None else None

    @cached_property
    def graph(self) -> bool:
        """Whether what is kept hangs on autograd's graph."""
        if self.direct and self._is_cut_off:
            return False
        if not self.links & THROUGH_GRAPH and without_gradients(self.finding.stack):
            return False  # made in a model's call and still there in a backward pass: no more
        if self.finding.growth.forward_share > _MOSTLY:
            return True
        return (
            bool(self.links & THROUGH_GRAPH)
            or self.finding.category == CATEGORY_NAMES[Category.ACTIVATION]
        )

    @property
    def _is_cut_off(self) -> bool:
        """Whether the statement that fills the first holder detaches what it takes."""
        growth = growing(self.places[0]) if self.places else None
        return growth is not None and is_cut_off(self.places[0], growth.values[-1])

    @cached_property
    def backward(self) -> bool:
        """Whether the run has a backward pass at all, or may have one: not every trace tells."""
        if self.trace is None:
            return True
        phases = {label.phase for label in self.trace.tables.labels}
        return Phase.BACKWARD in phases or phases <= {Phase.UNKNOWN}

    @property
    def direct(self) -> bool:
        """Whether what is held is the tensor itself, and not a graph that saved it.

        A search may find who holds a result only. Where most of what grows with it, in the same
        steps, was made for its backward pass and is held by nothing else, that is its graph's.
        """
        growth = self.finding.growth
        of_graph = growth.forward_share > _MOSTLY and 0 < growth.kept_itself < _MOSTLY
        return bool(self.finding.holders) and not self.links & THROUGH_GRAPH and not of_graph

    @property
    def kept_itself(self) -> float:
        """Share of the bytes that stay when the graph is cut off what is kept."""
        return 1.0 if self.direct else self.finding.growth.kept_itself

    @property
    def of_model(self) -> bool:
        """Whether it is part of a model or of its optimizer that a container keeps whole."""
        if self.finding.category in _MODEL or self.finding.growth.has_parameters:
            return True
        for holder in self.finding.holders:
            items = [i for i, link in enumerate(holder.links) if link.kind == LinkKind.ITEM]
            inner = holder.links[items[-1] + 1 :] if items else ()
            if any(link.kind in _IN_MODEL for link in inner):
                return True
        return False

    @property
    def scalar(self) -> bool:
        """Whether the tensors are single numbers: the smallest block that there is."""
        count = max(1, len(self.finding.evidence.allocs))
        return 0 < self.finding.bytes <= _SCALAR_BYTES * count

    @cached_property
    def site(self) -> Place | None:
        """The statement that made the tensors."""
        site = self.finding.site
        source_excerpt = self._excerpt(site.filename, site.line, site.code)
        return (
            source_excerpt.at(site.line)
            if source_excerpt is not None
            else self.place_at(site.filename, site.line)
        )

    @cached_property
    def places(self) -> list[Place]:
        """Statements of holders, best first."""
        places = [self.place_of(holder) for holder in self.finding.holders]
        return [place for place in places if place is not None]

    @cached_property
    def assignments(self) -> list[Place]:
        """Statements of methods that assign the attribute by which an object keeps a graph.

        It is the last that a chain names before the graph; a holder's own line may only say where
        the object comes from. What ``__init__`` assigns has no step's graph. None where several
        classes assign an attribute of that name: which of them is meant is not known.
        """
        names = {name for holder in self.finding.holders if (name := attribute_of_graph(holder))}
        classes_of_places = [
            place
            for program in (self.programs if names else ())
            for node in program.nodes
            if isinstance(node, ast.Assign)
            and any(last_name(attribute_set(target)) in names for target in node.targets)
            and (place := self.place_at(program.filename, node.lineno)) is not None
            and place.class_ is not None
            and place.function is not None
            and place.function.name != "__init__"
        ]
        classes = {id(place.class_) for place in classes_of_places}
        return classes_of_places if len(classes) == 1 else []

    @cached_property
    def frames(self) -> list[tuple[Frame, Place]]:
        """The user's frames of the stack, innermost first, with their statements."""
        user_frames = []
        for frame in self.finding.stack:
            place = self.place_at(frame.filename, frame.line)
            if place is not None:
                user_frames.append((frame, place))
        return user_frames

    @cached_property
    def programs(self) -> list[Program]:
        """The user's files that the finding names, then the other files of the recording."""
        names = [self.finding.site.filename, *(h.filename for h in self.finding.holders)]
        names += [frame.filename for frame in self.finding.stack]
        if self.trace is not None:
            names += [frame.filename for frame in self.trace.tables.frames]
        user = [n for n in dict.fromkeys(names) if n and frame_kind(n) is FrameKind.USER]
        programs = [program_of(name) for name in user[:32]]
        return [program for program in programs if program is not None]

    @cached_property
    def everywhere(self) -> list[Program]:
        """Those files, and files of the user's that they import."""
        return with_imported(self.programs)

    def calls(self, *names: str) -> Iterator[tuple[ast.Call, Place]]:
        """Calls of those names in the program, nearest first, with their statements."""
        for program in self.programs:
            for call in calls_in(program.tree, *names):
                place = program.place(call)
                if place is not None:
                    yield call, place

    def holder(self, *kinds: LinkKind) -> Holder | None:
        """The first holder that is of one of these kinds or has a link of one."""
        for holder in self.finding.holders:
            if holder.kind in kinds or any(link.kind in kinds for link in holder.links):
                return holder
        return None

    def place_of(self, holder: Holder | None) -> Place | None:
        """The statement of a holder's line; of a closure's variable what binds it anew."""
        if holder is None:
            return None
        place = self.place_at(holder.filename, holder.line, holder.code)
        if place is not None and isinstance(place.statement, FUNCTIONS):
            return self._binding_in_closure(holder) or place
        if place is None or ";" not in place.program.code(holder.line):
            return place
        names = {link.name for link in holder.links}
        return next(_places_with_name(place.program, holder.line, names), place)

    def _binding_in_closure(self, holder: Holder) -> Place | None:
        """The statement that binds the variable of the innermost closure in a chain anew."""
        links = [link for link in holder.links if link.kind is LinkKind.CLOSURE and link.line]
        at = self.place_at(links[-1].filename, links[-1].line) if links else None
        is_function = at is not None and isinstance(at.statement, FUNCTIONS)
        return _binding(at, links[-1].name) if at is not None and is_function else None

    def link_place(self, *kinds: LinkKind) -> Place | None:
        """The statement of the first link of such a kind that has a line."""
        for holder in self.finding.holders:
            for link in holder.links:
                if link.kind in kinds and link.line:
                    same = (link.filename, link.line) == (holder.filename, holder.line)
                    code = holder.code if same else ""
                    place = self.place_at(link.filename, link.line, code)
                    if place is not None:
                        return place
        return None

    def place_at(self, filename: str, line: int, code: str = "") -> Place | None:
        """The statement at a recorded line of a user's file; None where the file is not here.

        Nor where the line may be another by now: the file is not the one that ran. Of a file
        without a digest the line must be ``code``, or (where its text was not recorded) the file
        must not be younger than the recording. Of a file that is not here at all, such as a
        notebook's cell, ``code`` has to do: a statement with nothing around it.
        """
        program = program_of(filename) if filename and line else None
        if program is None:
            program = self._excerpt(filename, line, code)
            return program.at(line) if program is not None else None
        if self._is_other_line(program, line, code):
            self.changed.add(filename)
            return None
        return program.at(line)

    def _excerpt(self, filename: str, line: int, code: str) -> Program | None:
        is_missing_here = filename and code and not Path(filename).exists()
        return excerpt(filename, line, code) if is_missing_here else None

    def _is_other_line(self, program: Program, line: int, code: str) -> bool:
        ran = self.is_as_it_ran(program)
        if ran is not None:
            return not ran
        if code:
            return program.code(line).strip() != code.strip()
        created_us = self.run.header.created_us
        return 0 < created_us < program.modified_us - _CLOCK_SKEW_US

    def is_as_it_ran(self, program: Program) -> bool | None:
        """Whether a file is what the job ran; None where the recording has no digest of it."""
        digest = self.run.digests.get(program.filename)
        return digest == program.digest if digest is not None else None


def attribute_of_graph(holder: Holder) -> str:
    """The attribute or buffer that a graph hangs on; empty where it hangs on something else."""
    kinds = [link.kind for link in holder.links]
    first = next((at for at, kind in enumerate(kinds) if kind in THROUGH_GRAPH), 0)
    last = holder.links[first - 1] if first else None
    return last.name.rpartition(".")[2] if last is not None and last.kind in _ATTRIBUTES else ""


def _binding(place: Place, name: str) -> Place | None:
    """The statement that binds a ``nonlocal`` variable, in one of the functions beside a closure.

    The last of several that reads what it was before, else the last of all: others begin it.
    """
    bindings = [
        binding
        for function in ast.walk(place.scope)
        if isinstance(function, FUNCTIONS)
        for own in ast.walk(function)
        if isinstance(own, ast.Nonlocal) and name in own.names
        for node in ast.walk(function)
        if isinstance(node, ast.stmt) and name in map(ast.unparse, bound_names(node))
        if (binding := place.program.place(node)) is not None
    ]
    going_on = [one for one in bindings if name in loaded_names(one.statement)]
    return next(iter([*reversed(going_on), *reversed(bindings)]), None)


def says(holder: Holder | None) -> str:
    """A holder in few words: what holds the tensor, and by what name one reaches that."""
    return "something" if holder is None else shortened(holder.links)


def _places_with_name(program: Program, line: int, names: set[str]) -> Iterator[Place]:
    """The statements on a line that mention one of those names."""
    for node in program.nodes:
        if not isinstance(node, ast.stmt) or hasattr(node, "body") or node.lineno != line:
            continue
        names_read = {
            getattr(one, "id", None) or getattr(one, "attr", None) for one in ast.walk(node)
        }
        place = program.place(node) if names & names_read else None
        if place is not None:
            yield place
