"""hook: a registered hook keeps all that its function closes over."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, peak_of

WIDTH = 64


def fires():
    """The hook of a tensor reads the tensor."""
    layer = nn.Linear(WIDTH, WIDTH)

    def step(number):
        z = layer(torch.randn(WIDTH, WIDTH))
        z.register_hook(lambda grad: grad * (z > 0))
        z.sum().backward()
        layer.zero_grad()

    return step


def looks_alike():
    """The hook reads a mask that was computed beforehand; masks pile up in a list."""
    layer, masks = nn.Linear(WIDTH, WIDTH), []

    def step(number):
        z = layer(torch.randn(WIDTH, WIDTH))
        mask = (z.detach() > 0).float()
        masks.append(mask)
        z.register_hook(lambda grad: grad * mask)
        z.sum().backward()
        layer.zero_grad()

    return step


def test_the_cycle_is_named_where_the_hook_is_registered(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert found.rule == first.rule == second.rule == "hook"
    assert (first.fix, second.fix) == ("break_cycle", "remove_hook")
    assert first.code == "z.register_hook(lambda grad: grad * (z > 0))"


class Extractor:
    """Its hooks are removed by a method that nothing calls."""

    def __init__(self, layer):
        self.features = {}
        self.handles = [layer.register_forward_hook(self._watcher("first"))]

    def _watcher(self, name):
        def hook(module, inputs, output):
            self.features[name] = output.clone()

        return hook

    def close(self):
        for handle in self.handles:
            handle.remove()


def outlived():
    """Each step's dead hooks store the features of every later step: ever more of one step."""
    layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)

    def step(number):
        Extractor(layer)
        layer(torch.ones(WIDTH, WIDTH))

    return step


def one_extractor():
    """The same hook for all steps: what it stores is made anew, and is no more than before."""
    layer = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    Extractor(layer)

    def step(number):
        layer(torch.ones(WIDTH, WIDTH))

    return step


