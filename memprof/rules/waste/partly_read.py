"""partly-read: a large result is computed whole, and one part of it is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memprof.rules.case import Case
from memprof.rules.large_tensor import large_tensor, made_on_its_line
from memprof.rules.rule import Advice, Match, WasteRule
from memprof.source_code.parts_read import PartRead, part_read
from memprof.trace import Frame
from memprof.units import format_bytes
from memprof.views.window import Window

__all__ = ["RULE"]

_OF_LINEAR = "/torch/nn/modules/linear.py"


@dataclass(frozen=True, slots=True, eq=False)
class PartlyRead(Match):
    """The part."""

    part: PartRead | None = None


class PartlyReadResult(WasteRule[PartlyRead]):
    """`logits = model(prompt)` over a vocabulary, of which only `logits[:, -1]` is read."""

    name = "partly-read"
    summary = "a large result is computed whole, and one part of it is read"
    fixes = ("narrow_first",)

    def matches(self, window: Window) -> Iterator[PartlyRead]:
        """The large tensor of the peak, made by a linear layer, each row of it by itself."""
        large = large_tensor(window)
        if large is None or not _is_by_linear(window.stack(large.row)):
            return
        part = part_read(window.stack(large.row))
        if part is None:
            return
        yield PartlyRead(
            row=large.row,
            rows=large.there,
            nbytes=large.nbytes,
            saving=window.replayed(window.whole(made_on_its_line(window, large.row))),
            part=part,
        )

    def title(self, match: PartlyRead) -> str:
        """Say what is read of them."""
        assert match.part is not None
        return f"are computed whole, and only `{match.part.text}` is read"

    def advice(self, match: PartlyRead, case: Case) -> Iterator[Advice]:
        """Take the part before the layer computes the rest."""
        part = match.part
        assert part is not None
        name = part.place.program.filename.replace("\\", "/").rpartition("/")[2]
        why = (
            f"Only `{part.text}` of the {format_bytes(match.nbytes)} is read ({name}:"
            f"{part.place.line}): take that part of what goes into the layer, not of its result."
        )
        yield Advice(
            "narrow_first", why, case.site, typed=f"model(…, {part.switch}=1)" * bool(part.switch)
        )


def _is_by_linear(stack: Sequence[Frame]) -> bool:
    """Whether a layer made it that treats every position by itself."""
    return bool(stack) and _OF_LINEAR in stack[0].filename.replace("\\", "/")


RULE = PartlyReadResult()
