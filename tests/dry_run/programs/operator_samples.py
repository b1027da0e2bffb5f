"""torch's own list of operators with inputs for each, run forward and backward on the card.

``operator_samples.py FIRST LAST MOST [DTYPE]`` runs those of the list from FIRST to before LAST with at
most MOST inputs each, and prints a line of JSON for each operator: before it begins its name alone, so
that a crash is known by the last line, then its outcomes by kind, with the first message of each:

``ran``      forward, and backward where there is one
``refused``  it raised, and so it does on the CPU
``value``    it raised after it had read a value from the device, which nobody computed
``shape``    it gave other shapes than on the CPU although it read no value
``failed``   it raised
"""

from __future__ import annotations

import ctypes
import json
import sys
import warnings
from collections.abc import Iterable

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

KINDS = ("ran", "refused", "value", "shape", "failed")
BY_PREFERENCE = (
    *(torch.float32, torch.complex64, torch.float64, torch.float16, torch.bfloat16),
    *(torch.int64, torch.bool, torch.uint8),
)
readings: list[int] = []
"""The bytes of each value that the operator at hand has read from the device."""


def note_reading(nbytes: int, copied_in: int) -> None:
    readings.append(nbytes)


def on_card(value: object) -> object:
    if isinstance(value, torch.Tensor):
        moved = value.detach().to("cuda")
        return moved.requires_grad_(value.requires_grad)
    return torch.device("cuda") if value in ("cpu", torch.device("cpu")) else value


def copied(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def outcome(operator: object, sample: object, place: object) -> tuple[list[object], str]:
    """Shapes of what it gives and of the gradients, and what it raised."""
    made: list[object] = []
    try:
        inputs = tree_map(place, sample.input)
        arguments, named = tree_map(place, sample.args), tree_map(place, sample.kwargs)
        given = operator(inputs, *arguments, **named)
        tensors = [one for one in tree_leaves(given) if isinstance(one, torch.Tensor)]
        made.append([list(one.shape) for one in tensors])
        losses = [one.abs().sum() for one in tensors if one.requires_grad]
        if losses:
            sum(losses).backward()
        leaves = tree_leaves((inputs, arguments, named))
        made.append(
            [
                list(one.grad.shape)
                for one in leaves
                if isinstance(one, torch.Tensor) and one.is_leaf and one.grad is not None
            ]
        )
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer
        return made, f"{type(error).__name__}: {error}".split("\n")[0][:300]
    return made, ""


def kind_of(operator: object, sample: object) -> tuple[str, str]:
    expected, refusal = outcome(operator, sample, copied)
    readings.clear()
    made, message = outcome(operator, sample, on_card)
    if message:
        kind = "refused" if refusal else "value" if readings else "failed"
        return kind, message
    if made != expected and not readings and not refusal:
        return "shape", f"{made} instead of {expected}"
    return "ran", ""


def dtype_of(operator: object, wanted: str | None) -> torch.dtype | None:
    on_cuda = operator.supported_dtypes("cuda")
    able = on_cuda & operator.supported_dtypes("cpu") or on_cuda
    if wanted is not None:
        return getattr(torch, wanted) if getattr(torch, wanted) in able else None
    return next((dtype for dtype in BY_PREFERENCE if dtype in able), None)


def samples_of(operator: object, dtype: torch.dtype, most: int) -> Iterable[object]:
    graded = operator.supports_autograd and dtype in operator.supported_backward_dtypes("cuda")
    for number, sample in enumerate(operator.sample_inputs("cpu", dtype, requires_grad=graded)):
        if number == most:
            return
        yield sample


def main(first: int, last: int, most: int, wanted: str | None = None) -> None:
    kind = ctypes.CFUNCTYPE(None, ctypes.c_size_t, ctypes.c_int)
    listener = kind(note_reading)
    ctypes.CDLL(None).memprof_dry_run_listen(listener)
    warnings.simplefilter("ignore")
    for number, operator in list(enumerate(op_db))[first:last]:
        name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
        print(json.dumps({"number": number, "of": len(op_db), "name": name}), flush=True)
        dtype = dtype_of(operator, wanted)
        found: dict[str, int] = {}
        messages: dict[str, str] = {}
        try:
            for sample in samples_of(operator, dtype, most) if dtype else ():
                word, message = kind_of(operator, sample)
                found[word] = found.get(word, 0) + 1
                if message:
                    messages.setdefault(word, message)
        except Exception as error:  # noqa: BLE001 - the inputs could not be made on the CPU
            messages["inputs"] = f"{type(error).__name__}: {error}".split("\n")[0][:300]
        print(
            json.dumps(
                {"number": number, "name": name, "dtype": str(dtype), **found, "messages": messages}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:5])
