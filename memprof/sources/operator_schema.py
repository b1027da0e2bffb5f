"""The name of an operator that a dispatch mode is given, and whether it writes into its inputs."""

from __future__ import annotations

from typing import Any

__all__ = ["is_mutable", "schema_name"]


def schema_name(func: Any) -> str:
    """The name of an operator without its overload: ``aten::add``.

    An operator of a higher order (``torch.cond``, ``flex_attention``) has no schema: its own name
    comes back, ``cond``.
    """
    schema = getattr(func, "_schema", None)
    return str(func) if schema is None else str(schema.name)


def is_mutable(func: Any) -> bool:
    """Whether an operator writes into one of its inputs; one of a higher order never does."""
    schema = getattr(func, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
