"""What a stack of frames takes over of the one before is read from its statement."""

from __future__ import annotations

import pytest

from memprof.source_code.program import place_of
from memprof.source_code.sliding_stacks import sliding_stack
from memprof.trace import Frame

LOOP = """def run(env, state):
    {before}
    while True:
        {made}
        {after}
"""


def shared(tmp_path, made, before="pass", after="pass"):
    source = tmp_path / "program.py"
    source.write_text(LOOP.format(made=made, before=before, after=after))
    return sliding_stack(place_of(Frame("", str(source), 4)))


@pytest.mark.parametrize(
    ("made", "part"),
    [
        ("state = torch.cat([state[1:], frame])", "state[1:]"),
        ("state = torch.cat((frame, state[:-1]))", "state[:-1]"),
        ("state = torch.cat((state[:, 1:], frame), dim=1)", "state[:, 1:]"),
        ("state = torch.cat((state[..., 3:], frame), -1)", "state[..., 3:]"),
        ("env.stack = torch.cat((env.stack[1:], frame))", "env.stack[1:]"),
        ("state = torch.cat([state, frame])", ""),  # becomes longer
        ("state = torch.cat([state[1:3], frame])", ""),
        ("state = torch.cat([state[0], frame])", ""),
        ("state = torch.cat([state[n:], frame])", ""),
        ("state = torch.cat([state[1:], state[:1]])", ""),  # turned round
        ("state = torch.cat([state[1:], a, b])", ""),
        ("joined = torch.cat([state[1:], frame])", ""),
    ],
)
def test_all_but_one_end_of_what_is_bound_again(tmp_path, made, part):
    assert shared(tmp_path, made) == part


def test_the_next_one_is_carried_by_another_name(tmp_path):
    made = "following = torch.cat([state[1:], frame])"
    assert shared(tmp_path, made, after="state = following") == "state[1:]"
    assert not shared(tmp_path, made, after="state = env.reset()")


@pytest.mark.parametrize(
    ("bound", "after", "part"),
    [
        ("frames = deque(maxlen=4)", "pass", "frames"),
        ("frames = collections.deque([], 4)", "pass", "frames"),
        ("frames = deque(maxlen=count)", "pass", "frames"),
        ("frames = deque(maxlen=1)", "pass", ""),
        ("frames = deque()", "pass", ""),
        ("frames = []", "pass", ""),
        ("frames = deque(maxlen=4)", "frames.clear()", ""),
        ("frames = [frame] * 4", "frames = frames[1:] + [frame]", "frames"),
        ("frames = [frame] * 4", "frames = frames + [frame]", ""),
    ],
)
def test_a_deque_of_a_few_frames(tmp_path, bound, after, part):
    for made in ("list(frames)", "tuple(frames)", "[one for one in frames]"):
        assert shared(tmp_path, f"state = torch.stack({made})", bound, after) == part


def test_clips_side_by_side_have_no_frame_in_common(tmp_path):
    source = tmp_path / "program.py"
    source.write_text(
        "frames = deque(maxlen=4)\n"
        "for i, frame in enumerate(video):\n"
        "    frames.append(frame)\n"
        "    if i % 4 == 3:\n"
        "        clips.append(torch.stack(list(frames)))\n"
    )
    assert not sliding_stack(place_of(Frame("", str(source), 5)))


@pytest.mark.parametrize(
    ("kept", "given", "part"),
    [
        ("deque(maxlen=4)", "list(self.recent)", "self.frames"),
        ("deque(maxlen=4)", "self.recent", "self.frames"),
        ("deque()", "list(self.recent)", ""),
        ("deque(maxlen=4)", "[frame]", ""),
    ],
)
def test_an_object_that_is_given_the_last_frames_stacks_them_as_well(tmp_path, kept, given, part):
    source = tmp_path / "program.py"
    source.write_text(
        "class View:\n"
        "    def __init__(self, frames):\n"
        "        self.frames, self.stacked = frames, None\n\n"
        "    def tensor(self):\n"
        "        self.stacked = torch.stack(self.frames)\n"
        "        self.frames = None\n\n"
        "class Env:\n"
        "    def __init__(self):\n"
        f"        self.recent = {kept}\n\n"
        "    def observe(self, frame):\n"
        "        self.recent.append(frame)\n"
        f"        return View({given})\n"
    )
    assert sliding_stack(place_of(Frame("", str(source), 6))) == part
