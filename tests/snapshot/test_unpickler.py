"""Plain data comes out of pickles; whatever could execute, or take all memory or time, is refused."""

from __future__ import annotations

import copyreg
import gzip
import os
import pickle
import resource
import struct
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memprof.errors import FileFormatError, UnsafeFileError
from memprof.snapshot.unpickler import load_plain_pickle
from tests.files import write_anew

PROTOCOLS = range(2, pickle.HIGHEST_PROTOCOL + 1)
PLAIN = {
    "numbers": [0, 1, 255, 256, 65535, 65536, -1, -(1 << 31), 1 << 31, 1 << 62, (1 << 64) - 1],
    "more": [0.5, True, False, None, "", "é" * 100, "x" * 255, "x" * 256, "x" * 70000],
    "pairs": [(0, 0), (0, 7), (1 << 40, 3)],
    "nested": [[], {}, [[{"a": [1]}]]],
    "many": list(range(3000)),
}

canary_was_called = False


def canary(*_: object) -> None:
    global canary_was_called  # noqa: PLW0603
    canary_was_called = True


class Calls:
    """Pickles as a call, as an exploit would."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def refused(tmp_path: Path, content: bytes, zipped: bool = False) -> FileFormatError:
    path = tmp_path / "hostile.pickle"
    write_anew(path, gzip.compress(content) if zipped else content)
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(FileFormatError) as caught:
        load_plain_pickle(path)
    assert time.process_time() - started < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10  # KiB
    assert str(path) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_plain_data_comes_back_whole(tmp_path: Path, protocol: int, suffix: str) -> None:
    content = pickle.dumps(PLAIN, protocol)
    path = tmp_path / f"plain{suffix}"
    path.write_bytes(gzip.compress(content) if suffix else content)

    assert load_plain_pickle(path) == PLAIN


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_more_than_65536_distinct_objects_come_back(tmp_path: Path, protocol: int) -> None:
    data = [str(i) for i in range(70_000)]
    data += data[-10:]
    (tmp_path / "many").write_bytes(pickle.dumps(data, protocol))

    assert load_plain_pickle(tmp_path / "many") == data


leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
pairs = st.tuples(st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**40))
values = st.recursive(
    leaves | pairs, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


@given(data=values, protocol=st.sampled_from(PROTOCOLS))
def test_any_plain_data_comes_back(
    tmp_path_factory: pytest.TempPathFactory, data: object, protocol: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.pickle"
    write_anew(path, pickle.dumps(data, protocol))

    assert pickle.dumps(load_plain_pickle(path), protocol) == pickle.dumps(data, protocol)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("what", "name"),
    [
        (Calls(os.system, "touch /nonexistent/canary"), "system"),
        (Calls(eval, "1"), "eval"),
        (Calls(canary), "canary"),
        (Calls(copyreg.add_extension, "os", "system", 1), "add_extension"),
        (OrderedDict(a=1), "OrderedDict"),
        (np.zeros(1), "numpy"),
        (len, "len"),
    ],
)
def test_a_pickle_with_a_global_is_refused_and_the_global_named(
    tmp_path: Path, what: object, name: str, protocol: int, zipped: bool
) -> None:
    error = refused(tmp_path, pickle.dumps({"segments": [what]}, protocol), zipped)

    assert isinstance(error, UnsafeFileError)
    assert name in error.message
    assert not canary_was_called


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"cos\nsystem\n(S'echo'\ntR.", "os.system"),
        (b"\x80\x02(ios\nsystem\n.", "os.system"),
        (b"\x80\x02Ptoken\n.", "token"),
        (b"\x80\x04\x8c\x05tokenQ.", "token"),
        (b"\x80\x02]Q.", "list"),
        (b"\x80\x02\x82\x07.", "extension code 7"),
        (b"\x80\x02\x83\x07\x01.", "extension code 263"),
        (b"\x80\x02\x84\x07\x00\x01\x00.", "extension code 65543"),
        (b"\x80\x02K\x01)R.", "REDUCE"),
        (b"\x80\x02}}b.", "BUILD"),
        (b"\x80\x02K\x01)\x81.", "NEWOBJ"),
        (b"\x80\x04K\x01)}\x92.", "NEWOBJ_EX"),
        (b"\x80\x02(K\x01o.", "OBJ"),
    ],
)
def test_every_opcode_that_reaches_outside_is_refused(
    tmp_path: Path, content: bytes, name: str
) -> None:
    error = refused(tmp_path, content)

    assert isinstance(error, UnsafeFileError)
    assert name in error.message


def test_an_extension_that_the_process_knows_is_refused_too(tmp_path: Path) -> None:
    copyreg.add_extension(__name__, "canary", 240)
    try:
        error = refused(tmp_path, b"\x80\x02\x82\xf0)R.")
    finally:
        copyreg.remove_extension(__name__, "canary", 240)

    assert isinstance(error, UnsafeFileError)
    assert not canary_was_called


def test_a_persistent_object_is_refused(tmp_path: Path) -> None:
    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: object) -> str | None:
            return "storage 0" if obj == "tensor" else None

    with (tmp_path / "p").open("wb") as file:
        Pickler(file, 4).dump(["tensor"])

    error = refused(tmp_path, (tmp_path / "p").read_bytes())
    assert isinstance(error, UnsafeFileError)
    assert "storage 0" in error.message


def put(index: int) -> bytes:
    return b"\x80\x02]r" + struct.pack("<I", index) + b"."


def nested_tuples(depth: int) -> bytes:
    """A dict whose key is a tuple of a tuple of …, each twice: its hash takes 2 ** depth steps."""
    levels = b"".join(
        b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86q" + bytes([i + 1]) for i in range(depth)
    )
    return b"\x80\x02})q\x00" + levels + b"Ns."


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"abc.", id="string of a TiB"),
        pytest.param(b"\x80\x02X\xff\xff\xff\xffabc.", id="string of 4 GiB"),
        pytest.param(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc.", id="bytes"),
        pytest.param(b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"abc.", id="bytearray"),
        pytest.param(b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b"].", id="frame"),
        pytest.param(b"\x80\x02\x8b\xff\xff\xff\x7fabc.", id="integer of 2 GiB"),
        pytest.param(b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".", id="integer of 255 bytes"),
        pytest.param(b"\x80\x02I" + b"9" * 1_000_000 + b"\n.", id="integer of a million digits"),
        pytest.param(put((1 << 32) - 1), id="memo of 64 GiB"),
        pytest.param(put(1 << 28), id="memo of 4 GiB"),
        pytest.param(put(1 << 16), id="memo beyond the file"),
        pytest.param(nested_tuples(60), id="hash of nested tuples"),
        pytest.param(b"\x80\x02(" + b"(" * 100_000 + b"t" * 100_000 + b".", id="tuples in tuples"),
        pytest.param(b"\x80\x02" + b"]" * 10_000_000 + b".", id="ten million lists"),
        pytest.param(b"\x80\x02" + b"}" * 10_000_000 + b".", id="ten million dicts"),
        pytest.param(b"\x80\x04" + b"\x8f" * 10_000_000 + b".", id="ten million sets"),
    ],
)
def test_a_few_bytes_never_take_much_memory_or_time(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path, content)


@pytest.mark.parametrize("byte", [b"\x00", b"N", b"]"])
def test_a_gzip_bomb_is_refused_before_it_has_gone_off(tmp_path: Path, byte: bytes) -> None:
    content = b"\x80\x02" + byte * (64 << 20) + b"."

    error = refused(tmp_path, content, zipped=True)
    assert "inflate" in error.message


def test_lists_nested_a_hundred_thousand_deep_are_only_data(tmp_path: Path) -> None:
    depth = 100_000
    path = tmp_path / "deep"
    # Wide apart, so that it is not the density of lists that has it refused.
    path.write_bytes(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")

    data = load_plain_pickle(path)
    for _ in range(depth - 1):
        (data,) = data
    assert data == []


def test_a_torn_pickle_is_refused_at_every_byte(tmp_path: Path) -> None:
    content = pickle.dumps({"segments": [{"a": "x" * 300, "b": (1, 2)}], "c": 0.5}, 4)
    for length in range(len(content)):
        refused(tmp_path, content[:length])


def test_a_torn_gzip_file_is_refused_at_every_byte(tmp_path: Path) -> None:
    content = gzip.compress(pickle.dumps({"segments": list(range(50))}, 4))
    path = tmp_path / "torn.gz"
    for length in range(2, len(content)):
        write_anew(path, content[:length])
        with pytest.raises(FileFormatError):
            load_plain_pickle(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "empty"),
        (b"hello world", "begins with 'hello world'"),
        (b"\x80\x02\xff.", "opcode"),
        (b"PK\x03\x04rest of a zip", "zip"),
        (b"\x1f\x8b", "gzip"),
        (b"\x1f\x8bgarbage that is no deflate", "gzip"),
        (b"\x80\x09].", "protocol"),
        (b"\x80\x01].", "protocol"),
        (b"\x80", "protocol"),
        (b"\x80\x02]\x80\x02.", "protocol"),
    ],
)
def test_what_is_no_pickle_is_refused_with_the_reason(
    tmp_path: Path, content: bytes, said: str
) -> None:
    assert said in refused(tmp_path, content).message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="No such file"):
        load_plain_pickle(tmp_path / "nowhere.pickle")
