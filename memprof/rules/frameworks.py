"""What to type for a fix: the framework's own switch where a framework drives the loop."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import NamedTuple

from memprof.source_code.program import Place, Program, calls_in
from memprof.trace import Frame

__all__ = ["construction", "typed"]


class _Framework(NamedTuple):
    """A library that runs the user's loop or makes the user's model."""

    path: str
    """A part of the paths of its files, told by a frame on the stack."""
    switches: dict[str, str]
    """What to type, by fix."""


_FRAMEWORKS = (
    _Framework(
        "/transformers/trainer.py",
        {
            "checkpoint": "TrainingArguments(gradient_checkpointing=True)",
            "mixed_precision": "TrainingArguments(bf16=True)",
            "smaller_batch": "TrainingArguments(per_device_eval_batch_size=…)",
            "micro_batches": (
                "TrainingArguments(per_device_train_batch_size=…, gradient_accumulation_steps=…)"
            ),
            "fused_attention": 'from_pretrained(…, attn_implementation="sdpa")',
            "reduce_predictions": "Trainer(…, preprocess_logits_for_metrics=…)",
        },
    ),
    _Framework(
        "/transformers/models/",
        {
            "checkpoint": "model.gradient_checkpointing_enable()",
            "fused_attention": 'from_pretrained(…, attn_implementation="sdpa")',
        },
    ),
    _Framework(
        "/accelerate/accelerator.py",
        {
            "bucket_view": "DistributedDataParallelKwargs(gradient_as_bucket_view=True)",
            "mixed_precision": 'Accelerator(mixed_precision="bf16")',
            "micro_batches": "Accelerator(gradient_accumulation_steps=…)",
        },
    ),
    _Framework("/diffusers/models/", {"checkpoint": "model.enable_gradient_checkpointing()"}),
    _Framework("/timm/models/", {"checkpoint": "model.set_grad_checkpointing()"}),
    *(
        _Framework(
            path,
            {
                "mixed_precision": 'Trainer(precision="bf16-mixed")',
                "micro_batches": "Trainer(accumulate_grad_batches=…)",
                "bucket_view": "DDPStrategy(gradient_as_bucket_view=True)",
            },
        )
        for path in ("/lightning/pytorch/", "/pytorch_lightning/")
    ),
)
"""The nearer to the loop the earlier: of several on a stack the first that has a switch counts."""

_TORCH = {
    "bucket_view": "DistributedDataParallel(model, gradient_as_bucket_view=True)",
    "checkpoint": "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    "disable_autocast_cache": "torch.autocast(…, cache_enabled=False)",
    "foreach_false": "foreach=False",
    "freeze_params": "module.requires_grad_(False)",
    "fused_attention": "F.scaled_dot_product_attention(q, k, v, attn_mask=…)",
    "inference_mode": "with torch.inference_mode():",
    "map_location_cpu": 'torch.load(…, map_location="cpu")',
    "mixed_precision": 'with torch.autocast("{device}", torch.bfloat16):',
    "no_grad": "with torch.no_grad():",
    "set_to_none": "optimizer.zero_grad(set_to_none=True)",
}
"""What to type where no framework is in between, on a ``{device}``."""

_BY_FUNCTION = {
    ("chunk", "vmap_impl"): "torch.vmap(f, in_dims=…, chunk_size=…)",
    ("fused_attention", "multi_head_attention_forward"): "attention(q, k, v, need_weights=False)",
}
"""The same where a function of torch made the tensors, which has a switch of its own."""


def typed(fix: str, stack: Sequence[Frame], device: str) -> str:
    """The code of a fix for what made the tensors by ``stack``; empty where it has no one form.

    ``device`` is where they lie: ``"cuda:0"`` or ``"cpu"``.
    """
    switch = _switch(fix, stack)
    if switch:
        return switch
    for frame in stack:
        if (fix, frame.name) in _BY_FUNCTION:
            return _BY_FUNCTION[fix, frame.name]
    return _TORCH.get(fix, "").replace("{device}", device.partition(":")[0])


def construction(fix: str, stack: Sequence[Frame], programs: Sequence[Program]) -> Place | None:
    """The statement that makes the object a framework's switch belongs to: ``Trainer(…)``.

    A class of the program's own that comes of it counts as well. None where the switch is none of a
    class, or where the program makes several of them.
    """
    beginning = re.match(r"([A-Z]\w*)\(", _switch(fix, stack))
    if beginning is None:
        return None
    names = _with_derived(beginning[1], programs)
    places = [
        place
        for program in programs
        for call in calls_in(program.tree, *names)
        if (place := program.place(call)) is not None
    ]
    return places[0] if len(places) == 1 else None


def _switch(fix: str, stack: Sequence[Frame]) -> str:
    """What to type for a framework that is on a stack; empty without one."""
    paths = [frame.filename.replace("\\", "/") for frame in stack]
    for framework in _FRAMEWORKS:
        if fix in framework.switches and any(framework.path in path for path in paths):
            return framework.switches[fix]
    return ""


def _with_derived(name: str, programs: Sequence[Program]) -> set[str]:
    """The name of a class, and those of the program's classes that come of it."""
    names = {name}
    classes = [class_ for program in programs for class_ in program.classes()]
    for _ in classes:
        before = len(names)
        names |= {one.name for one in classes if names & set(map(_last_name, one.bases))}
        if len(names) == before:
            break
    return names


def _last_name(base: ast.expr) -> str:
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")
