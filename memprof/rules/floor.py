"""What a finding must come to before it is a headline: a share of the peak, and bytes."""

from __future__ import annotations

import ast

import numpy as np

from memprof.reference_chain import LinkKind
from memprof.rules.called_models import are_called, are_parts_called
from memprof.rules.finding import Kind, RuleFinding
from memprof.rules.graph_lines import none_meanwhile
from memprof.rules.load_rules import rule_named
from memprof.rules.results_read import are_read_whole
from memprof.rules.rule import WasteRule
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.source_code.idioms import growing
from memprof.source_code.joined_parts import (
    are_results_joined,
    is_joined_afterwards,
    is_read_afterwards,
    is_returned_afterwards,
)
from memprof.source_code.program import (
    LOOPS,
    arguments,
    assigned,
    called_name,
    own_calls,
    program_of,
    with_imported,
)
from memprof.source_code.uses_of_items import searching_lines
from memprof.trace import Category, Phase
from memprof.views.examination import DeviceExamination, Examination
from memprof.views.stacks import made_by_lines
from memprof.views.window import Window

__all__ = ["growth_of", "is_beside_card", "is_minor", "is_needed", "is_tiny"]

_LEAST_SHARE = 0.1
"""Of the peak over all, off which a change takes it: for less nobody changes a program."""
_LARGE = 8 << 20
"""Bytes from which that share is enough."""
_LARGE_SHARE = 1 / 7
"""Of the peak, from which fewer bytes do: a program that is run small, or on a processor to try
it, wastes the same share when it is run large."""
_LEAST = 512 << 10
"""Fewer bytes nobody acts on, whatever their share."""
_OF_CARD = 0.01
_ON_HOST = 48 << 20
"""What a part that the program needs must come to: a hundredth of the card; of the host, or of a
card of unknown size, as much as a small card would have for it."""
_ON_HOST_BESIDE_CARD = 256 << 20
"""What a change must save on the host of a program whose tensors are on a card."""
_AFTER_OOM = "oom-fragmentation"
_SLACK = 64 << 20
"""What a few segments of 20 MiB leave unused between tensors, on whatever device."""
_SHORT = 0.6
"""Of the card, that must be taken before memory is worth time: there what a program needs is a
headline too, if another way of computing it takes less."""
_IN_PARTS = 0.3
"""Of the peak, that working through one line in parts must take off it to be a headline though the
program needs the result as it is written."""
_LEAST_GROWTH, _STEPS = 1 << 20, 1000
"""Bytes that growth must come to over the run, or over so many steps, and below that at least
`_GROWN` of the peak by now."""
_SMALL_GROWTH = 8 << 20
"""Bytes that growth comes to below which they must be `_GROWN` of the peak as well; so must they
where nothing is known to hold it, as then there is nothing to do about it either."""
_OF_SMALL_RESULTS = 16 << 20
"""The same of results that have not come to `_LEAST`: they may be of a loop that soon ends."""
_SLOWER = 256 << 10
"""The same, below which it is nothing in the smallest program: one scalar in each
step takes twice that on a card, where an allocation has at least 512 bytes."""
_GROWN = 0.01
_UNHELD = 0.03
"""Of the peak, below which fewer bytes than `_LEAST` are nothing where nobody is known to hold
them."""
_TINY = 64 << 10
"""Bytes over as many steps, below which it is nearly nothing: numbers of a few bytes."""
_OF_RESULTS = frozenset(
    ("bound_cache", "bound_queue", "clear_container", "clone_view", "del_ref", "running_total")
)
"""First remedies of what is kept and was made for that."""
_ALMOST_ALL = 0.9
"""Of the growth, that the list itself keeps: a graph behind its items would be more."""
_SMALLER = 0.1
"""Of the bytes of what most of a holder's results are, that others beside them take."""
_FIRST = 0.6
"""Of a window's events, in which all of a set is made that the others work with."""
_RETURNED, _RETURNING = "returned-predictions", "predict"
"""The rule about a framework's loop that returns all results, and the method that has it run."""
_UNSURE = 0.5
"""Confidence of growth below which little of it is nothing yet: a sample every so many steps."""
_SURE = 0.9
"""Confidence of growth, from which it is growth whatever the program takes out meanwhile."""
_TWO = 2
"""Steps: of the last one not all need have been recorded."""
_MODELS, _CACHE = "collected-models", "generation-cache"
_JOINED, _GROUPS = "grown-by-concatenation", "parameter-groups"
_OF_AN_OBJECT = (LinkKind.ATTRIBUTE, LinkKind.GLOBAL, LinkKind.ITEM, LinkKind.LOCAL)


