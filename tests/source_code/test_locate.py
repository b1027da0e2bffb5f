"""Source files of a run are found again by their digests, wherever they lie here."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, SourceFiles
from memprof.reference_chain import Link
from memprof.runfile.source_digests import MOST_BYTES, digest_of
from memprof.source_code.locate import located, not_here
from memprof.source_code.program import code_of, place_of
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Frame

RAN = "/home/u/project/pkg/train.py"
TEXT = b"kept.append(x)\n"


def run_of(folder, *names, text=TEXT):
    """Two windows and a finding whose lines are in files of those names."""
    stack = [Frame("step", name, 1) for name in names]
    traces = [TraceBuilder().alloc(512, "x", stack=stack).build() for _ in range(2)]
    holders = [Holder(filename=name, links=[Link("item", filename=name)]) for name in names]
    files = SourceFiles(list(names), [digest_of(text)] * len(names))
    found = Finding("holders", device="cpu", holders=holders)
    return load(write_run(folder / "run.json", *traces, more=[files, found]))


def named(run):
    """Every file name in a run's stacks, findings and digests."""
    frames = [f.filename for d in run.devices for w in d.windows for f in w.tables.frames]
    holders = [holder for finding in run.findings for holder in finding.holders]
    links = [link.filename for holder in holders for link in holder.links]
    return {*frames, *(holder.filename for holder in holders), *links, *run.digests}


@pytest.mark.parametrize("inside", ["train.py", "pkg/train.py", "project/pkg/train.py"])
def test_a_file_is_found_under_the_last_parts_of_its_path(tmp_path, inside):
    path = tmp_path / "clone" / inside
    path.parent.mkdir(parents=True)
    path.write_bytes(TEXT)
    run = located(run_of(tmp_path, RAN), [tmp_path / "clone"])
    assert named(run) == {str(path)}
    assert run.digests == {str(path): digest_of(TEXT)}
    assert not_here(run) == []


def test_a_file_with_another_text_is_not_taken(tmp_path):
    (tmp_path / "train.py").write_bytes(TEXT + b"\n")
    run = run_of(tmp_path, RAN)
    assert located(run, [tmp_path]) is run
    assert not_here(run) == [RAN]


def test_of_several_the_one_with_the_text_and_the_longest_path_is_taken(tmp_path):
    near, far = tmp_path / "a" / "train.py", tmp_path / "b" / "pkg" / "train.py"
    other = tmp_path / "a" / "pkg" / "train.py"
    for path, text in ((near, TEXT), (far, TEXT), (other, b"pass\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    run = run_of(tmp_path, RAN)
    assert named(located(run, [tmp_path / "a", tmp_path / "b"])) == {str(far)}
    assert named(located(run, [tmp_path / "a"])) == {str(near)}


def test_a_file_that_is_where_it_ran_keeps_its_name(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(TEXT)
    (tmp_path / "copy").mkdir()
    shutil.copy(path, tmp_path / "copy")
    run = run_of(tmp_path, str(path))
    assert located(run, [tmp_path / "copy"]) is run


def test_a_changed_file_is_found_again_as_it_ran_in_a_copy(tmp_path):
    path, copy = tmp_path / "train.py", tmp_path / "copy" / "train.py"
    copy.parent.mkdir()
    path.write_bytes(b"changed = 1\n")
    copy.write_bytes(TEXT)
    run = run_of(tmp_path, str(path))
    moved = located(run, [copy.parent])
    assert named(moved) == {str(copy)}
    frame = moved.devices[0].windows[0].tables.frames[0]
    assert not frame.changed
    assert code_of(frame) == "kept.append(x)"


def test_of_a_changed_file_no_line_is_read(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(TEXT)
    run = run_of(tmp_path, str(path), "/home/u/gone.py")
    assert located(run, []) is run
    path.write_bytes(b"changed = 1\n")
    told = located(run, [])
    assert named(told) == {str(path), "/home/u/gone.py"}
    changed, gone = told.devices[0].windows[0].tables.frames[:2]
    assert (changed.changed, gone.changed) == (True, False)
    assert (code_of(changed), place_of(changed)) == ("", None)
    assert not_here(told) == [str(path), "/home/u/gone.py"]


def test_paths_of_windows_and_other_line_ends_are_found_too(tmp_path):
    (tmp_path / "train.py").write_bytes(TEXT.replace(b"\n", b"\r\n"))
    run = run_of(tmp_path, r"C:\Users\u\project\train.py")
    assert named(located(run, [tmp_path])) == {str(tmp_path / "train.py")}


def test_a_relative_root_gives_whole_paths(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_bytes(TEXT)
    monkeypatch.chdir(tmp_path)
    assert named(located(run_of(tmp_path, RAN), [Path()])) == {str(tmp_path / "train.py")}


def test_no_path_leads_out_of_the_root(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_bytes(TEXT)
    (tmp_path / "root").mkdir()
    (tmp_path / "else" / "where").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "else" / "where")  # what lies beside the current folder is here
    run = run_of(tmp_path, "../train.py")
    assert located(run, [tmp_path / "root"]) is run


def test_libraries_and_large_files_are_not_looked_for(tmp_path):
    large = b"#" * (MOST_BYTES + 1)
    (tmp_path / "train.py").write_bytes(large)
    (tmp_path / "lib.py").write_bytes(large)
    run = run_of(tmp_path, RAN, "/x/site-packages/lib.py", text=large)
    assert located(run, [tmp_path]) is run
    assert not_here(run) == [RAN]


def test_stacks_still_point_at_their_frames(tmp_path):
    (tmp_path / "train.py").write_bytes(TEXT)
    run = located(run_of(tmp_path, RAN, "/home/u/other.py"), [tmp_path])
    assert len(run.devices[0].windows) == 2
    for window in run.devices[0].windows:
        names = [frame.filename for frame in window.stack(int(window.events.stack.max()))]
        assert names == [str(tmp_path / "train.py"), "/home/u/other.py"]
    first, second = run.devices[0].windows
    assert first.tables is second.tables


def test_without_digests_a_run_is_left_as_it_is(tmp_path):
    (tmp_path / "train.py").write_bytes(TEXT)
    path = write_run(tmp_path / "run.json", TraceBuilder().alloc(512, "x").build())
    run = load(path)
    assert located(run, [tmp_path]) is run
    assert not_here(run) == []
