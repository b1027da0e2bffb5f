"""What several looks tell: a list that became longer is what grows, and no ring that is full."""

from __future__ import annotations

import torch

from memprof.records import Finding, Holder
from memprof.reference_chain import Link, LinkKind
from memprof.rules.successive_looks import holders_of
from tests.rules.recorded import findings_of

WIDTH = 64


class Clip:
    def __init__(self, frames):
        self.frames = frames


class Recorder:
    """It keeps clips of 40 frames each: of the two lists that of the clips is what grows."""

    def __init__(self):
        self.frames = []
        self.clips = []

    def step(self, number):
        self.frames.append(torch.zeros(WIDTH, WIDTH))
        if len(self.frames) == 40:
            self.clips.append(Clip(self.frames))
            self.frames = []


class Replay:
    """A ring of 12, and a list beside it that nothing reads."""

    def __init__(self):
        self.ring = []
        self.added = []

    def step(self, number):
        batch = {"x": torch.zeros(WIDTH, WIDTH)}
        if len(self.ring) < 12:
            self.ring.append(batch)
        else:
            self.ring[number % 12] = batch
        self.added.append(batch)


class KeyedReplay(Replay):
    """The same where the ring is a dict."""

    def __init__(self):
        self.ring = {}
        self.added = []

    def step(self, number):
        batch = {"x": torch.zeros(WIDTH, WIDTH)}
        self.ring[number % 12] = batch
        self.added.append(batch)


def keeps_clips():
    return Recorder().step


def keeps_beside_a_ring():
    return Replay().step


def keeps_beside_a_dict():
    return KeyedReplay().step


def test_of_two_lists_the_one_that_became_longer_is_named(tmp_path):
    found = findings_of(keeps_clips, tmp_path / "run.json", steps=200)[0]
    first = found.remedies[0]
    assert first.fix == "clear_container"
    assert first.code == "self.clips.append(Clip(self.frames))"
    assert "list `clips` (3 items)" in found.title


def test_what_has_too_few_places_for_all_steps_is_not_what_keeps_them(tmp_path):
    for program in (keeps_beside_a_ring, keeps_beside_a_dict):
        first = findings_of(program, tmp_path / "run.json", steps=60)[0].remedies[0]
        assert (first.fix, first.code) == ("clear_container", "self.added.append(batch)")


def holder(name, length, *inner):
    links = [
        Link(LinkKind.GLOBAL, "job", "__main__"),
        Link(LinkKind.ATTRIBUTE, name, "Job", "/job.py", 7),
        Link(LinkKind.ITEM, "0", "list", length=length),
        *inner,
    ]
    return Holder(LinkKind.ITEM, "/job.py", 9, "self.x.append(x)", links)


def look(births, *holders):
    return Finding("holders", holders=list(holders), details={"births": births})


def test_one_look_says_nothing_of_growth():
    (one,) = holders_of([look(9, holder("rows", 9))])
    assert one == holder("rows", 9)


def test_the_line_is_that_of_the_container_that_grew():
    inner = (
        Link(LinkKind.ATTRIBUTE, "frames", "Clip", "/job.py", 3),
        Link(LinkKind.ITEM, "0", "list", length=50),
    )
    (one,) = holders_of(
        [look(100, holder("clips", 2, *inner)), look(200, holder("clips", 4, *inner))]
    )
    assert [link.grows for link in one.links] == [False, False, True, False, False]
    assert (one.line, one.code) == (7, "")


def test_a_list_of_lists_has_room_for_as_many_as_both_lengths_say():
    inner = (Link(LinkKind.ITEM, "0", "list", length=50),)
    holders = [holder("seen", 120), holder("clips", 4, *inner)]
    assert [one.links[1].name for one in holders_of([look(100, *holders)])] == ["seen", "clips"]
    assert [one.links[1].name for one in holders_of([look(130, *holders)])] == ["clips", "seen"]