def is_minor(finding: RuleFinding, examination: Examination) -> bool:
    """Whether a finding is said in a line after the others, and is no headline.

    It is where it may be meant, where the program needs what it is about, where the best remedy
    saves too little, and where what grows would come to nothing in any run of such a length.
    """
    if finding.kind in (Kind.LEAK, Kind.CYCLE):
        return (
            _comes_to_nothing(finding, examination)
            or _is_result_of_loop(finding, examination)
            or _is_completed(finding)
            or (finding.rule == _GROUPS and _all_are_trained(finding, examination))
            or _is_searched_later(finding, examination)
            or _is_returned_whole(finding)
            or (finding.confidence < _SURE and _is_sorted_out(finding))
            or (finding.rule == _CACHE and _is_of_one_text(finding))
            or _is_worked_with_later(finding, examination)
            or (finding.rule == _MODELS and are_called(finding, examination))
            or are_parts_called(finding, examination)
        )
    device = next((one for one in examination.devices if one.name == finding.device), None)
    if finding.kind is Kind.FRAGMENTATION and device is not None:
        return finding.rule != _AFTER_OOM and _is_slack(finding, device)
    if finding.kind is not Kind.WASTE:
        return False
    if device is None:
        return finding.is_tentative and not finding.match.rises
    if is_beside_card(finding, examination) and _saving_of(finding) < _ON_HOST_BESIDE_CARD:
        return True
    peak, card = _peak(finding, device), device.device.info.total_bytes
    if is_needed(finding):
        if not (0 < _SHORT * card <= peak or _is_made_at_once(finding, peak, card)):
            return True
    elif finding.is_tentative and not finding.match.rises:
        return True
    return not _is_worth_it(_saving_of(finding), peak)


def is_beside_card(finding: RuleFinding, examination: Examination) -> bool:
    """Whether it is about the host's memory in a run that allocated on a card as well."""
    others = (one for one in examination.devices if one.name != finding.device)
    return finding.device == "cpu" and any(one.peak_allocated > 0 for one in others)


def _is_slack(finding: RuleFinding, device: DeviceExamination) -> bool:
    """Whether what lies unused between tensors keeps nothing else from fitting on the card."""
    card = device.device.info.total_bytes
    if card > 0 and device.peak_reserved >= _SHORT * card:
        return False
    return finding.bytes < max(_OF_CARD * card, _SLACK)


def is_needed(finding: RuleFinding) -> bool:
    """Whether the program needs the bytes as it is written: they are its largest part, no waste."""
    rule = rule_named(finding.rule)
    return isinstance(rule, WasteRule) and rule.needed


def _comes_to_nothing(finding: RuleFinding, examination: Examination) -> bool:
    """Whether what grows stays small in any run of such a length.

    Only results that are kept, as a history of small tensors is, and cycles of nearly nothing: a
    graph or a hook is a mistake however small.
    """
    fix = finding.remedies[0].fix if finding.remedies else ""
    if finding.kind is Kind.CYCLE:
        return is_tiny(finding)
    device = next((one for one in examination.devices if one.name == finding.device), None)
    if device is None or fix not in _OF_RESULTS:
        return False
    share = _GROWN * device.peak_allocated
    total = growth_of(finding, examination)
    if total < _SLOWER:
        return True
    if finding.confidence < _UNSURE and finding.bytes < _LEAST_GROWTH:
        return total < _OF_SMALL_RESULTS
    is_little = finding.bytes < _LEAST_SHARE * device.peak_allocated and total < _ON_HOST
    if device.name == "cpu" and is_little and _is_moved_to_host(finding):
        return True
    if not any(one.is_named for one in finding.holders):
        little = min(_LEAST, _UNHELD * device.peak_allocated)
        return finding.bytes < max(share, little) and total < _SMALL_GROWTH
    if finding.bytes < min(share, _LEAST) and total < _OF_SMALL_RESULTS:
        return True
    return finding.bytes < share and total < max(_LEAST_GROWTH, min(_SMALL_GROWTH, share))


def _is_moved_to_host(finding: RuleFinding) -> bool:
    """Whether its line moves what it makes to the host: on a card nothing of it would be there."""
    program = program_of(finding.site.filename)
    place = program.at(finding.site.line) if program is not None else None
    return place is not None and any(
        called_name(call) == "cpu" or (called_name(call) == "to" and _gives_cpu(call))
        for call in own_calls(place.statement, "cpu", "to")
    )


