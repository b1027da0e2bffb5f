"""Objects of a program that raise when they are looked at: each costs itself and a note."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="the objects are torch's")

import memprof  # noqa: E402
from memprof.sources.cpu.find_storages import objects_with_tensors  # noqa: E402
from memprof.sources.cuda.source_with_owners import OwnedCudaSource  # noqa: E402
from memprof.sources.guarded_access import GuardedAccess  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch  # noqa: E402
from memprof.sources.owners.tensor_owners import parts, tensors_in  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.testing.cuda import TorchStandIn  # noqa: E402
from memprof.trace import Action, Category  # noqa: E402
from tests.sources import strange  # noqa: E402
from tests.sources.pretended import recorded_device  # noqa: E402


class Net(torch.nn.Module):
    """Has strange buffers, is given strange arguments, and returns strange results."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 5)
        self.register_buffer("half_made", strange.Half(torch.ones(4)))
        self.register_buffer("rude", strange.rude())
        self.register_buffer("looped", strange.Looped(torch.ones(4)))
        self.view = strange.stale_view()

    def forward(self, x, *strangers):
        return self.layer(x), self.view, self.looped, *strangers


def train(steps: int) -> None:
    model, plain = Net(), torch.nn.Linear(2, 2)
    adam = torch.optim.Adam(model.parameters(), 0.1)
    withheld = torch.optim.SGD(plain.parameters(), 0.1, momentum=0.9)
    strangers = [strange.dead_proxy(), strange.Lazy(), strange.Nameless(), model.half_made]
    for step in range(steps):
        plain(torch.ones(2, 2)).sum().backward()
        withheld.step()
        if not step:
            withheld.state = strange.Withheld(withheld.state)
        model(torch.ones(2, 3), *strangers)[0].sum().backward()
        adam.step()
        adam.zero_grad()


def notes_of(run: memprof.Run) -> list[str]:
    """What the sources said that raised, and nothing else but the thread's own notes."""
    return [note.message for note in run.notes]


def categories(run: memprof.Run) -> Counter[Category]:
    (device,) = run.devices
    return Counter(
        Category(int(category))
        for window in device.windows
        for action, category in zip(window.events.action, window.events.category, strict=True)
        if action == Action.ALLOC
    )


@pytest.mark.parametrize("source", ["cpu", "cuda"])
def test_a_program_of_strange_objects_is_recorded_to_its_end(tmp_path, monkeypatch, source):
    with memprof.track(tmp_path / "run.json", sources=(source,), allowance_s=60):
        pass  # what is imported at first use is there
    if source == "cuda":
        device = recorded_device(monkeypatch)
        with memprof.track(tmp_path / "run.json", sources=("cuda",), allowance_s=60), device:
            train(12)
    else:
        with memprof.track(tmp_path / "run.json", sources=("cpu",), allowance_s=60):
            train(12)
    run = memprof.load(tmp_path / "run.json")
    said = notes_of(run)
    assert said
    assert all("raised when it was looked at" in message for message in said), said
    found = categories(run)
    assert found[Category.OPTIMIZER_STATE] >= 3 * 2 - 2  # Adam's, beside the state that is withheld
    assert found[Category.GRADIENT] >= 2 * 12
    assert run.footer.status == "ok"


def test_each_kind_is_told_once_and_a_few_at_most():
    guard = GuardedAccess()
    for _ in range(3):
        for item in (1, "a", [], {}, (), 2.0, b""):
            guard.add(item, ValueError("in\ntwo lines"))
    assert guard.notes() == [
        f"an object of type {kind} raised when it was looked at: ValueError: in"
        for kind in ("int", "str", "list", "dict", "tuple")
    ]
    assert guard.notes() == []


def test_an_error_without_words_is_told_all_the_same():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    guard = GuardedAccess()
    guard.add(1, Mute())
    assert guard.notes() == [
        "an object of type int raised when it was looked at: an error without words"
    ]


def test_the_others_are_looked_at():
    guard, seen = GuardedAccess(), []
    guard.each(lambda item: seen.append(10 // item), [1, 0, 5])
    assert seen == [10, 2]
    assert list(guard.within(lambda n: (12 // k for k in (1, n)), [2, 0, 3])) == [12, 6, 12, 12, 4]
    (note,) = guard.notes()
    assert note.startswith("an object of type int raised when it was looked at: ZeroDivisionError")


def test_of_a_strange_list_the_tensors_are_found():
    tensor, guard = torch.ones(2), GuardedAccess()
    value = [strange.dead_proxy(), {"a": tensor}, strange.Lazy(), strange.Nameless(), (tensor,)]
    assert list(map(id, tensors_in(value, guard))) == [id(tensor)] * 2
    assert [note.split()[4] for note in guard.notes()] == ["ProxyType", "Lazy", "Nameless"]


def test_a_wrapper_of_itself_has_no_parts():
    assert list(parts(strange.Looped(torch.ones(2)), GuardedAccess())) == []


def test_classes_that_are_no_keys_hide_no_tensor():
    nameless, tensor = strange.Nameless(), torch.ones(3)
    gc.collect()
    assert any(one is tensor for one in objects_with_tensors())
    assert nameless is not None


def test_a_listener_that_raises_keeps_nothing_from_the_others():
    interner = Interner()
    loop_watch = LoopWatch(interner)
    loop_watch.open(lambda step: None)
    heard = []

    class Broken:
        def __getattr__(self, name):
            raise ValueError("broken")

    class Whole:
        def outermost_call(self, module, args, kwargs):
            heard.append("call")

        def forward_ended(self, *, with_gradients):
            heard.append("ended")

    loop_watch.listeners += [Broken(), Whole()]
    loop_watch.watch_modules()
    torch.nn.Linear(2, 2)(torch.ones(1, 2))
    loop_watch.close()
    assert heard == ["call", "ended"]
    assert loop_watch.notes() == ["a boundary was missed: ValueError: broken"]


def test_a_model_that_returns_what_torch_refuses_to_ask_runs_on_in_a_window():
    interner = Interner()
    loop_watch = LoopWatch(interner)
    loop_watch.open(lambda step: None)
    source = OwnedCudaSource(interner, loop_watch, TorchStandIn())
    source.open()
    source.begin_window()

    class Net(torch.nn.Module):
        def forward(self):
            return strange.stale_view()

    assert Net()().shape == (3,)
    source.end_window()
    source.close()
    loop_watch.close()
    assert source.notes() == []
