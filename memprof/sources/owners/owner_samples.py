"""Samples of the addresses that parameters, gradients and optimizer states point at, over time."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from memprof.cpython.signal_errors import guarded_errors
from memprof.sources.cpu.find_storages import SavedTensors, objects_with_tensors, reads_saved
from memprof.sources.guarded_access import plain_attributes
from memprof.sources.loop.loop_watch import Listener, LoopWatch
from memprof.sources.owners.block_lifetimes import GradMode, OwnerSample
from memprof.sources.owners.tensor_owners import (
    MOST_OPTIMIZERS,
    WHOLE,
    Differentiated,
    Owner,
    gradients_of,
    is_plain,
    owned_tensors,
    parts,
    tensors_in,
)
from memprof.sources.tensor_addresses import PlaceOf, StorageAddress
from memprof.trace import Category

__all__ = ["OwnerSamples"]

_MOST = 4096
"""Samples that wait for a drain; further ones are not kept."""


class _Waiting:
    """Samples of one device until they are taken, in one long list.

    A dict for each would lie between the program's tensors, a few hundred bytes in the C library's
    heap, and keep that from using their memory again.
    """

    def __init__(self) -> None:
        self._pairs: list[Any] = []
        """An address, its owner, the next address …"""
        self._moments: list[tuple[int, int, int, dict[str, Any]]] = []
        """Time, where its pairs begin and end, and what else there is."""

    def add(self, time_us: int, owners: Mapping[int, Owner], more: dict[str, Any]) -> None:
        if len(self._moments) < _MOST:
            start = len(self._pairs)  # a signal's handler may have come before the last line
            self._pairs.extend(chain.from_iterable(owners.items()))
            self._moments.append((time_us, start, len(self._pairs), more))

    def samples(self) -> list[OwnerSample]:
        pairs = self._pairs
        return [
            OwnerSample(
                time_us,
                dict(zip(pairs[start:end:2], pairs[start + 1 : end : 2], strict=True)),
                **more,
            )
            for time_us, start, end, more in self._moments
        ]


class OwnerSamples(Listener):
    """Listens at boundaries in a window and notes addresses, about a microsecond for a tensor.

    Gradients are gone by the next drain where ``zero_grad`` drops them, and so are inputs.
    """

    def __init__(self, loop_watch: LoopWatch, place: PlaceOf, *, of_cpu: bool) -> None:
        """``place`` says where a tensor lies; ``of_cpu``: on the CPU are noted, else all others."""
        self.failure = ""
        self._of_cpu = of_cpu
        self._loop_watch = loop_watch
        self._place = place
        self._guard = loop_watch.guard
        self._others = Differentiated(loop_watch.guard)
        self._waiting: dict[str, _Waiting] = defaultdict(_Waiting)
        """By device."""
        self._steps: dict[int, int] = defaultdict(int)
        self._modes: list[GradMode] = []
        self._enabled: dict[str, bool] = {}
        self._is_grad_enabled: Callable[[], bool] = lambda: False

    def start(self) -> None:
        """Listen from now on; may be called again."""
        if self not in self._loop_watch.listeners:
            from torch import is_grad_enabled

            self._is_grad_enabled = is_grad_enabled
            self._loop_watch.listeners.append(self)

    def stop(self) -> None:
        """Listen no more, forget what waits."""
        if self in self._loop_watch.listeners:
            self._loop_watch.listeners.remove(self)
        self._waiting.clear()
        self._steps.clear()
        self._modes.clear()
        self._enabled.clear()

    def take(self) -> dict[str, list[OwnerSample]]:
        """What was seen on each device since the last call; under ``""`` what holds for all."""
        waiting, self._waiting = self._waiting, defaultdict(_Waiting)
        return defaultdict(list, {device: one.samples() for device, one in waiting.items()})

    def take_modes(self) -> list[GradMode]:
        """What is known of gradients being wanted; of what holds now, the next call tells again."""
        modes = self._modes
        self._modes = list({one.root: one for one in modes}.values())
        return modes

    def failed(self) -> None:
        """Memory has run out at this moment, and no event of the recorder says so."""
        self._add("", {}, failed=True)

    def owners(self) -> dict[str, dict[int, Owner]]:
        """Owner by device and address of all that modules and optimizers refer to now."""
        return self._addresses_on(owned_tensors(self._loop_watch, self._others))

    def saved(self) -> dict[str, set[int]] | None:
        """Addresses of what graphs save, by device; None where torch tells nothing or not all.

        It takes some tens of milliseconds.
        """
        if not reads_saved():
            return None
        by_device: dict[str, set[int]] = defaultdict(set)
        with plain_attributes():
            graphs = SavedTensors(objects_with_tensors(), self._guard)
            for device, address in self._guard.within(self._places, graphs):
                by_device[device].add(address)
        return by_device if graphs.complete else None

    def note_all(self) -> None:
        """Note what modules and optimizers refer to at this moment."""
        self._note(owned_tensors(self._loop_watch, self._others))

    # Listener of the loop watch.

    def backward_began(self) -> None:
        """Not noted: the events' own labels tell it."""

    def backward_ended(self) -> None:
        """Not noted: autograd's threads tell it late, if at all."""

    def recompute_ended(self) -> None:
        """What a recomputed forward pass left alive is kept for the backward pass under way."""
        self._add("", {}, recomputed=self._loop_watch.step)

    def forward_ended(self, *, with_gradients: bool) -> None:
        """Not noted."""

    def optimizer_begins(self, optimizer: Any) -> None:
        """Its gradients are where they belong; ``zero_grad`` may drop them before the step ends."""
        self._steps[id(optimizer)] += 1
        is_whole = self._steps[id(optimizer)] <= WHOLE and len(self._steps) <= MOST_OPTIMIZERS
        if is_whole:
            self._note(owned_tensors(self._loop_watch, self._others))
            return
        owner = Owner(Category.GRADIENT, "")
        self._note((owner, one) for one in gradients_of(optimizer, self._guard))

    def outermost_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tensors that go into a model and were not made by one are its input."""
        self._note_mode(self._loop_watch.modules.path(module))
        owner, inputs = Owner(Category.INPUT, ""), list(tensors_in((args, kwargs), self._guard))
        with plain_attributes():
            self._others.see(inputs)
        self._note((owner, tensor) for tensor in inputs)

    def _note_mode(self, root: str) -> None:
        enabled = self._is_grad_enabled()
        if self._enabled.get(root) is not enabled and len(self._modes) < _MOST:
            self._enabled[root] = enabled
            self._modes.append(GradMode(time.time_ns() // 1000, root, enabled))

    def _note(self, owned_tensors: Iterable[tuple[Owner, Any]]) -> None:
        try:
            for device, owners in self._addresses_on(owned_tensors).items():
                self._add(device, owners)
        except guarded_errors() as error:  # the job goes on with less said of its bytes
            self.failure = f"owners were missed: {type(error).__name__}: {error}"

    def _addresses_on(
        self, owned_tensors: Iterable[tuple[Owner, Any]]
    ) -> dict[str, dict[int, Owner]]:
        """Owner by device and address; no code of a tensor's subclass is run for its attributes."""
        by_device: dict[str, dict[int, Owner]] = defaultdict(dict)
        place, of_cpu = self._place, self._of_cpu
        with plain_attributes():
            for owner, tensor in owned_tensors:
                places: Iterable[StorageAddress]
                if not is_plain(tensor):
                    places = self._guard.within(self._places, (tensor,))
                elif of_cpu and not tensor.is_cpu:
                    continue  # as nearly all in a program that uses a device
                else:
                    places = (place(tensor),)
                for device, address in places:
                    if address and (device == "cpu") is of_cpu:
                        by_device[device][address] = owner
        return by_device

    def _places(self, tensor: Any) -> Iterator[StorageAddress]:
        return map(self._place, parts(tensor, self._guard))

    def _add(self, device: str, owners: dict[int, Owner], **more: Any) -> None:
        self._waiting[device].add(time.time_ns() // 1000, owners, more)