def _gives_cpu(call: ast.Call) -> bool:
    return any(isinstance(one, ast.Constant) and one.value == "cpu" for one in arguments(call))


def is_tiny(finding: RuleFinding) -> bool:
    """Whether growth comes to nearly nothing; who holds it may hold more that is told apart."""
    return max(finding.bytes, finding.bytes_per_step * _STEPS) < _TINY


def growth_of(finding: RuleFinding, examination: Examination, fewest: int = _STEPS) -> float:
    """Bytes that growth comes to over the run's steps, or over ``fewest`` where it has fewer."""
    device = next((one for one in examination.devices if one.name == finding.device), None)
    steps = int(device.steps.last.max(initial=0)) if device is not None else 0
    return max(finding.bytes, finding.bytes_per_step * max(steps, fewest))


def _is_result_of_loop(finding: RuleFinding, examination: Examination) -> bool:
    """Whether a function collects the parts of a result, and joins or returns them after its loop.

    Or an object does, whose list is read only after it. Such a list is as long as what is gone
    through, and needed. Parts that keep a graph are not, nor may be what a loop in which a backward
    pass ran leaves, unless they are joined.
    """
    first = finding.remedies[0] if finding.remedies else None
    links = [link for holder in finding.holders for link in holder.links]
    if first is None or first.fix != "clear_container":
        return False
    program = program_of(first.filename)
    place = program.at(first.line) if program is not None else None
    if place is None:
        return False
    if not links:  # no search had the time for it: the line itself fills a list
        return is_joined_afterwards(place)
    if finding.growth.kept_itself < _ALMOST_ALL:
        return False
    if any(link.kind not in _OF_AN_OBJECT for link in links):
        return False
    window = _window_of(finding, examination)
    learns = not none_meanwhile(window, finding.evidence.allocs)
    own = LinkKind.LOCAL if place.function is not None else LinkKind.GLOBAL
    if any(link.kind not in (own, LinkKind.ITEM) for link in links):
        if learns or window is None:
            return False
        frames, programs = window.user_frames(finding.stack), with_imported(window.programs)
        return is_read_afterwards(place, frames, programs)
    return is_joined_afterwards(place) or (is_returned_afterwards(place) and not learns)


def _is_completed(finding: RuleFinding) -> bool:
    """Whether a loop completes a tensor that it joins again and again, and the peak is elsewhere.

    Then it is as large as it is to be, and its copies cost time alone.
    """
    first = finding.remedies[0] if finding.remedies else None
    if first is None or (finding.rule, first.fix) != (_JOINED, "preallocate"):
        return False
    is_known = first.peak_before > 0
    return is_known and not _is_worth_it(first.peak_before - first.peak_after, first.peak_before)


def _all_are_trained(finding: RuleFinding, examination: Examination) -> bool:
    """Whether nearly all parameters get gradients in the last whole step: a model that is enlarged.

    What an optimizer keeps of old tasks gets none.
    """
    window = _window_of(finding, examination)
    if window is None or len(window.steps) < _TWO:
        return False
    lives = window.lives
    made = (window.category == Category.GRADIENT) & (window.phase == Phase.BACKWARD)
    made &= window.made_in == int(window.steps[-_TWO])
    parameters = (window.category == Category.PARAMETER) & window.stays
    return window.bytes_of(made) >= _ALMOST_ALL * int(lives.size[parameters].sum()) > 0


def _window_of(finding: RuleFinding, examination: Examination) -> Window | None:
    device = next((one for one in examination.devices if one.name == finding.device), None)
    number = finding.evidence.window
    return device.windows[number] if device is not None and number >= 0 else None


def _is_returned_whole(finding: RuleFinding) -> bool:
    """Whether the program joins all results that a framework's loop returns, and needs them."""
    if finding.rule != _RETURNED:
        return False
    program = program_of(finding.site.filename)
    return program is not None and are_results_joined(program, _RETURNING)


def _is_sorted_out(finding: RuleFinding) -> bool:
    """Whether the program makes a container anew of what it still needs of it, now and then.

    ``self.samples = {t.id: self.samples[t.id] for t in self.tracks}``: it grows and shrinks.
    """
    first = finding.remedies[0] if finding.remedies else None
    program = program_of(first.filename) if first is not None else None
    place = program.at(first.line) if program is not None and first is not None else None
    growth = growing(place)
    if program is None or growth is None:
        return False
    name = growth.container.partition("[")[0]
    return any(
        ast.unparse(target) == name
        and isinstance(value, (ast.DictComp, ast.ListComp, ast.SetComp))
        and any(ast.unparse(one) == name for one in ast.walk(value) if isinstance(one, ast.expr))
        for node in program.nodes
        for target, value in assigned(node)
    )


