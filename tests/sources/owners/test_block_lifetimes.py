"""Lives of blocks and their categories, worked out from a stretch of events: pure."""

from __future__ import annotations

import random

import pytest

from memprof.sources.label_rows import LabelRows
from memprof.sources.owners.block_lifetimes import (
    AddressIndex,
    GradMode,
    Lives,
    OwnerSample,
    final_of_dead,
    lives_of,
    own,
    replaced,
    settle,
    sight,
)
from memprof.sources.owners.tensor_owners import Owner
from memprof.sources.protocol import Interner
from memprof.trace import Action, Category, Events, Phase

ALLOC, FREE = Action.ALLOC, Action.FREE_REQUESTED
STACK = 1


class Stretch:
    """Events written one by one, a microsecond apart."""

    def __init__(self) -> None:
        self.interner = Interner()
        self.rows: list[tuple[int, int, int, int]] = []

    def add(self, action, address, phase, step=0, stack=STACK, module=""):
        label = self.interner.label(step, phase, module, "")
        self.rows.append((action, address, stack, label))
        return self

    @property
    def labels(self) -> LabelRows:
        return LabelRows(self.interner)

    @property
    def events(self) -> Events:
        action, address, stack, label = (list(c) for c in zip(*self.rows, strict=True))
        return Events.build(
            action=action,
            address=address,
            size=[512] * len(action),
            stack=stack,
            label=label,
            time_us=list(range(len(action))),
        )


def categories(stretch: Stretch, seen=(), before=None, modes=()) -> list[Category]:
    lives = lives_of(before or Lives.build(), stretch.events, 0)
    lives = settle(lives, stretch.events, stretch.labels, list(seen), modes)
    return [Category(int(c)) for c in final_of_dead(lives, stretch.events, stretch.labels)]


def test_a_free_ends_the_latest_allocation_of_its_address():
    stretch = Stretch()
    for action, address in ((FREE, 7), (ALLOC, 7), (ALLOC, 9), (FREE, 7), (ALLOC, 7), (FREE, 9)):
        stretch.add(action, address, Phase.OTHER)
    lives = lives_of(Lives.build(address=[7], size=[512]), stretch.events, 100)
    assert lives.allocated_at.tolist() == [-1, 1, 2, 4]
    assert lives.freed_at.tolist() == [0, 3, 5, 6]
    assert lives.event.tolist() == [-1, 101, 102, 104]


def test_what_a_forward_pass_leaves_to_the_backward_pass_is_an_activation():
    stretch = Stretch()
    stretch.add(ALLOC, 1, Phase.FORWARD).add(ALLOC, 2, Phase.FORWARD).add(FREE, 2, Phase.FORWARD)
    stretch.add(ALLOC, 3, Phase.BACKWARD).add(FREE, 1, Phase.BACKWARD)
    found = categories(stretch)
    assert found == [Category.ACTIVATION, Category.TEMPORARY, Category.UNKNOWN]


def test_an_allocation_without_a_stack_tells_that_the_backward_pass_runs():
    stretch = Stretch()
    stretch.add(ALLOC, 1, Phase.FORWARD).add(ALLOC, 2, Phase.FORWARD, stack=0)
    stretch.add(FREE, 1, Phase.FORWARD)  # its module's mark has not come yet
    assert categories(stretch)[0] == Category.ACTIVATION


def test_a_forward_pass_without_a_backward_pass_leaves_no_activations():
    stretch = Stretch().add(ALLOC, 1, Phase.FORWARD).add(ALLOC, 2, Phase.OPTIMIZER)
    assert categories(stretch) == [Category.UNKNOWN, Category.UNKNOWN]


def failing_forward(*, moment: bool = True) -> Stretch:
    """A pass of one model, 2 is freed on the way; then a failure, if as an event of its own."""
    stretch = Stretch().add(ALLOC, 1, Phase.OTHER)
    for action, address in ((ALLOC, 2), (ALLOC, 3), (FREE, 2), (ALLOC, 4)):
        stretch.add(action, address, Phase.FORWARD, module="Net.head")
    stretch.add(ALLOC, 5, Phase.FORWARD)
    if moment:
        stretch.add(Action.OOM, 0, Phase.FORWARD, module="Net.head")
    return stretch


def test_what_lives_of_a_forward_pass_in_which_memory_runs_out_is_an_activation():
    found = categories(failing_forward(), modes=[GradMode(1, "Net", True)])
    kept = [Category.ACTIVATION] * 3
    assert found == [Category.UNKNOWN, Category.TEMPORARY, *kept]


def test_a_failure_that_no_event_tells_of_is_one_all_the_same():
    stretch = failing_forward(moment=False)
    modes = [GradMode(1, "Net", True)]
    assert Category.ACTIVATION not in categories(stretch, modes=modes)
    found = categories(stretch, [OwnerSample(5, {}, failed=True)], modes=modes)
    assert found[2:] == [Category.ACTIVATION] * 3


