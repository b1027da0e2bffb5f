"""Python objects that ranks exchange over NCCL, which carries nothing in a dry run: by their store.

torch sends an object as a tensor, after its size. Above NCCL's stand-in both would be what the
receiver had there before. Ranks that are really there have a store in common, which torch met them
by, and objects are exchanged through it instead. Groups that have gloo are left to it. Nor does
NCCL's stand-in wait for anybody: at a barrier, and before a rank leaves, ranks meet by the store.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, MutableSequence, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from types import ModuleType
from typing import Any

__all__ = ["exchange_objects_by_store"]


def exchange_objects_by_store(module: ModuleType) -> None:
    """Replace the functions of ``torch.distributed.distributed_c10d`` that exchange objects."""
    for name, function in _FUNCTIONS.items():
        if hasattr(module, name):
            setattr(module, name, _by_store(module, getattr(module, name), function))
    for name, meeting in _MEETINGS.items():
        setattr(module, name, meeting(module, getattr(module, name)))


def _by_store(
    module: ModuleType, theirs: Callable[..., Any], ours: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(theirs)
    def call(*arguments: Any, **keywords: Any) -> Any:
        exchange = _Exchange.of(module, ours.__name__, arguments, keywords)
        return (
            ours(exchange, *arguments, **keywords) if exchange else theirs(*arguments, **keywords)
        )

    return call


def _with_meeting(module: ModuleType, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``barrier``, which takes NCCL's memory and returns when all ranks have come."""

    @wraps(theirs)
    def barrier(*arguments: Any, **keywords: Any) -> Any:
        work = theirs(*arguments, **keywords)
        exchange = _Exchange.of(module, "barrier", arguments, keywords)
        if exchange is not None and work is None:
            exchange.meet()
        return work

    return barrier


def _after_meeting(module: ModuleType, theirs: Callable[..., Any]) -> Callable[..., Any]:
    """``destroy_process_group``, before which all ranks have come.

    With a card none is there before the last exchange of all. Here the rank that keeps the store
    would take it away while another one still sets up NCCL.
    """

    @wraps(theirs)
    def destroy_process_group(group: Any = None) -> Any:
        if group is None and module.is_initialized():
            exchange = _Exchange.of(module, "destroy_process_group", (), {})
            if exchange is not None:
                with suppress(RuntimeError):  # a rank that has failed never comes
                    exchange.meet(_PATIENCE)
        return theirs(group)

    return destroy_process_group


_calls: Counter[tuple[str, object]] = Counter()


class _Exchange:
    """One call of a group whose ranks all make it; the same number on each of them."""

    def __init__(self, module: ModuleType, group: Any, store: Any) -> None:
        self.ranks = int(module.get_world_size(group))
        self.own = int(module.get_rank(group))
        self._module, self._group, self._store = module, group, store
        self._name = str(group.group_name)

    @staticmethod
    def of(
        module: ModuleType, name: str, arguments: Sequence[Any], keywords: dict[str, Any]
    ) -> _Exchange | None:
        """None where gloo carries the objects, or this process is not in the group."""
        place = _PLACE_OF_GROUP[name]
        group = keywords.get("group") or (arguments[place] if len(arguments) > place else None)
        if group is None:
            group = module._get_default_group()
        if group is module.GroupMember.NON_GROUP_MEMBER or module.get_rank(group) < 0:
            return None
        if "gloo" in str(module.get_backend_config(group)).lower():
            return None
        return _Exchange(module, group, module._world.pg_map[group][1])

    def key(self, of: object = "all") -> str:
        """What this call, and no other one, puts its objects under."""
        _calls[self._name, of] += 1
        return f"memprof/{of}/{_calls[self._name, of]}"

    def rank_of(self, rank: int | None, group_rank: int | None) -> int:
        """The rank in the group of one that is given either way; the first of all without."""
        if group_rank is not None:
            return group_rank
        return int(self._module.get_group_rank(self._group, rank or 0))

    def meet(self, patience: timedelta | None = None) -> None:
        """Return when all ranks have called this as often.

        Raises:
            RuntimeError: one did not come before the store's own time was over, or ``patience``.
        """
        key = self.key("meeting")
        self.put(key, self.own, None)
        keys = [f"{key}/{rank}" for rank in range(self.ranks)]
        self._store.wait(keys, *([patience] if patience is not None else []))

    def put(self, key: str, rank: int, obj: object) -> None:
        self._store.set(f"{key}/{rank}", pickle.dumps(obj))

    def get(self, key: str, rank: int) -> Any:
        return pickle.loads(self._store.get(f"{key}/{rank}"))  # noqa: S301 - as torch does it


def _all_gather_object(
    exchange: _Exchange, object_list: MutableSequence[object], obj: object, group: Any = None
) -> None:
    del group
    key = exchange.key()
    exchange.put(key, exchange.own, obj)
    for rank in range(exchange.ranks):
        object_list[rank] = exchange.get(key, rank)


def _gather_object(
    exchange: _Exchange,
    obj: object,
    object_gather_list: MutableSequence[object] | None = None,
    dst: int | None = None,
    group: Any = None,
    group_dst: int | None = None,
) -> None:
    del group
    key = exchange.key()
    exchange.put(key, exchange.own, obj)
    if exchange.own == exchange.rank_of(dst, group_dst) and object_gather_list is not None:
        for rank in range(exchange.ranks):
            object_gather_list[rank] = exchange.get(key, rank)


def _broadcast_object_list(
    exchange: _Exchange,
    object_list: MutableSequence[object],
    src: int | None = None,
    group: Any = None,
    device: object = None,
    group_src: int | None = None,
    **_: object,
) -> None:
    del group, device
    key, root = exchange.key(), exchange.rank_of(src, group_src)
    if exchange.own == root:
        exchange.put(key, root, list(object_list))
    else:
        object_list[:] = exchange.get(key, root)


def _scatter_object_list(
    exchange: _Exchange,
    scatter_object_output_list: MutableSequence[object],
    scatter_object_input_list: Sequence[object] | None = None,
    src: int | None = None,
    group: Any = None,
    group_src: int | None = None,
) -> None:
    del group
    key, root = exchange.key(), exchange.rank_of(src, group_src)
    if exchange.own == root:
        for rank, obj in enumerate(scatter_object_input_list or ()):
            exchange.put(key, rank, obj)
    scatter_object_output_list[0] = exchange.get(key, exchange.own)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "scatter_object_list": _scatter_object_list,
}
_MEETINGS = {"barrier": _with_meeting, "destroy_process_group": _after_meeting}
_PATIENCE = timedelta(seconds=60)
_PLACE_OF_GROUP = {
    "barrier": 0,
    "destroy_process_group": 0,
    "_all_gather_object": 2,
    "_gather_object": 3,
    "_broadcast_object_list": 2,
    "_scatter_object_list": 3,
}
"""Where torch takes the group among the arguments."""