def _is_of_one_text(finding: RuleFinding) -> bool:
    """Whether a model's cache grows with one text, up to its length: ``while ids.size(1) < most``.

    Not where a loop around that goes through several, of which each is to have its own.
    """
    calls = [at for at, frame in enumerate(finding.stack) if "_call_impl" in frame.name]
    callers = finding.stack[calls[-1] + 1 :] if calls else ()  # a model has a loop over layers
    places = [
        program.at(frame.line)
        for frame in callers
        if frame_kind(frame.filename) is FrameKind.USER
        and (program := program_of(frame.filename)) is not None
    ]
    loops = [
        [one for one in at.around if isinstance(one, LOOPS)] for at in places if at is not None
    ]
    of_caller = next((of_place for of_place in reversed(loops) if of_place), [])
    outermost = min(of_caller, key=lambda one: one.lineno, default=None)
    return isinstance(outermost, ast.While) and _compares_length(outermost.test)


def _compares_length(test: ast.expr) -> bool:
    return isinstance(test, ast.Compare) and any(
        called_name(node) in ("len", "size")
        or (isinstance(node, ast.Attribute) and node.attr == "shape")
        for node in ast.walk(test)
    )


def _is_searched_later(finding: RuleFinding, examination: Examination) -> bool:
    """Whether the program searches through all that a container has, and trains nothing by it.

    An index of vectors is as long as what it is made of, and needed, also while it is filled. Where
    something is trained, what each step searches may be a bank that was to have a size.
    """
    first = finding.remedies[0] if finding.remedies else None
    if first is None or first.fix != "clear_container" or finding.growth.kept_itself < _ALMOST_ALL:
        return False
    program = program_of(first.filename)
    place = program.at(first.line) if program is not None else None
    lines = searching_lines(place) if place is not None else frozenset()
    device = next((one for one in examination.devices if one.name == finding.device), None)
    if not lines or device is None:
        return False
    if not any((window.phase_of_event == Phase.BACKWARD).any() for window in device.windows):
        return True
    return not any(
        (made_by_lines(window, first.filename, lines) & (window.made_in < finding.last_step)).any()
        for window in device.windows
    )


def _is_worked_with_later(finding: RuleFinding, examination: Examination) -> bool:
    """Whether results are made first, then read whole by most of what a job does, and let go of.

    As embeddings of a whole set are, that are compared with one another; not what a graph keeps.
    """
    if any(holder.through_graph for holder in finding.holders):
        return False
    device = next((one for one in examination.devices if one.name == finding.device), None)
    allocs, number = finding.evidence.allocs, finding.evidence.window
    if device is None or number < 0 or not len(allocs):
        return False
    window = device.windows[number]
    rows = np.isin(window.lives.alloc, allocs)
    is_over = bool((window.lives.free[rows] < window.events).all())
    if int(allocs.max()) > _FIRST * window.events or not is_over:
        return False
    stacks, sizes = window.lives.stack[rows], window.lives.size[rows]
    nbytes = np.bincount(stacks, weights=sizes)
    largest = np.flatnonzero(nbytes >= _SMALLER * nbytes.max())  # labels beside them are small
    return are_read_whole(window, largest.tolist())


def _is_made_at_once(finding: RuleFinding, peak: int, card: int) -> bool:
    """Whether a line of the program makes so much of the peak that it should work in parts."""
    first = finding.remedies[0] if finding.remedies else None
    if first is None or first.fix != "chunk":
        return False
    return first.saves_bytes >= max(_IN_PARTS * peak, _OF_CARD * card if card else _ON_HOST)


def _saving_of(finding: RuleFinding) -> int:
    """What the first remedy takes off the peak; the bytes concerned where no replay tells."""
    if not finding.remedies:
        return finding.bytes
    return max(finding.remedies[0].saves_bytes, 0)


def _peak(finding: RuleFinding, device: DeviceExamination) -> int:
    before = max((remedy.peak_before for remedy in finding.remedies), default=-1)
    return before if before > 0 else max(device.peak_allocated, finding.bytes)


def _is_worth_it(saved: int, peak: int) -> bool:
    share = saved / peak if peak else 0.0
    if share < _LEAST_SHARE:
        return False
    return saved >= _LARGE or (saved >= _LEAST and share >= _LARGE_SHARE)
