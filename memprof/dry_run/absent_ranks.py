"""One rank of a job whose other ranks are not there: nobody is waited for.

NCCL itself is the library's (``runtime/nccl.c``), above which torch's own ProcessGroupNCCL runs as
on a card. torch has a process group named "fake" for one rank alone, but it has neither the streams
nor the tensors that ProcessGroupNCCL flattens lists into, and these are bytes of the card. What is
taken from torch here is the meeting of the ranks, which would wait for the others for ever: the
store, and gloo's connections, whose place "fake" takes, as nothing of gloo lies on the card.

Every other rank is taken to hold what this one holds. Where this rank would be given a Python
object by another one it keeps what it had, and the report names the line.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from functools import wraps
from types import ModuleType
from typing import Any

from memprof.cpython.import_hook import ImportWatch
from memprof.dry_run.asking import frame_of_the_program
from memprof.dry_run.objects_by_store import exchange_objects_by_store

__all__ = ["ABSENT", "lines_without_sender", "prepare"]

ABSENT = "MEMPROF_DRY_RUN_ABSENT"
"""Set to 1 where this process is the only rank of its job that is there."""
_C10D = "torch.distributed.distributed_c10d"
_RENDEZVOUS = "torch.distributed.rendezvous"
_UNIQUE_ID_BYTES = 128

_without_sender: dict[tuple[str, int], str] = {}


def prepare(environment: Mapping[str, str] = os.environ) -> None:
    """Make torch.distributed ready for NCCL's stand-in, once it is imported; safe to call twice."""
    if _prepared:
        return
    _prepared.append(True)
    if environment.get(ABSENT) == "1":
        _when_imported(_RENDEZVOUS, _replace_rendezvous)
        _when_imported(_C10D, _replace_meeting)
    else:
        _when_imported(_C10D, _replace_color)
        _when_imported(_C10D, exchange_objects_by_store)


_prepared: list[bool] = []


def lines_without_sender() -> Iterator[str]:
    """Where this rank would have been given objects by ranks that are not there, in words."""
    yield from _without_sender.values()


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    module = sys.modules.get(name)
    if module is not None:
        then(module)
    else:
        ImportWatch(name, lambda: then(sys.modules[name])).start()


# -- the store and the rendezvous ----------------------------------------------------------------


def _replace_rendezvous(module: ModuleType) -> None:
    handlers: dict[str, Callable[..., Any]] = module._rendezvous_handlers
    for scheme in ("env", "tcp", "file"):
        handlers[scheme] = lambda url, **_: _rendezvous(module, url)


def _rendezvous(module: ModuleType, url: str) -> Iterator[tuple[object, int, int]]:
    """As torch's own do: the store, the rank, the number of ranks; those in the URL come first."""
    query = module._query_to_dict(module.urlparse(url).query)
    rank = int(query.get("rank", os.environ.get("RANK", "0")))
    ranks = int(query.get("world_size", os.environ.get("WORLD_SIZE", "1")))
    yield _store(), rank, ranks


