"""The line that a stack belongs to is the user's, on every system that a file can come from."""

from __future__ import annotations

from pathlib import Path

import pytest

import memprof
from memprof.source_code.frame_kind import FrameKind, frame_kind
from memprof.trace import Frame, Tables
from memprof.views.sites import NO_SITE, library_frame, short_path, site_name, sites


@pytest.mark.parametrize(
    ("filename", "kind"),
    [
        ("/home/zoe/project/train.py", FrameKind.USER),
        ("/Users/zoe/project/train.py", FrameKind.USER),
        (r"C:\Users\Zoe\project\train.py", FrameKind.USER),
        ("train.py", FrameKind.USER),
        ("<ipython-input-3-0123abcd>", FrameKind.USER),
        ("/tmp/ipykernel_4242/1234567.py", FrameKind.USER),
        ("<string>", FrameKind.USER),
        ("<stdin>", FrameKind.USER),
        ("/opt/app/bundle.zip/model/net.py", FrameKind.USER),
        ("/workspace/lib/model.py", FrameKind.USER),
        ("/data/torchtitan/train.py", FrameKind.USER),
        ("/home/u/my-torch-project/model.py", FrameKind.USER),
        ("/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", FrameKind.TORCH),
        ("/opt/conda/lib/python3.10/site-packages/torch/optim/adamw.py", FrameKind.TORCH),
        (r"C:\Python311\Lib\site-packages\torch\_tensor.py", FrameKind.TORCH),
        ("/src/pytorch/torch/nn/functional.py", FrameKind.TORCH),
        ("<eval_with_key>.12", FrameKind.TORCH),
        ("/tmp/torchinductor_zoe/ab/cabc.py", FrameKind.TORCH),
        ("/opt/conda/lib/python3.10/site-packages/transformers/trainer.py", FrameKind.LIBRARY),
        ("/usr/lib/python3/dist-packages/numpy/core.py", FrameKind.LIBRARY),
        (r"C:\venv\Lib\site-packages\accelerate\x.py", FrameKind.LIBRARY),
        ("/usr/lib/python3.11/threading.py", FrameKind.STDLIB),
        ("/opt/conda/lib/python3.10/contextlib.py", FrameKind.STDLIB),
        (
            "/Library/Frameworks/Python.framework/Versions/3.12/lib/python3.12/runpy.py",
            FrameKind.STDLIB,
        ),
        (r"C:\Python311\Lib\threading.py", FrameKind.STDLIB),
        ("<frozen importlib._bootstrap>", FrameKind.HIDDEN),
        ("/x/site-packages/memprof/record/tracker.py", FrameKind.HIDDEN),
        ("/x/memprof/sources/cuda/snapshot_source.py", FrameKind.HIDDEN),
        ("/x/site-packages/memprof/tracker.py", FrameKind.HIDDEN),  # of an earlier version
        ("/home/me/memprof/train.py", FrameKind.USER),
        ("??", FrameKind.NATIVE),
        ("", FrameKind.NATIVE),
        ("/pytorch/aten/src/ATen/native/Linear.cpp", FrameKind.NATIVE),
        ("/usr/lib/libc10_cuda.so", FrameKind.NATIVE),
    ],
)
def test_a_path_tells_whose_code_it_is(filename: str, kind: FrameKind) -> None:
    assert frame_kind(filename) is kind


def test_whatever_of_memprof_runs_inside_a_job_is_hidden() -> None:
    package = Path(memprof.__file__).parent
    rooms = [package / name for name in ("record", "sources", "referrers", "cpython")]
    files = [path for room in rooms for path in room.rglob("*.py")]
    assert len(files) > 80
    assert {frame_kind(str(path)) for path in files} == {FrameKind.HIDDEN}


def site(*frames: Frame) -> Frame:
    tables = Tables(frames=frames, stacks=((), tuple(range(len(frames)))))
    found = sites(tables)
    assert found.of_stack[0] == 0
    return found.frames[found.of_stack[1]]


LINEAR = Frame("forward", "/x/site-packages/torch/nn/modules/linear.py", 116)
TRAINER = Frame("train", "/x/site-packages/transformers/trainer.py", 9)
NATIVE = Frame("at::native::linear(at::Tensor const&)", "??", 0)
NOISE = Frame("torch::unwind::unwind()", "??", 0)
MODEL = Frame("forward", "/home/u/model.py", 5)
MAIN = Frame("<module>", "/home/u/train.py", 50)


def test_the_innermost_frame_of_the_user_is_the_site() -> None:
    assert site(NOISE, NATIVE, LINEAR, MODEL, TRAINER, MAIN) == MODEL


def test_without_a_user_the_nearest_library_is_the_site() -> None:
    assert site(NATIVE, LINEAR, TRAINER) == TRAINER
    assert site(NATIVE, LINEAR) == LINEAR


def test_a_stack_of_native_frames_alone_names_the_first_that_says_something() -> None:
    assert site(NOISE, NATIVE, Frame("clone", "libc.so.6", 0)) == NATIVE
    assert site_name(NATIVE) == "at::native::linear"


def test_no_stack_has_no_site() -> None:
    assert sites(Tables()).frames == (NO_SITE,)
    assert site_name(NO_SITE) == "(no stack recorded)"


def test_a_stack_of_hidden_frames_alone_has_none() -> None:
    """As on autograd's own threads, where nothing but memprof runs Python."""
    frames = (
        Frame("dispatch", "/x/memprof/sources/cpu/dispatch_source.py", 266),
        Frame("f", "<frozen x>", 1),
    )
    assert sites(Tables(frames=frames, stacks=((), (0,), (0, 1)))).frames == (NO_SITE,)


def test_a_site_is_written_with_the_end_of_its_path() -> None:
    assert site_name(Frame("f", r"C:\a\b\c.py", 7)) == "b/c.py:7 in f"
    assert short_path("/a/b/c.py", 1) == "c.py"
    assert short_path("c.py") == "c.py"


def test_a_text_that_was_executed_is_told_at_the_line_that_runs_it():
    run = Frame("load_config", "/home/user/train.py", 11)
    text = Frame("<module>", "<string>", 2)
    tables = Tables(frames=[text, run], stacks=[(), (0, 1), (0,)])
    found = sites(tables)
    assert [found.frames[row] for row in found.of_stack.tolist()] == [NO_SITE, run, text]


def test_the_librarys_frame_is_told_where_the_users_line_calls_one():
    user = Frame("main", "/home/u/train.py", 9)
    library = Frame("Trainer.step", "/x/site-packages/transformers/trainer.py", 20)
    inner = Frame("concat", "/x/site-packages/transformers/trainer_pt_utils.py", 86)
    torch = Frame("forward", "/x/site-packages/torch/nn/modules/linear.py", 125)
    assert library_frame([torch, inner, library, user]) == inner
    assert library_frame([torch, user, library]) is None
    assert library_frame([torch]) is None
