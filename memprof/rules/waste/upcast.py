"""upcast: a tensor is converted to a wider type as a whole, and both are there at once."""

from __future__ import annotations

from collections.abc import Iterator

from memprof.rules.case import Case
from memprof.rules.large_tensor import LargeTensor, large_tensor, made_by_module, made_on_its_line
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.program import calls_in
from memprof.source_code.torch_modes import under_autocast
from memprof.source_code.verbs import CONVERTING
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_IN_FLOAT32 = ("softmax", "log_softmax", "cross_entropy")
"""Functions that autocast runs in float32, whatever it is given."""


class Upcast(WasteRule[Match]):
    """`logits.float()` on a whole output in half precision."""

    name = "upcast"
    summary = "a wider copy of a tensor is there beside the tensor"
    fixes = ("narrow_before_cast", "chunk", "mixed_precision")
    yields_to = ("broadcast", "grown-by-copy", "one-hot", "repeated")

    def matches(self, window: Window) -> Iterator[Match]:
        """The large tensor of the peak, converted on its line from one of half its bytes."""
        large = large_tensor(window)
        if large is None or not _half_is_there(window, large.row):
            return
        if made_by_module(window, large.row) or not _widens(window, large):
            return
        yield Match(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(made_on_its_line(window, large.row))),
        )

    def title(self, match: Match) -> str:  # noqa: ARG002 - every match reads the same
        """Say of what they are a copy."""
        return "are a wider copy of a tensor that is there too"

    def advice(self, match: Match, case: Case) -> Iterator[Advice]:
        """Convert less of it, or nothing."""
        nbytes = format_bytes(match.nbytes)
        why = f"A wider copy of {nbytes} is made of a tensor that is there as well"
        part = f"{why}: take the part that is needed first."
        yield Advice("narrow_before_cast", part, case.site)
        yield Advice("chunk", f"{why}: work through it in parts.", case.site)
        yield Advice("mixed_precision", f"{why}: stay in the narrow type.", case.site, remains=0.5)


def _half_is_there(window: Window, row: int) -> bool:
    """True if a tensor of half its bytes, made before it, is there at the peak as well."""
    requested = window.lives.requested
    half = window.at_peak & (2 * requested == requested[row])
    half &= window.lives.alloc < window.lives.alloc[row]
    return bool((half & ~window.has_owner).any())


def _widens(window: Window, large: LargeTensor) -> bool:
    """True if its statement converts a tensor, or calls what does so under autocast.

    A softmax that is twice as large as some other tensor is else that by chance.
    """
    if large.place is None:
        return False
    statement = large.place.statement
    calls = calls_in(statement, *_IN_FLOAT32)
    typed = any(k.arg == "dtype" for call in calls for k in call.keywords)
    if typed or calls_in(statement, *CONVERTING):
        return True
    return bool(calls) and under_autocast(window.stack(large.row))


RULE = Upcast()
