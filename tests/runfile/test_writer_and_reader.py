"""Run files are valid JSON when closed, and give back every flushed record whenever the job dies."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memprof.errors import FileFormatError, MemprofError
from memprof.records import SCHEMA_VERSION, Finding, Footer, Header, Note, Record
from memprof.runfile import writer as writing
from memprof.runfile.reader import Damage, decode_events, decode_state, read_records
from memprof.runfile.writer import RunWriter, encode_state, encode_trace
from memprof.testing import TraceBuilder, run_records, write_run
from memprof.trace import Events, Trace
from tests.files import write_anew

HEADER = Header(schema=SCHEMA_VERSION, created_us=1)


def trace() -> Trace:
    return TraceBuilder().existing(1024, "w").alloc(4096, "x").free("x").build()


def records(path: Path) -> list[Record | Damage]:
    return list(read_records(path))


def whole(path: Path) -> list[Record]:
    return [record for record in records(path) if not isinstance(record, Damage)]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz", "new/folder/run.json"])
def test_a_closed_file_is_valid_json_and_reads_back_equal(tmp_path: Path, name: str) -> None:
    path = write_run(tmp_path / name, trace(), more=[Note("nvml", "not here")])

    text = gzip.decompress(path.read_bytes()) if name.endswith(".gz") else path.read_bytes()
    parsed = json.loads(text)
    assert [record["kind"] for record in parsed][:2] == ["header", "tables"]
    assert records(path) == run_records(trace(), more=[Note("nvml", "not here")])


def is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line.rstrip(b",")), dict)
    except ValueError:
        return False


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_cut_off_at_any_byte_every_whole_record_comes_back_and_none_wrong(
    tmp_path: Path, name: str
) -> None:
    content = write_run(tmp_path / name, trace(), more=[Note("a", "é{},\n]")]).read_bytes()
    expected = run_records(trace(), more=[Note("a", "é{},\n]")])
    path = tmp_path / f"cut-{name}"
    for length in range(len(content) + 1):
        write_anew(path, content[:length])
        text = content[:length]
        if name.endswith(".gz"):
            text = zlib.decompressobj(wbits=31).decompress(text)
        complete = sum(map(is_record, text.split(b"\n")))
        if not complete:
            with pytest.raises(FileFormatError):
                records(path)
            continue
        assert whole(path) == expected[:complete]
        torn = [r for r in records(path) if isinstance(r, Damage)]
        assert all(damage.torn for damage in torn)
        assert len(torn) <= 1


CHILD = """
import sys
from memprof.records import SCHEMA_VERSION, Header, Note
from memprof.runfile.writer import RunWriter
writer = RunWriter(sys.argv[1], Header(schema=SCHEMA_VERSION, created_us=1))
number = 0
while True:
    for _ in range(int(sys.argv[2])):
        writer.write(Note("child", "x" * (number % 300), time_us=number))
        number += 1
    writer.flush()
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
"""


def killed_writer(path: Path, batch: int, lines: int) -> int:
    """How many notes a writer had acknowledged as flushed when it was killed."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(batch)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    for _ in range(lines):
        child.stdout.readline()
    child.kill()
    acknowledged = child.stdout.read().split()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL
    return int(acknowledged[-1]) if acknowledged else lines * batch


FORKED = 20


def forked_writer(path: Path, batch: int, lines: int) -> int:
    """The same without the start of an interpreter: a fork of this one writes until it is killed."""
    receive, send = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover - dies by SIGKILL
        os.close(receive)
        writer, number = RunWriter(path, HEADER), 0
        while True:
            for _ in range(batch):
                writer.write(Note("child", "x" * (number % 300), time_us=number))
                number += 1
            writer.flush()
            os.write(send, f"{number}\n".encode())
    os.close(send)
    with os.fdopen(receive) as pipe:
        for _ in range(lines):
            pipe.readline()
        os.kill(child, signal.SIGKILL)
        acknowledged = pipe.read().split()
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    return int(acknowledged[-1]) if acknowledged else lines * batch


@pytest.mark.parametrize("seed", range(100))
def test_a_writer_that_is_killed_loses_nothing_that_it_flushed(tmp_path: Path, seed: int) -> None:
    choose = random.Random(seed)
    path = tmp_path / choose.choice(["run.json", "run.json.gz"])
    writer = killed_writer if seed % FORKED == 0 else forked_writer
    flushed = writer(path, choose.choice([1, 3, 50]), choose.randrange(1, 40))

    found = whole(path)
    assert found[0] == HEADER
    assert len(found) - 1 >= flushed
    for number, record in enumerate(found[1:]):
        assert record == Note("child", "x" * (number % 300), time_us=number)


def test_a_full_disk_ends_recording_and_never_raises() -> None:
    writer = RunWriter("/dev/full", HEADER)

    assert isinstance(writer.failure, OSError)
    for _ in range(3):
        writer.write(Note("a", "b"))
        writer.flush()
    writer.close(Footer(ended_us=1))
    writer.close()
    assert writer.failure.strerror == "No space left on device"


