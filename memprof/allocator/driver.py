"""Where segments come from: a card of a given size, addresses made up or of a trace."""

from __future__ import annotations

from bisect import bisect_left, insort

from memprof.allocator.settings import NO_LIMIT

__all__ = ["FIRST_ADDRESS", "Driver"]

FIRST_ADDRESS = 0x7000_0000_0000
"""Segments start here: in the range where CUDA puts them, and round enough to look made up."""

_ALIGNMENT = 2 << 20
_RESERVATIONS = 0x7800_0000_0000
_FARTHEST = 1 << 40
"""Bytes that a reservation surely stays under."""


class Driver:
    """A device's memory as ``cudaMalloc`` sees it: a capacity, and addresses.

    Addresses are the lowest hole that fits, or the next one announced by `expect` (a replay
    announces the address that the trace recorded).
    """

    __slots__ = ("_expected", "_holes", "_reserved_end", "_top", "_views", "capacity", "used")

    def __init__(self, capacity: int = NO_LIMIT) -> None:
        """``capacity`` is what this process may hold in all, in bytes."""
        self.capacity = capacity
        self.used = 0
        self._holes: list[tuple[int, int]] = []  # (address, size), by address
        self._top = FIRST_ADDRESS
        self._reserved_end = _RESERVATIONS
        self._views: list[tuple[int, int]] = []  # reservations given back: (size, address)
        self._expected: int | None = None

    def expect(self, address: int | None) -> None:
        """The address that the next allocation or reservation returns."""
        self._expected = address

    def allocate(self, size: int) -> int | None:
        """``cudaMalloc``: an address, or None where the card is full."""
        if self.used + size > self.capacity:
            return None
        self.used += size
        if self._expected is not None:
            address, self._expected = self._expected, None
            return address
        return self._lowest(size)

    def occupy(self, address: int, size: int) -> None:
        """Count memory in that was there before, and hand out no address below its end."""
        self.used += size
        end = -(-(address + size) // _ALIGNMENT) * _ALIGNMENT
        if FIRST_ADDRESS <= address < _RESERVATIONS:
            self._top = max(self._top, end)
        elif address >= _RESERVATIONS:
            # One reservation reaches farther than what is mapped of it.
            self._reserved_end = max(self._reserved_end, end + _FARTHEST)

    def _lowest(self, size: int) -> int:
        for index, (address, room) in enumerate(self._holes):
            if room >= size:
                if room == size:
                    del self._holes[index]
                else:
                    self._holes[index] = (address + size, room - size)
                return address
        address, self._top = self._top, self._top + -(-size // _ALIGNMENT) * _ALIGNMENT
        return address

    def release(self, address: int, size: int) -> None:
        """``cudaFree``."""
        self.used -= size
        if not FIRST_ADDRESS <= address < self._top:
            return  # an address of a trace: not ours to hand out again
        index = bisect_left(self._holes, (address, 0))
        if index < len(self._holes) and self._holes[index][0] == address + size:
            size += self._holes.pop(index)[1]
        if index and sum(self._holes[index - 1]) == address:
            address, before = self._holes.pop(index - 1)
            size += before
        insort(self._holes, (address, size))

    def reserve(self, size: int) -> int:
        """Reserve addresses without memory behind them (an expandable segment)."""
        if self._expected is not None:
            address, self._expected = self._expected, None
            return address
        for index, (room, address) in enumerate(self._views):
            if room == size:
                del self._views[index]
                return address
        address, self._reserved_end = self._reserved_end, self._reserved_end + size
        return address

    def unreserve(self, address: int, size: int) -> None:
        """Give reserved addresses back; nothing is mapped behind them any more."""
        if address >= _RESERVATIONS and address + size <= self._reserved_end:
            self._views.append((size, address))

    def map(self, size: int) -> bool:
        """Put memory behind ``size`` reserved bytes; False where the card is full."""
        if self.used + size > self.capacity:
            return False
        self.used += size
        return True

    def unmap(self, size: int) -> None:
        """Take the memory away again."""
        self.used -= size