def _store() -> object:
    """A store in which every key has been set by whoever should have set it."""
    base: Any = importlib.import_module("torch.distributed").Store

    class Store(base):  # type: ignore[misc]  # torch is not imported for types here
        """Holds what this rank sets; else the bytes of an NCCL id, which nobody reads."""

        def __init__(self) -> None:
            super().__init__()
            self._values: dict[str, bytes] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self._values[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            return self._values.get(key, bytes(_UNIQUE_ID_BYTES))

        def compare_set(self, key: str, expected: str | bytes, desired: str | bytes) -> bytes:
            was = expected.encode() if isinstance(expected, str) else bytes(expected)
            if self._values.get(key, was) == was:
                self.set(key, desired)
            return self._values[key]

        def add(self, key: str, number: int) -> int:
            total = int(self._values.get(key, b"0")) + number
            self._values[key] = str(total).encode()
            return total

        def append(self, key: str, value: str | bytes) -> None:
            more = value.encode() if isinstance(value, str) else bytes(value)
            self._values[key] = self._values.get(key, b"") + more

        def check(self, keys: Sequence[str]) -> bool:
            return all(key in self._values for key in keys)

        def wait(self, keys: Sequence[str], timeout: object = None) -> None:
            """Nobody is waited for."""

        def num_keys(self) -> int:
            return len(self._values)

        def delete_key(self, key: str) -> bool:
            return self._values.pop(key, None) is not None

        def multi_get(self, keys: Sequence[str]) -> list[bytes]:
            return [self.get(key) for key in keys]

        def multi_set(self, keys: Sequence[str], values: Sequence[bytes]) -> None:
            for key, value in zip(keys, values, strict=True):
                self.set(key, value)

        def has_extended_api(self) -> bool:
            return True

        def clone(self) -> Store:
            return self

    # The names that torch's C++ looks for where they are not those of its Python interface.
    Store.compareSet = Store.compare_set
    Store.getNumKeys = Store.num_keys
    Store.deleteKey = Store.delete_key
    Store.multiGet = Store.multi_get
    Store.multiSet = Store.multi_set
    Store.hasExtendedApi = Store.has_extended_api
    store = Store()
    _STORES.append(store)  # torch's C++ keeps its half alone, and calls into this one
    return store


_STORES: list[object] = []


# -- groups --------------------------------------------------------------------------------------


def _replace_meeting(module: ModuleType) -> None:
    _replace_color(module)
    _replace_gloo(module)
    for name, function in _OBJECTS.items():
        if hasattr(module, name):
            theirs = getattr(module, name)
            setattr(module, name, wraps(theirs)(_bind(function, module)))


def _bind(function: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return function(module, *arguments, **keywords)

    return call


def _replace_gloo(module: Any) -> None:
    """Groups of gloo become torch's "fake" ones, which connect to nobody."""
    configuration = module.BackendConfig
    begin = configuration.__init__

    @wraps(begin)
    def begin_without_gloo(self: Any, backend: Any) -> None:
        begin(self, backend)
        for device, name in self.device_backend_map.items():
            if str(name) == "gloo":
                importlib.import_module("torch.testing._internal.distributed.fake_pg")
                self.device_backend_map[device] = module.Backend("fake")
                # A group of gloo alone is looked for by gloo's type, from torch 2.15 on.
                types = module.Backend.backend_type_map
                types["fake"] = types["gloo"]

    configuration.__init__ = begin_without_gloo
    if hasattr(module, "split_group"):
        module.split_group = _split_by_new_group(module)


def _split_by_new_group(module: ModuleType) -> Callable[..., Any]:
    """torch's split, which "fake" has not in every version: there a new group of the same ranks.

    NCCL's part of the new group is split from the old one's communicator all the same.
    """
    split = module.split_group

    @wraps(split)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *arguments: Any, **keywords: Any
    ) -> Any:
        """The group of this rank's share of ``split_ranks``, as torch's own function gives it."""
        whole = parent_pg if parent_pg is not None else module._get_default_group()
        names = {module.get_backend(whole), *str(module.get_backend_config(whole)).split(",")}
        if not split_ranks or not any("fake" in name for name in names):
            return split(parent_pg, split_ranks, *arguments, **keywords)
        own = module.get_rank(whole)
        ranks = next((group for group in split_ranks if own in group), None)
        if ranks is None:
            return module.GroupMember.NON_GROUP_MEMBER
        members = [module.get_global_rank(whole, rank) for rank in ranks]
        passed_on = {
            name: keywords[name] for name in ("timeout", "group_desc") if keywords.get(name)
        }
        return module.new_group(members, **passed_on)

    return split_group


def _replace_color(module: Any) -> None:
    """Tell the library the size of each list of ranks before torch makes a group of it."""
    tell = getattr(ctypes.CDLL(None), "memprof_dry_run_color", None)
    if tell is None:
        return

    def tell_sizes(ranks: Sequence[int]) -> None:
        # Versions of torch make colors in one of these ways.
        for color in (module._process_group_color(ranks), color_in_cpp(ranks), ranks[0]):
            tell(ctypes.c_int(color), ctypes.c_int(len(ranks)))

    make = module._new_process_group_helper

    @wraps(make)
    def new_process_group_helper(
        group_size: int, group_rank: int, global_ranks_in_group: Any, *others: Any, **keywords: Any
    ) -> Any:
        if global_ranks_in_group:
            tell_sizes(global_ranks_in_group)
        return make(group_size, group_rank, global_ranks_in_group, *others, **keywords)

    module._new_process_group_helper = new_process_group_helper
    if not hasattr(module, "split_group"):
        return
    split = module.split_group

    @wraps(split)
    def split_group(
        parent_pg: Any = None, split_ranks: Any = None, *o: Any, **keywords: Any
    ) -> Any:
        """torch's own, after the library has the size of the group that this rank goes to."""
        own = module.get_rank(parent_pg)
        for ranks in split_ranks or ():
            if own in ranks:
                tell_sizes(ranks)
        return split(parent_pg, split_ranks, *o, **keywords)

    module.split_group = split_group


def color_in_cpp(ranks: Sequence[int]) -> int:
    """The color that torch's C++ makes of a list of ranks (``genNcclSplitColor``)."""
    seed = 0
    for rank in ranks:
        mixed = rank + 0x9E3779B9 + (seed << 6) + (seed >> 2)
        seed ^= mixed & 0xFFFFFFFFFFFFFFFF
    signed = seed - (1 << 64) if seed >> 63 else seed
    return abs(signed) % 0x7FFFFFFF


# -- objects, which torch would send as tensors whose size another rank knows ----------------------


def _copies(obj: object, number: int) -> list[object]:
    pickled = pickle.dumps(obj)
    return [pickle.loads(pickled) for _ in range(number)]  # noqa: S301 - pickled a line above


def _all_gather_object(
    module: ModuleType, object_list: MutableSequence[object], obj: object, group: Any = None
) -> None:
    for place, copy in enumerate(_copies(obj, module.get_world_size(group))):
        object_list[place] = copy


def _gather_object(
    module: ModuleType,
    obj: object,
    object_gather_list: MutableSequence[object] | None = None,
    dst: int | None = None,  # noqa: ARG001 - torch's parameters
    group: Any = None,
    group_dst: int | None = None,  # noqa: ARG001
) -> None:
    if object_gather_list is not None:
        _all_gather_object(module, object_gather_list, obj, group)


def _broadcast_object_list(
    module: ModuleType,
    object_list: MutableSequence[object],  # noqa: ARG001 - it is left as it is
    src: int | None = None,
    group: Any = None,
    device: object = None,  # noqa: ARG001
    group_src: int | None = None,
    **_: object,
) -> None:
    own = module.get_rank(group) if group_src is not None else module.get_rank()
    if own != (group_src if group_src is not None else src or 0):
        _note_line("broadcast_object_list")


def _scatter_object_list(
    module: ModuleType,
    scatter_object_output_list: MutableSequence[object],
    scatter_object_input_list: Sequence[object] | None = None,
    src: int | None = None,  # noqa: ARG001
    group: Any = None,
    group_src: int | None = None,  # noqa: ARG001
) -> None:
    if scatter_object_input_list:
        (scatter_object_output_list[0],) = _copies(
            scatter_object_input_list[module.get_rank(group)], 1
        )
    else:
        _note_line("scatter_object_list")


def _send_object_list(module: ModuleType, *_: object, **__: object) -> None:
    """Nobody is there to receive."""


def _recv_object_list(
    module: ModuleType,  # noqa: ARG001
    object_list: MutableSequence[object],  # noqa: ARG001
    src: int | None = None,
    *_: object,
    **__: object,
) -> int:
    _note_line("recv_object_list")
    return src or 0


_OBJECTS: Mapping[str, Callable[..., Any]] = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "scatter_object_list": _scatter_object_list,
    "send_object_list": _send_object_list,
    "recv_object_list": _recv_object_list,
}


def _note_line(function: str) -> None:
    frame = frame_of_the_program(sys._getframe(1))
    if frame is None:
        return
    where = (frame.f_code.co_filename, frame.f_lineno)
    _without_sender.setdefault(
        where,
        f"{where[0]}:{where[1]} in {frame.f_code.co_name} would be given objects by another rank "
        f"({function}): that rank is not there, and what was there before is kept",
    )