FILE_LIMIT = """
import resource, sys
from memprof.records import SCHEMA_VERSION, Footer, Header, Note
from memprof.runfile.writer import RunWriter
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
writer = RunWriter(sys.argv[1], Header(schema=SCHEMA_VERSION, created_us=1))
for number in range(1000):
    writer.write(Note("a", "x" * 50, time_us=number))
    if number % 7 == 0:
        writer.flush()
writer.close(Footer(ended_us=1))
print(type(writer.failure).__name__, writer.failure.errno)
"""


def test_a_disk_that_fills_up_leaves_a_file_that_reads_up_to_there(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    child = subprocess.run(
        [sys.executable, "-c", FILE_LIMIT, str(path)], capture_output=True, text=True, check=True
    )
    assert child.stdout.split()[0] == "OSError"
    assert path.stat().st_size == 10_000

    *notes, last = records(path)[1:]
    assert [note.time_us for note in notes if isinstance(note, Note)] == list(range(len(notes)))
    assert len(notes) > 90
    assert isinstance(last, Damage)


class PartWriter:
    """Takes three bytes at a time, as a system call may."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def write(self, data: memoryview) -> int:
        return int(self.file.write(data[:3]))

    def close(self) -> None:
        self.file.close()


def test_a_write_that_takes_a_part_is_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.json"
    whole = Path.open

    def in_parts(self: Path, *args: Any, **kwargs: Any) -> Any:
        file = whole(self, *args, **kwargs)
        return PartWriter(file) if self == path and args[:1] == ("wb",) else file

    monkeypatch.setattr(Path, "open", in_parts)
    writer = RunWriter(path, HEADER)
    writer.write(Note("a", "b" * 100))
    writer.close(Footer(ended_us=1))

    assert records(tmp_path / "run.json") == [HEADER, Note("a", "b" * 100), Footer(ended_us=1)]


def test_a_file_system_of_its_own_may_raise_what_it_likes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def write(self, data: bytes) -> None:
            raise KeyError("no such bucket")

        def flush(self) -> None: ...

        def close(self) -> None:
            raise RuntimeError("closed already")

    monkeypatch.setattr("memprof.runfile.writer.create_sink", lambda _: Broken())
    writer = RunWriter(tmp_path / "run.json", HEADER)
    writer.write(Note("a", "b"))
    writer.close()

    assert isinstance(writer.failure, KeyError)


def test_a_forked_child_writes_nothing_into_its_parents_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes, goes_on, create = threading.Event(), threading.Event(), writing.create_sink

    class Slow:
        """Holds the thread that writes, and with it the writer's lock, once it is told to."""

        def __init__(self, path: str) -> None:
            self.file, self.is_slow = create(path), False
            self.flush, self.close = self.file.flush, self.file.close

        def write(self, data: bytes, /) -> None:
            if self.is_slow:
                writes.set()
                goes_on.wait()
            self.file.write(data)

    sinks: list[Slow] = []
    monkeypatch.setattr(writing, "create_sink", lambda path: sinks.append(Slow(path)) or sinks[0])
    writer = RunWriter(tmp_path / "run.json", HEADER)
    writer.write(Note("parent", "before"))
    sinks[0].is_slow = True
    thread = threading.Thread(target=writer.flush)
    thread.start()
    writes.wait()
    child = os.fork()
    if not child:  # pragma: no cover - another process
        writer.write(Note("child", "no"))
        writer.flush()
        writer.close(Footer(ended_us=1))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    goes_on.set()
    thread.join()
    writer.close()

    assert records(tmp_path / "run.json") == [HEADER, Note("parent", "before")]


def test_threads_never_tear_one_anothers_records(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run.json", HEADER)

    def write(name: str) -> None:
        for number in range(500):
            writer.write(Note(name, "x" * number, time_us=number))
            if number % 50 == 0:
                writer.flush()

    threads = [threading.Thread(target=write, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()

    notes = [r for r in records(tmp_path / "run.json") if isinstance(r, Note)]
    assert len(notes) == 2000
    for i in range(4):
        assert [n.time_us for n in notes if n.source == f"t{i}"] == list(range(500))


def test_text_that_is_no_unicode_is_written_as_far_as_it_can_be(tmp_path: Path) -> None:
    header = Header(
        schema=SCHEMA_VERSION, created_us=1, argv=["caf\udce9.py"], options={"p": Path("x")}
    )
    writer = RunWriter(tmp_path / "run.json", header)
    writer.write(Note("a", "\ud800"))
    writer.close()

    read, note = records(tmp_path / "run.json")
    assert isinstance(read, Header)
    assert read.argv == ["caf?.py"]
    assert "x" in str(read.options["p"])
    assert note == Note("a", "?")


def test_a_record_that_json_cannot_hold_is_noted_and_does_not_raise(tmp_path: Path) -> None:
    endless: list[object] = []
    endless.append(endless)
    writer = RunWriter(tmp_path / "run.json", HEADER)
    writer.write(Finding("oom", details={"x": endless}))
    writer.write(Finding("oom", details={"x": object()}))
    writer.close()

    _, note, finding = records(tmp_path / "run.json")
    assert isinstance(note, Note)
    assert "could not be written" in note.message
    assert isinstance(finding, Finding)
    assert "object" in str(finding.details["x"])


def test_a_file_that_cannot_be_created_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "run.json", "/proc/nowhere/run.json"):
        with pytest.raises(MemprofError, match="cannot write"):
            RunWriter(path, HEADER)
    with pytest.raises(MemprofError):
        RunWriter("nosuchprotocol://x/run.json", HEADER)


def test_events_and_states_survive_the_way_through_their_records() -> None:
    given = trace()
    events = decode_events(encode_trace("cuda:0", 0, 0, given.events))
    assert given.end is not None
    state = decode_state(encode_state("cuda:0", 0, "end", given.end))

    for name in Events.names():
        assert getattr(events, name).tolist() == getattr(given.events, name).tolist(), name
    for part in ("segments", "blocks"):
        for name in getattr(state, part).names():
            expected = getattr(getattr(given.end, part), name)
            assert np.array_equal(getattr(getattr(state, part), name), expected), name


_WRITES_WITHOUT_ORJSON = """
import sys
from pathlib import Path

sys.modules["orjson"] = None  # as where it is not installed
from memprof.testing import write_run
from tests.runfile.test_writer_and_reader import trace

write_run(Path(sys.argv[1]), trace())
"""


def test_a_file_is_the_same_to_the_byte_where_columns_are_written_as_lists(tmp_path: Path) -> None:
    with_arrays = write_run(tmp_path / "arrays.json", trace())
    with_lists = tmp_path / "lists.json"
    command = [sys.executable, "-c", _WRITES_WITHOUT_ORJSON, str(with_lists)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    assert with_lists.read_bytes() == with_arrays.read_bytes()
    assert b'"action":[' in with_arrays.read_bytes()


def lines(*more: str, schema: str = str(list(SCHEMA_VERSION))) -> str:
    return f'[\n{{"kind":"header","schema":{schema},"created_us":1}}' + "".join(
        f",\n{line}" for line in more
    )


def test_kinds_that_are_not_known_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(
        lines('{"kind":"hologram","x":1}', '{"kind":"note","source":"a","message":"b"}')
    )
    assert records(tmp_path / "r") == [HEADER, Note("a", "b")]


def test_a_newer_minor_version_reads_with_its_new_fields_ignored(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(
        lines('{"kind":"note","source":"a","message":"b","new":[1]}', schema="[1,99]")
    )
    assert records(tmp_path / "r")[1:] == [Note("a", "b")]


def test_a_newer_major_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(lines(schema="[2,0]").replace("created_us", "born"))
    with pytest.raises(FileFormatError, match=r"schema version 2\.0") as caught:
        records(tmp_path / "r")
    assert "upgrade" in caught.value.hint


def test_a_line_that_is_damaged_in_the_middle_costs_that_line_only(tmp_path: Path) -> None:
    (tmp_path / "r").write_text(
        lines('{"kind":"note","source":3}', "garbage", '{"kind":"note","source":"a","message":"b"}')
    )
    _, first, second, note = records(tmp_path / "r")

    assert isinstance(first, Damage)
    assert isinstance(second, Damage)
    assert (first.line, second.line, first.torn, second.torn) == (3, 4, False, False)
    assert note == Note("a", "b")


def test_a_byte_that_flipped_in_a_gzip_file_costs_what_follows_only(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "r.gz", HEADER)
    for number in range(2000):
        writer.write(Note("a", f"{number * 7919}", time_us=number))
        writer.flush()
    writer.close()
    content = bytearray((tmp_path / "r.gz").read_bytes())
    middle = len(content) // 2
    content[middle : middle + 8] = b"\xff" * 8
    (tmp_path / "r.gz").write_bytes(content)

    notes = [r for r in whole(tmp_path / "r.gz") if isinstance(r, Note)]
    assert len(notes) > 900
    assert [n.time_us for n in notes] == list(range(len(notes)))


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b"[\n", b"{}", b"[\n{}\n]", b"[1,2,3]", b"\n\n\n\n", b'{"kind":"note"}', b"[" * 100_000,
     b'[\n{"kind":"header","schema":"\xff\xfe"}', b"\x1f\x8b", b'[{"kind":"header","schema":[1]}]'],
)  # fmt: skip
def test_what_is_no_run_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r").write_bytes(content)
    with pytest.raises(FileFormatError):
        records(tmp_path / "r")


@pytest.mark.parametrize("filler", [b"\n", b" ", b"            \n"])
def test_a_gzip_bomb_is_refused(tmp_path: Path, filler: bytes) -> None:
    bomb = lines().encode() + filler * ((100 << 20) // len(filler))
    (tmp_path / "r.gz").write_bytes(gzip.compress(bomb, 1))
    with pytest.raises(FileFormatError, match=r"inflate|empty lines|0 records in"):
        records(tmp_path / "r.gz")