def test_without_gradients_nothing_is_an_activation_when_memory_runs_out():
    modes = [GradMode(0, "Teacher", True), GradMode(1, "Net", False)]
    found = categories(failing_forward(), modes=modes)
    assert found[2:4] == [Category.UNKNOWN, Category.UNKNOWN]
    turned_on = categories(failing_forward(), modes=[*modes, GradMode(4, "Net", True)])
    assert turned_on[2:4] == [Category.UNKNOWN, Category.ACTIVATION]


def test_where_nobody_said_whether_gradients_were_wanted_nothing_is_guessed():
    assert categories(failing_forward())[2:4] == [Category.UNKNOWN, Category.UNKNOWN]


def test_what_was_there_before_a_stretch_is_known_from_the_one_it_was_made_in():
    first, later = failing_forward(moment=False), Stretch()
    lives = lives_of(Lives.build(), first.events, 0)
    lives = settle(lives, first.events, first.labels, [], [GradMode(1, "Net", True)])
    later.interner = first.interner
    later.add(Action.OOM, 0, Phase.FORWARD, module="Net.head")
    left = lives.take(lives.freed_at == len(first.events))
    before = replaced(left, allocated_at=[-1] * len(left))
    found = categories(later, before=before)
    assert found == [Category.UNKNOWN, *[Category.ACTIVATION] * 3]


def test_what_was_seen_at_a_moment_is_the_block_that_was_there_then():
    stretch = Stretch().add(ALLOC, 1, Phase.BACKWARD).add(FREE, 1, Phase.OTHER)
    stretch.add(ALLOC, 1, Phase.OTHER)
    gradient = OwnerSample(0, {1: Owner(Category.GRADIENT, "")})
    assert categories(stretch, [gradient]) == [Category.GRADIENT, Category.UNKNOWN]
    later = OwnerSample(2, {1: Owner(Category.GRADIENT, "")})
    assert categories(stretch, [later]) == [Category.TEMPORARY, Category.GRADIENT]


def test_an_input_is_what_was_made_outside_every_module():
    stretch = Stretch().add(ALLOC, 1, Phase.OTHER).add(ALLOC, 2, Phase.FORWARD, module="Net.head")
    inputs = Owner(Category.INPUT, "")
    seen = OwnerSample(1, {1: inputs, 2: inputs})
    assert categories(stretch, [seen]) == [Category.INPUT, Category.UNKNOWN]


def test_what_a_repeated_forward_pass_leaves_is_kept_for_the_backward_pass():
    stretch = Stretch().add(ALLOC, 1, Phase.BACKWARD, step=3).add(ALLOC, 2, Phase.BACKWARD, step=3)
    stretch.add(FREE, 2, Phase.BACKWARD, step=3).add(ALLOC, 4, Phase.BACKWARD, step=3)
    found = categories(stretch, [OwnerSample(2, {}, recomputed=3)])
    assert found == [Category.ACTIVATION, Category.TEMPORARY, Category.UNKNOWN]


def test_a_block_that_lasts_for_steps_is_not_temporary():
    stretch = Stretch().add(ALLOC, 1, Phase.OTHER, step=0).add(FREE, 1, Phase.OTHER, step=2)
    stretch.add(ALLOC, 1, Phase.OTHER, step=2).add(FREE, 1, Phase.OTHER, step=3)
    assert categories(stretch) == [Category.UNKNOWN, Category.TEMPORARY]


def test_an_owner_may_point_into_a_block_and_gives_it_its_module():
    stretch = Stretch().add(ALLOC, 1000, Phase.OTHER).add(ALLOC, 2000, Phase.OTHER)
    lives = lives_of(Lives.build(), stretch.events, 0)
    labels = stretch.labels
    owners = {1100: Owner(Category.PARAMETER, "Net.0"), 1512: Owner(Category.BUFFER, "Net.1")}
    own(lives, owners, 2, labels)
    assert lives.category.tolist() == [Category.PARAMETER, Category.UNKNOWN]
    assert [labels.of(int(row)).module for row in lives.label] == ["Net.0", ""]


@pytest.mark.parametrize("seed", range(20))
def test_an_index_sees_at_each_moment_what_a_look_at_all_lives_sees(seed: int) -> None:
    rng, stretch = random.Random(seed), Stretch()
    for _ in range(60):  # an address comes and goes; some ends are lost, some beginnings too
        stretch.add(rng.choice((ALLOC, ALLOC, FREE)), 512 * rng.randrange(12), Phase.OTHER)
    before = Lives.build(address=[512, 1024, 65536], size=[512, 2048, 512])
    lives = lives_of(before, stretch.events, 0)
    index = AddressIndex(lives)
    addresses = [rng.randrange(13 * 512) for _ in range(40)] + [512 * n for n in range(14)]
    for at in range(61):
        assert index.sight(addresses, at).tolist() == sight(lives, addresses, at).tolist()


def test_an_index_of_nothing_sees_nothing() -> None:
    assert AddressIndex(Lives.build()).sight([1, 2], 0).tolist() == [-1, -1]
    assert AddressIndex(Lives.build(address=[1], size=[1])).sight([], 0).tolist() == []
