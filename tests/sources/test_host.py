"""Host readings against what the process itself knows, and a process file system made for the test."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys

import psutil
import pytest

from memprof.sources.host import HostSource


@pytest.fixture
def source():
    host = HostSource()
    host.open()
    yield host
    host.close()


def test_a_reading_has_the_process_the_machine_and_pythons_heap(source):
    (reading,) = source.read()
    assert reading.device == "host"
    assert reading.values["total"] == psutil.virtual_memory().total
    assert 0 < reading.values["available"] < reading.values["total"]
    assert reading.values["rss"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    assert reading.values["python_blocks_count"] > 1000


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell shared memory")
def test_a_file_that_is_mapped_counts_as_shared(source, tmp_path):
    (tmp_path / "data").write_bytes(bytes(64 << 20))
    before = source.read()[0].values
    with (
        (tmp_path / "data").open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        touched = sum(mapped[:: mmap.PAGESIZE])
        after = source.read()[0].values
    assert touched == 0
    assert after["shared"] - before["shared"] > 60 << 20
    assert after["rss"] - after["shared"] - (before["rss"] - before["shared"]) < 8 << 20


def test_memory_that_the_process_takes_shows(source):
    gc.collect()  # what other tests have left is not to be given back meanwhile
    page = os.urandom(1 << 20)
    before = source.read()[0].values["rss"]
    # from the system, as an allocator may have as much left of what other tests took
    with mmap.mmap(-1, 64 << 20) as kept:
        for _ in range(64):
            kept.write(page)
        assert source.read()[0].values["rss"] - before > 60 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list children cheaply")
def test_children_are_counted_while_they_live(source):
    before = source.read()[0].values["children_rss"]
    child = subprocess.Popen(
        [sys.executable, "-c", "print('go', flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdout.readline() == b"go\n"
    during = source.read()[0].values["children_rss"]
    child.communicate(b"\n")
    assert during - before > 1 << 20
    assert source.read()[0].values["children_rss"] <= before


def test_without_a_process_file_system_children_are_not_known(tmp_path):
    host = HostSource(proc=str(tmp_path))
    host.open()
    values = host.read()[0].values
    assert values["children_rss"] is None
    assert values["rss"] > 0


def test_a_closed_source_reads_nothing(source):
    source.close()
    assert source.read() == ()


FREED = """
import ctypes
from memprof.sources.host import HostSource
source = HostSource()
source.open()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [libc.malloc(64 << 10) for _ in range(512)]
before = source.read()[0].values["heap_free"]
for block in blocks[::2]:
    libc.free(block)
print(source.read()[0].values["heap_free"] - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="glibc tells, from 2.33 on")
def test_what_is_freed_within_the_heap_is_told_apart():
    """Blocks below the size that is mapped apart; those between them keep the heap from shrinking.

    In a process of its own: a heap in many pieces takes long to tell, and is then not asked again.
    """
    run = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    assert int(run.stdout) >= 255 * (64 << 10)
