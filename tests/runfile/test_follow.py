"""A file that grows is read once, in any pieces, whole or gzipped, truncated or replaced."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from memprof.records import (
    SCHEMA_VERSION,
    Finding,
    Footer,
    Header,
    Note,
    StepsRecord,
    TraceRecord,
)
from memprof.runfile import follow
from memprof.runfile.follow import FollowedFile
from memprof.runfile.writer import RunWriter
from memprof.testing.runs import step_columns


def header(created_us=1):
    return Header(schema=SCHEMA_VERSION, created_us=created_us)


def steps(first, count=1):
    columns = step_columns(allocated=[100] * count)
    columns.first[:] = columns.last[:] = range(first, first + count)
    return StepsRecord("cpu", columns)


def events(count):
    column = [0] * count
    return TraceRecord("cpu", 0, 0, column, column, column, column, column, column, column)


def names(records):
    return [type(record).__name__ for record in records]


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_each_record_is_told_once_as_soon_as_it_is_flushed(tmp_path, name):
    writer = RunWriter(tmp_path / name, header())
    followed = FollowedFile(tmp_path / name)
    assert names(followed.new()) == ["Header"]
    assert names(followed.new()) == []
    for n in range(5):
        writer.write(steps(n))
        assert names(followed.new()) == []
        writer.flush()
        (record,) = followed.new()
        assert record.steps.first == [n]
    writer.write(events(10))
    writer.write(Note("file", "one"))
    writer.close(Footer(9))
    assert names(followed.new()) == ["Note", "Footer"]
    assert names(followed.new()) == []
    assert not followed.was_replaced()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_file_that_comes_in_pieces_of_any_size_gives_the_same_records(tmp_path, name, seed):
    writer = RunWriter(tmp_path / "all" / name, header())
    for n in range(40):
        writer.write(steps(n))
        writer.write(Finding("holders", details={"text": '},\n{"kind":"steps"' * n}))
        writer.write(events(50))
        if n % 7 == 0:
            writer.flush()
    writer.close(Footer(5))
    whole = (tmp_path / "all" / name).read_bytes()
    expected = list(FollowedFile(tmp_path / "all" / name).new())
    assert len(expected) == 82
    chance, followed, told, at = random.Random(seed), FollowedFile(tmp_path / name), [], 0
    while at < len(whole):
        size = chance.choice([1, 2, 3, 17, 500, 5000])
        with (tmp_path / name).open("ab") as file:
            file.write(whole[at : at + size])
        at += size
        told += followed.new()
    assert told == expected


def test_a_file_that_is_not_there_yet_has_nothing(tmp_path):
    followed = FollowedFile(tmp_path / "run.json")
    assert list(followed.new()) == []
    assert not followed.was_replaced()
    RunWriter(tmp_path / "run.json", header()).close()
    assert names(followed.new()) == ["Header"]


def test_a_share_that_is_away_for_a_moment_is_waited_for(tmp_path):
    writer = RunWriter(tmp_path / "run.json", header())
    followed = FollowedFile(tmp_path / "run.json")
    assert names(followed.new()) == ["Header"]
    (tmp_path / "run.json").rename(tmp_path / "away.json")
    assert not followed.was_replaced()
    assert list(followed.new()) == []
    writer.write(steps(0))
    writer.close()
    (tmp_path / "away.json").rename(tmp_path / "run.json")
    assert not followed.was_replaced()
    assert names(followed.new()) == ["StepsRecord"]


def test_a_file_that_was_replaced_is_read_anew(tmp_path):
    RunWriter(tmp_path / "run.json", header(1)).close(Footer(1))
    followed = FollowedFile(tmp_path / "run.json")
    assert names(followed.new()) == ["Header", "Footer"]
    RunWriter(tmp_path / "new.json", header(2)).close(Footer(2))
    (tmp_path / "new.json").replace(tmp_path / "run.json")
    assert followed.was_replaced()
    assert [getattr(one, "created_us", None) for one in followed.new()] == [2, None]
    assert not followed.was_replaced()


@pytest.mark.parametrize("longer", [False, True])
def test_a_file_that_was_truncated_and_written_again_is_read_anew(tmp_path, longer):
    """A job that is started again writes into the same file: the same inode, another header."""
    writer = RunWriter(tmp_path / "run.json", header(1))
    writer.write(steps(0, 50))
    writer.close(Footer(1))
    followed = FollowedFile(tmp_path / "run.json")
    assert len(list(followed.new())) == 3
    writer = RunWriter(tmp_path / "run.json", header(2))
    writer.write(steps(0, 500 if longer else 2))
    writer.flush()
    assert followed.was_replaced()
    assert names(followed.new()) == ["Header", "StepsRecord"]
    writer.close()


def test_damaged_lines_and_kinds_of_the_future_are_passed_over(tmp_path):
    (tmp_path / "run.json").write_bytes(
        b'[\n{"kind":"header","schema":[1,6],"created_us":1},\n'
        b'{"kind":"steps","device":7},\nnonsense,\n{"kind":"steps" \xff\xfe},\n'
        b'{"kind":"telepathy","of":[]},\n{"kind":"note","source":"a","message":"b"}\n]\n'
    )
    assert names(FollowedFile(tmp_path / "run.json").new()) == ["Header", "Note"]


def test_a_damaged_gzip_file_ends_where_the_damage_is(tmp_path):
    writer = RunWriter(tmp_path / "run.json.gz", header())
    for n in range(200):
        writer.write(steps(n))
        writer.flush()
    writer.close()
    data = bytearray((tmp_path / "run.json.gz").read_bytes())
    data[len(data) // 2 : len(data) // 2 + 40] = bytes(40)
    (tmp_path / "run.json.gz").write_bytes(data)
    told = names(FollowedFile(tmp_path / "run.json.gz").new())
    assert told[0] == "Header"
    assert 2 < len(told) < 201


def test_events_are_never_held_in_memory(tmp_path):
    line = b',\n{"kind":"trace","device":"cpu","action":[' + b"0," * (8 << 20) + b"0]}"
    (tmp_path / "run.json").write_bytes(
        b'[\n{"kind":"header","schema":[1,6],"created_us":1}' + line * 2
    )
    followed = FollowedFile(tmp_path / "run.json")
    tracemalloc.start()
    told = names(followed.new())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert told == ["Header"]
    assert peak < 6 << 20
    with (tmp_path / "run.json").open("ab") as file:
        file.write(b',\n{"kind":"note","source":"a","message":"b"}')
    assert names(followed.new()) == ["Note"]


def test_one_call_reads_so_much_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(follow, "MOST_AT_ONCE", 2 << 20)
    writer = RunWriter(tmp_path / "run.json", header())
    for n in range(30_000):
        writer.write(steps(n))
    writer.close()
    followed, counts = FollowedFile(tmp_path / "run.json"), []
    while count := len(list(followed.new())):
        counts.append(count)
    assert len(counts) > 2
    assert sum(counts) == 30_001


def test_what_was_read_is_not_read_again(tmp_path):
    writer = RunWriter(tmp_path / "run.json", header())
    for n in range(5000):
        writer.write(steps(n))
    writer.flush()
    followed = FollowedFile(tmp_path / "run.json")
    assert len(list(followed.new())) == 5001
    before = followed.bytes_read
    writer.write(steps(5000))
    writer.flush()
    assert names(followed.new()) == ["StepsRecord"]
    assert before < followed.bytes_read == (tmp_path / "run.json").stat().st_size
    writer.close()
