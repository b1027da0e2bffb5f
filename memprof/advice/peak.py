"""Rules for what makes a peak: activations, the optimizer, buckets, one large tensor."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from memprof.advice.case import NO_FIGURE, Case, Proposal
from memprof.advice.reducer import unviewed, viewed
from memprof.analysis.suspicion import Pattern
from memprof.source_code.idioms import OPTIMIZERS, keyword
from memprof.source_code.patch import diff, with_keyword
from memprof.source_code.program import Place
from memprof.units import format_bytes

__all__ = ["rules"]


def rules(case: Case) -> Iterator[Proposal]:
    """``checkpoint``, ``chunk``, ``foreach_false``, ``set_to_none`` and their kin."""
    nbytes = format_bytes(case.found.bytes)
    pattern = case.pattern
    if pattern == Pattern.ACTIVATIONS.value or (
        pattern == Pattern.SUMMED_LOSSES.value and "sum_line" not in case.found.evidence.facts
    ):
        yield from _activations(case, nbytes)
    elif pattern == Pattern.OPTIMIZER_TEMPORARIES.value:
        yield from _optimizer(case, nbytes)
    elif pattern == Pattern.BUCKETS.value:
        yield from _buckets(case, nbytes)
    else:
        yield from _one_tensor(case, nbytes)


def _activations(case: Case, nbytes: str) -> Iterator[Proposal]:
    blocks = case.fact("blocks", 0) or case.fact("times", 0)
    yield Proposal(
        "checkpoint",
        0.8,
        f"{nbytes} of activations of {blocks} blocks wait for the backward pass; recomputing them "
        "keeps one block's at a time.",
        case.site,
    )
    # What was replayed is checkpointing: these have no figures of their own.
    yield Proposal(
        "mixed_precision",
        0.4,
        f"In bfloat16 the {nbytes} of activations take about half.",
        case.site,
        saving=NO_FIGURE,
    )
    yield Proposal(
        "chunk",
        0.3,
        "Smaller micro-batches with accumulated gradients need less at once.",
        case.site,
        saving=NO_FIGURE,
    )


def _optimizer(case: Case, nbytes: str) -> Iterator[Proposal]:
    found = list(_constructions(case))
    place, call = found[0] if found else (case.site, None)
    patch = ""
    if place is not None and call is not None:
        patch = diff(place.program, with_keyword(call, "foreach", "False"))
    yield Proposal(
        "foreach_false",
        0.92,
        f"The multi-tensor optimizer makes temporaries for all parameters at once, {nbytes} at the "
        "peak; `fused=True` makes none and is faster on CUDA.",
        place,
        patch=patch,
    )


def _constructions(case: Case) -> Iterator[tuple[Place, ast.Call]]:
    """Where the program makes its optimizers; those that ask for ``foreach`` first."""
    found = [(p, c) for c, p in case.calls(*OPTIMIZERS) if _asks_for_foreach(c) is not False]
    found.sort(key=lambda pair: _asks_for_foreach(pair[1]) is not True)
    yield from found


def _asks_for_foreach(call: ast.Call) -> bool | None:
    value = keyword(call, "foreach")
    return bool(value.value) if isinstance(value, ast.Constant) else None


def _buckets(case: Case, nbytes: str) -> Iterator[Proposal]:
    why = f"The reducer's buckets hold a second copy of every gradient, {nbytes}"
    calls = unviewed(case)
    place = calls[0][0] if calls else case.site
    patch = viewed(*calls[0]) if len(calls) == 1 else ""  # of several: nobody knows whose they are
    yield Proposal("bucket_view", 0.92 if calls else 0.85, f"{why}.", place, patch=patch)


def _one_tensor(case: Case, nbytes: str) -> Iterator[Proposal]:
    pattern = case.pattern
    if pattern == Pattern.BROADCAST.value:
        yield Proposal(
            "reshape",
            0.88,
            f"Operands of shapes like (N, 1) and (N,) broadcast to N × N, {nbytes}: give both the "
            "same shape.",
            case.site,
        )
        yield Proposal("chunk", 0.4, "If the table is meant, work through it in parts.", case.site)
    elif pattern == Pattern.REPEATED.value:
        yield Proposal(
            "reshape",
            0.85,
            "A repetition copies: `expand`, or operands of shapes that broadcast, read the same "
            "values without.",
            case.site,
        )
        yield Proposal("chunk", 0.4, "Or work through it in parts.", case.site, saving=NO_FIGURE)
    elif pattern == Pattern.GROWN_BY_COPY.value:
        why = f"Old and new copy are there at once, {nbytes}"
        yield Proposal("preallocate", 0.85, f"{why}: allocate once and fill.", case.site)
        yield Proposal("cpu_offload", 0.5, f"{why}: collect the parts on the host.", case.site)
    elif pattern == Pattern.LARGEST.value:
        yield from _large(case, nbytes)
    elif pattern == Pattern.DOUBLE_PRECISION.value:
        yield Proposal(
            "mixed_precision",
            0.8,
            f"The model was made `double()`, and with it the {nbytes}: in float32 they are half.",
            case.site,
        )
    elif pattern == Pattern.WORKSPACE.value:
        yield from _workspace(case, nbytes)


def _large(case: Case, nbytes: str) -> Iterator[Proposal]:
    number = int(case.fact("tensors", 1))
    many = number > 1
    takes = f"{number} tensors of one size take" if many else "One tensor takes"
    why = f"{takes} {nbytes} at once; in parts {'they' if many else 'it'} need not."
    yield Proposal("chunk", 0.6, why, case.site)
    half = f"In bfloat16 {'their' if many else 'its'} {nbytes} are half."
    yield Proposal("mixed_precision", 0.3, half, case.site, remains=0.5)
    if case.found.category == "activation":
        why = f"{'Their' if many else 'Its'} {nbytes} can be recomputed in the backward pass."
        yield Proposal("checkpoint", 0.35, why, case.site)


def _workspace(case: Case, nbytes: str) -> Iterator[Proposal]:
    why = f"Workspaces take {nbytes}"
    for program in case.programs:
        for node in ast.walk(program.tree):
            if isinstance(node, ast.Assign) and any(
                ast.unparse(t).endswith("cudnn.benchmark") for t in node.targets
            ):
                yield Proposal(
                    "limit_workspace",
                    0.85,
                    f"{why}: `cudnn.benchmark` tries algorithms with large ones for each shape.",
                    program.place(node),
                )
                return
    yield Proposal("limit_workspace", 0.75, f"{why}.", case.site)
