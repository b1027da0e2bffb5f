"""How many hooks are called for every module of the process."""

from __future__ import annotations

import torch.nn.modules.module as registry

__all__ = ["global_module_hooks"]


def global_module_hooks() -> int:
    """Entries of torch's global registries of module hooks, whoever made them."""
    found = [
        value
        for name, value in vars(registry).items()
        if name.startswith("_global_") and isinstance(value, dict) and "hooks" in name
    ]
    return sum(len(hooks) for hooks in found)
