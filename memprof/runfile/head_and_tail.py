"""The two ends of a run file, without what lies between: who wrote it, and what it came to.

So a job's thousand files are read in a second; whole recordings are `loading`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from memprof.errors import FileFormatError
from memprof.records import DeviceSummary, Footer, Header, Interim, StepsRecord
from memprof.runfile.checks import MOST_DEVICES
from memprof.runfile.gzipped import GZIP_MAGIC, inflated
from memprof.runfile.reader import read_records
from memprof.runfile.remote_file import Location

__all__ = ["Ends", "read_ends"]

_HEAD = 1 << 16
"""The header is written again, within the first lines, once torch and its devices are known."""
_TAILS = (1 << 16, 1 << 20, 1 << 23)
"""Bytes from the end that are searched, one after the other: a footer is the last line, an interim
summary may lie before some megabytes of a window's events."""
_LATEST_US = 1 << 57
_MOST_BYTES = 1 << 62
_MOST_RANKS = 1 << 31
_STARTS = (b'{"kind":"footer"', b'{"kind":"interim"', b'{"kind":"steps"')
_HEADER = b'{"kind":"header"'
_DECODER = msgspec.json.Decoder(Footer | Interim | StepsRecord)
_UNREADABLE = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)


@dataclass(frozen=True, slots=True)
class Ends:
    """What a run file says of itself."""

    header: Header
    summary: Footer | None
    """Its footer; of a job that was killed or still runs, the last interim summary near the end,
    with the peaks of the steps after it."""
    is_closed: bool
    """The job wrote a footer."""


def read_ends(path: Location) -> Ends:
    """Who wrote a run file and what it came to.

    Raises:
        FileFormatError: no run file, or written by a newer major version.
    """
    header = next(read_records(path))
    assert isinstance(header, Header)
    try:
        head, tails = _head_and_tails(path)
        header = _last_header(head) or header
        for tail in tails:
            summary = _last_summary(tail)
            if summary is not None:
                return Ends(_sound_header(header), *summary)
    except OSError as error:
        raise FileFormatError(
            f"cannot read {path}: {error.strerror or error}", "name a run file"
        ) from error
    return Ends(_sound_header(header), None, is_closed=False)


def _head_and_tails(path: Location) -> tuple[bytes, Iterator[bytes]]:
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if head.startswith(GZIP_MAGIC):
        head, tail = _inflated_ends(path)
        return head, iter((tail,))
    return head, _tails(path)


def _tails(path: Location) -> Iterator[bytes]:
    """Ever more of the file's end, up to the whole file."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        for length in _TAILS:
            file.seek(max(0, size - length))
            yield file.read(length)
            if length >= size:
                return


def _inflated_ends(path: Location) -> tuple[bytes, bytes]:
    """Of a gzip file, which can be read from its beginning only."""
    head, tail = b"", b""
    with path.open("rb") as file:
        for part in inflated(file, path.stat().st_size, whole=False):
            head = head or part[:_HEAD]
            tail = tail[-_TAILS[-1] :] + part
    return head, tail


def _last_header(head: bytes) -> Header | None:
    header = None
    for line in head.split(b"\n")[:-1]:
        text = line.strip().strip(b"[,")
        if text.startswith(_HEADER):
            try:
                header = msgspec.json.decode(text, type=Header)
            except _UNREADABLE:  # damage in the middle, which `loading` tells of
                continue
    return header


def _last_summary(tail: bytes) -> tuple[Footer, bool] | None:
    """The last summary in a file's end, and whether it is its footer."""
    since: list[StepsRecord] = []
    for line in reversed(tail.split(b"\n")):
        text = line.strip().strip(b",")
        if not text.startswith(_STARTS):
            continue
        try:
            record = _DECODER.decode(text)
        except _UNREADABLE:  # torn, or damaged: an earlier one may do
            continue
        if isinstance(record, StepsRecord):
            since.append(record)
        elif isinstance(record, Footer):
            return _sound(record), True
        else:
            return _sound(_up_to_date(_as_footer(record), since)), False
    return None


def _up_to_date(summary: Footer, since: Iterable[StepsRecord]) -> Footer:
    """With the peaks of steps that ended after it was written."""
    peaks: dict[str, tuple[int, int]] = {}
    ended_us, last = summary.ended_us, summary.steps - 1
    for record in since:
        rows, (allocated, reserved) = record.steps, peaks.get(record.device, (-1, -1))
        allocated = max([allocated, *rows.peak_allocated, *rows.allocated_max])
        peaks[record.device] = allocated, max([reserved, *rows.peak_reserved, *rows.reserved])
        ended_us, last = max([ended_us, *rows.end_us]), max([last, *rows.last])
    devices = [_raise_peaks(one, *peaks.get(one.device, (-1, -1))) for one in summary.devices]
    return msgspec.structs.replace(
        summary, devices=devices, ended_us=ended_us, steps=max(summary.steps, last + 1)
    )


def _raise_peaks(device: DeviceSummary, allocated: int, reserved: int) -> DeviceSummary:
    return msgspec.structs.replace(
        device,
        peak_allocated_bytes=max(device.peak_allocated_bytes, allocated),
        peak_reserved_bytes=max(device.peak_reserved_bytes, reserved),
    )


def _as_footer(record: Interim) -> Footer:
    return Footer(
        ended_us=record.time_us,
        steps=record.steps,
        devices=record.devices,
        overhead_us=record.overhead_us,
        status="",
        step_us=record.step_us,
    )


def _sound_header(header: Header) -> Header:
    """With figures that are possible; a file may be made to do harm."""
    created = header.created_us if 0 <= header.created_us < _LATEST_US else 0
    rank = header.rank if 0 <= header.rank < _MOST_RANKS else -1
    size = header.world_size if 1 <= header.world_size < _MOST_RANKS else 1
    return msgspec.structs.replace(header, created_us=created, rank=rank, world_size=size)


def _sound(footer: Footer) -> Footer:
    """Likewise; a device with an impossible figure is left out."""
    devices = [one for one in footer.devices[:MOST_DEVICES] if _is_sound(one)]
    return msgspec.structs.replace(
        footer,
        devices=devices,
        ended_us=footer.ended_us if 0 <= footer.ended_us < _LATEST_US else 0,
        steps=max(footer.steps, 0),
        step_us=footer.step_us if 0 <= footer.step_us < _LATEST_US else -1,
    )


def _is_sound(device: DeviceSummary) -> bool:
    figures = (
        device.allocated_bytes,
        device.reserved_bytes,
        device.peak_allocated_bytes,
        device.peak_reserved_bytes,
        device.total_bytes,
        device.outside_bytes,
        device.ooms,
    )
    rate = device.bytes_per_step or 0.0
    return (
        all(-1 <= figure < _MOST_BYTES for figure in figures)
        and math.isfinite(rate)
        and abs(rate) < _MOST_BYTES
    )
