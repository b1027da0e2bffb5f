"""Products and running products with their backward passes, which look for zeros on the device."""

from __future__ import annotations

import itertools
import json

import torch

SHAPES = ((1,), (7,), (0, 3), (3, 0), (1, 1), (64, 3), (3, 64), (5, 6, 7), (2, 1, 300), (1025, 33))
DTYPES = (torch.float32, torch.bfloat16, torch.complex64)
FILLS = (0.0, 1.0, None)
"""None: numbers of a generator on the device. Zeros and ones are copied in, so they are read."""


def made(shape: tuple[int, ...], dtype: torch.dtype, fill: float | None) -> torch.Tensor:
    if fill is None:
        return torch.randn(shape, dtype=dtype, device="cuda", requires_grad=True)
    return torch.full(shape, fill, dtype=dtype).cuda().requires_grad_()


def backward(result: torch.Tensor, values: torch.Tensor) -> None:
    result.abs().sum().backward()
    assert values.grad is not None
    assert values.grad.shape == values.shape


def main() -> None:
    passes = 0
    for shape, dtype, fill in itertools.product(SHAPES, DTYPES, FILLS):
        values = made(shape, dtype, fill)
        backward(values.prod(), values)
        passes += 1
        for dimension, keep in itertools.product(range(-1, len(shape)), (False, True)):
            values = made(shape, dtype, fill)
            backward(values.prod(dim=dimension, keepdim=keep), values)
            backward(values.cumprod(dim=dimension), values)
            backward(values.transpose(0, -1).prod(dim=dimension), values)
            passes += 3
    twice = made((4, 5), torch.float64, None)
    (gradient,) = torch.autograd.grad(twice.prod(dim=1).sum(), twice, create_graph=True)
    backward(gradient, twice)
    print("products", json.dumps({"passes": passes + 1}))


if __name__ == "__main__":
    main()
