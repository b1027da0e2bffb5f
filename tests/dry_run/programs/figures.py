"""What a program of the matrix prints about its memory, as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable

import torch


def print_figures(
    models: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer] = ()
) -> None:
    """The bytes that models and optimizers hold by their own account, beside the allocator's."""
    tensors = {}
    for model in models:
        for tensor in (*model.parameters(), *model.buffers()):
            tensors[tensor.data_ptr()] = tensor
            if tensor.grad is not None:
                tensors[tensor.grad.data_ptr()] = tensor.grad
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.is_cuda:
                    tensors[value.data_ptr()] = value
    statistics = torch.cuda.memory_stats()
    figures = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "owned": sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
        "requested": statistics["requested_bytes.all.current"],
        "peak": statistics["allocated_bytes.all.peak"],
        "reserved": statistics["reserved_bytes.all.peak"],
    }
    print("figures", json.dumps(figures))