def test_hooks_that_outlive_their_object_are_removed_by_its_own_method(tmp_path):
    found = findings_of(outlived, tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("hook", "remove_hook")
    assert first.code.endswith('layer.register_forward_hook(self._watcher("first"))]')
    assert "call its `close()`, which removes the hook" in first.why
    assert found.bytes_per_step == WIDTH * WIDTH * 4


def test_one_hook_that_stores_the_last_output_is_no_growth(tmp_path):
    found = findings_of(one_extractor, tmp_path / "run.json", steps=40)
    assert not any(one.bytes_per_step for one in found)


class Tracer:
    """One method removes the hook that it registers, the other does not."""

    def __init__(self, layer):
        self.layer = layer

    def recorder_of(self, store):
        def hook(module, inputs, output):
            store.setdefault("out", output.clone())

        return hook

    def scaled(self, x):
        def hook(module, inputs, output):
            return 2 * output

        handle = self.layer.register_forward_hook(hook)
        try:
            return self.layer(x)
        finally:
            handle.remove()

    def record(self, x):
        store = {}
        self.layer.register_forward_hook(self.recorder_of(store))
        return self.layer(x)


def traced():
    tracer = Tracer(nn.Linear(WIDTH, WIDTH).requires_grad_(False))

    def step(number):
        tracer.record(torch.ones(WIDTH, WIDTH))
        tracer.scaled(torch.ones(WIDTH, WIDTH))

    return step


def test_a_method_that_removes_its_own_hook_removes_no_other(tmp_path):
    found = findings_of(traced, tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("hook", "remove_hook")
    assert first.code == "self.layer.register_forward_hook(self.recorder_of(store))"
    assert "its handle is not kept: keep the handle and call `remove()`" in first.why


class Activations:
    """Its hook gives what a layer returns to its list."""

    def __init__(self, layer):
        self.outputs = []
        self.handle = layer.register_forward_hook(self.take)

    def take(self, module, inputs, output):
        self.outputs.append(output.detach().clone())

    def close(self):
        self.handle.remove()


def one_collector():
    layer = nn.Linear(WIDTH, WIDTH)
    Activations(layer)
    return lambda number: layer(torch.ones(WIDTH, WIDTH))


def collectors(every):
    def program():
        layer = nn.Linear(WIDTH, WIDTH)

        def step(number):
            if number % every == 0:
                Activations(layer)
            layer(torch.ones(WIDTH, WIDTH))

        return step

    return program


def train(layer):
    """A loop below calls a method of this name, of a model."""
    Activations(layer)


def one_collector_of_a_function():
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    train(model[0])

    def step(number):
        for mode in (False, True):
            model.train(mode)
        model(torch.ones(WIDTH, WIDTH))

    return step


@pytest.mark.parametrize("program", [one_collector, one_collector_of_a_function])
def test_what_one_hook_fills_is_emptied_where_it_fills_it(program, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json", steps=40)
    first, second, *_ = found.remedies
    assert (found.rule, first.fix, second.fix) == ("hook", "clear_container", "remove_hook")
    assert first.code == "self.outputs.append(output.detach().clone())"
    assert "only grows: a hook gives to it in every pass" in first.why


@pytest.mark.parametrize("every", [1, 20])
def test_hooks_that_become_more_are_removed_whatever_they_fill(every, tmp_path):
    found = findings_of(collectors(every), tmp_path / "run.json", steps=40)[0]
    assert (found.rule, found.remedies[0].fix) == ("hook", "remove_hook")


class Statistics:
    """Registers once an epoch, and is called by the name of an event."""

    def on_epoch_end(self, layer):
        outputs = []
        layer.register_forward_hook(lambda module, inputs, output: outputs.append(output.clone()))
        layer(torch.ones(WIDTH, WIDTH))
        return outputs[-1].mean().item()


class Training:
    def __init__(self, *callbacks):
        self.layer, self.callbacks = nn.Linear(WIDTH, WIDTH), callbacks

    def emit(self, event):
        return [getattr(one, event)(self.layer) for one in self.callbacks]

    def fit(self, passes):
        for number in range(passes):
            self.layer(torch.ones(WIDTH, WIDTH))
            if number % 4 == 0:
                self.emit("on_epoch_end")


def told_by_events():
    training = Training(Statistics())
    return lambda number: training.fit(2)


def test_hooks_that_an_event_registers_in_a_loop_become_more(tmp_path):
    found = findings_of(told_by_events, tmp_path / "run.json", steps=24)[0]
    assert (found.rule, found.remedies[0].fix) == ("hook", "remove_hook")


def one_for_each_call():
    layer = nn.Linear(WIDTH, WIDTH)

    def predict(number):
        outputs = []

        def take(module, inputs, output):
            outputs.append(output.detach())

        layer.register_forward_hook(take)
        layer(torch.ones(WIDTH, WIDTH))
        return outputs[0].mean().item()

    return predict


def one_before_a_loop():
    layer = nn.Linear(WIDTH, WIDTH)
    outputs = []

    def give(module, inputs, output):
        outputs.append(output.detach())

    def step(number):
        if number == 0:
            layer.register_forward_hook(give)
        for _ in range(2):
            layer(torch.ones(WIDTH, WIDTH))

    return step


def passes(layer, number):
    for _ in range(2):
        layer(torch.ones(WIDTH, WIDTH))


def one_around_a_function():
    """The loop is in a function that is called, so that one hook sees all its passes."""
    layer = nn.Linear(WIDTH, WIDTH)
    outputs = []

    def put(module, inputs, output):
        outputs.append(output.detach())

    def step(number):
        if number == 0:
            layer.register_forward_hook(put)
        passes(layer, number)

    return step


def test_the_function_that_registers_and_calls_the_model_registers_each_time(tmp_path):
    found = findings_of(one_for_each_call, tmp_path / "run.json", steps=40)[0]
    assert (found.rule, found.remedies[0].fix) == ("hook", "remove_hook")
    for number, program in enumerate((one_before_a_loop, one_around_a_function)):
        found = findings_of(program, tmp_path / f"{number}.json", steps=40)[0]
        assert found.remedies[0].fix == "clear_container"


class ByLayer:
    """One hook for each of two layers, which give to a list each."""

    def __init__(self, layers):
        self.outputs = {name: [] for name in layers}
        for name, layer in layers.items():
            layer.register_forward_hook(self.giving(name))

    def giving(self, name):
        def hook(module, inputs, output):
            self.outputs[name].append(output.detach().clone())

        return hook


class OfValidation:
    """The same, made for each validation."""

    def __init__(self, layers):
        self.shown = {name: [] for name in layers}
        for name, layer in layers.items():
            layer.register_forward_hook(self.showing(name))

    def showing(self, name):
        def watcher(module, inputs, output):
            self.shown[name].append(output.detach().clone())

        return watcher


def layers_of(number):
    return {str(at): nn.Linear(WIDTH, WIDTH) for at in range(number)}


def passing(layers):
    x = torch.ones(WIDTH, WIDTH)
    for layer in layers.values():
        x = layer(x)


def by_one_each():
    layers = layers_of(2)
    ByLayer(layers)
    return lambda number: passing(layers)


def validate(layers):
    OfValidation(layers)
    passing(layers)


def by_ever_more():
    layers = layers_of(2)

    def step(number):
        for _ in range(number % 2):
            validate(layers)
        passing(layers)

    return step


@pytest.mark.parametrize(
    ("program", "fix", "code"),
    [
        (by_one_each, "clear_container", "self.outputs[name].append(output.detach().clone())"),
        (by_ever_more, "remove_hook", "layer.register_forward_hook(self.showing(name))"),
    ],
)
def test_lists_by_layer_are_emptied_unless_there_are_ever_more_hooks(program, fix, code, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json", steps=40)
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("hook", fix, code)


class Callback:
    """A framework's."""


class LayerStatistics(Callback):
    """Registers at each epoch, when a framework's loop calls it."""

    def on_train_epoch_start(self, layer):
        outputs = []

        def capture(module, inputs, output):
            outputs.append(output.detach().clone())

        layer.register_forward_hook(capture)


def of_a_framework():
    layer, callback = nn.Linear(WIDTH, WIDTH), LayerStatistics()

    def step(number):
        if number % 4 == 0:
            getattr(callback, "on_train_" + "epoch_start")(layer)
        with torch.no_grad():
            layer(torch.randn(WIDTH, WIDTH))

    return step


def test_what_a_framework_calls_at_each_epoch_registers_ever_more(tmp_path):
    (found, *_) = findings_of(of_a_framework, tmp_path / "run.json", steps=24)
    assert found.rule == "hook"
    assert found.remedies[0].fix == "remove_hook"
    assert found.remedies[0].code == "layer.register_forward_hook(capture)"


class OutputRecorder:
    """Keeps what a layer returns, until it is released."""

    def __init__(self, layer):
        self.recorded = []
        self.handle = layer.register_forward_hook(self.save)

    def save(self, module, inputs, output):
        self.recorded.append(output.detach().clone())

    def release(self):
        self.handle.remove()


class Explanation:
    def __init__(self, layer):
        self.recorder = OutputRecorder(layer)


def explain(layer, x):
    for one in x.split(WIDTH):
        Explanation(layer)
        layer(one)


def explained():
    layer = nn.Linear(WIDTH, WIDTH)

    @torch.no_grad()
    def step(number):
        explain(layer, torch.randn(WIDTH, WIDTH))

    return step


def test_an_object_that_a_loop_makes_may_register_by_a_part_of_its_own(tmp_path):
    (found, *_) = findings_of(explained, tmp_path / "run.json", steps=24)
    assert found.rule == "hook"
    assert found.remedies[0].fix == "remove_hook"
    assert "call its `release()`" in found.remedies[0].why


class Tap:
    """Keeps what a layer returns, by a hook that nobody removes."""

    def __init__(self, layer):
        self.seen = {}
        self.handle = layer.register_forward_hook(self.keep)

    def keep(self, _module, _args, output):
        self.seen["last"] = torch.nn.functional.normalize(output.detach(), dim=1)


def tapped(removing):
    teacher, student = (nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(2))

    @torch.no_grad()
    def step(number):
        taps = [Tap(teacher[0]), Tap(student[0])]
        teacher(torch.randn(256, 256))
        student(torch.randn(256, 256))
        for tap in taps if removing else ():
            tap.handle.remove()

    return step


def test_what_one_change_saves_of_two_models_is_counted_once(tmp_path):
    found = findings_of(lambda: tapped(removing=False), tmp_path / "run.json")
    first = found[0].remedies[0]
    assert (found[0].rule, first.fix) == ("hook", "remove_hook")
    findings_of(lambda: tapped(removing=True), tmp_path / "removed.json")
    assert first.peak_after == pytest.approx(peak_of(tmp_path / "removed.json"), rel=0.01)
