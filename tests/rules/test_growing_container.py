"""growing-container: a list, a dict or a set is filled in every step and never emptied."""

from __future__ import annotations

import copy
import heapq
import importlib.util
import sys
from collections import defaultdict, deque
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import memprof
from tests.rules.recorded import findings_of

WIDTH = 64


def fires():
    outputs = []

    def step(number):
        outputs.append(torch.zeros(WIDTH, WIDTH))

    return step


def looks_alike():
    """The list is emptied at the end of each epoch of four steps."""
    outputs = []

    def step(number):
        outputs.append(torch.zeros(WIDTH, WIDTH))
        if number % 4 == 3:
            outputs.clear()

    return step


def test_it_is_to_be_emptied_or_to_hold_its_items_on_the_host(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    assert found.rule == "growing-container"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert [one.fix for one in found.remedies] == ["clear_container", "cpu_offload", "del_ref"]
    assert {one.code for one in found.remedies} == {"outputs.append(torch.zeros(WIDTH, WIDTH))"}


def a_gallery():
    """A few of each name's last values, for ever new names."""
    gallery = defaultdict(lambda: deque(maxlen=2))

    def step(number):
        for name in (number, number + 1, number + 2):
            gallery[name].append(torch.zeros(WIDTH, WIDTH))

    return step


def test_what_has_ever_more_bounded_items_is_to_lose_some(tmp_path):
    found = findings_of(a_gallery, tmp_path / "run.json", 24)[0]
    first = found.remedies[0]
    assert first.fix == "clear_container"
    assert "`gallery` (" in first.why
    assert "take out what is not needed any more (`pop`)" in first.why


def by_default():
    def collect(value, seen=[]):  # noqa: B006 - the mistake
        seen.append(value)
        return len(seen)

    def step(number):
        collect(torch.zeros(WIDTH, WIDTH))

    return step


class Averages:
    """What is made for each object, and is as large as a model."""

    def __init__(self):
        self.weights = torch.zeros(WIDTH, WIDTH)


class Fold:
    """Adds to the list of a configuration that every fold is given."""

    def __init__(self, settings):
        self.callbacks = settings.callbacks
        self.callbacks.append(Averages())


class Member:
    """Enters itself: that the list is shared is what it is for."""

    def __init__(self, settings):
        self.team, self.weights = settings.members, torch.zeros(WIDTH, WIDTH)
        self.team.append(self)


def of_one_configuration(kind):
    settings = SimpleNamespace(callbacks=[], members=[])
    return lambda number: kind(settings)


class Journal:
    """Of all epochs the best few are averaged."""

    def __init__(self):
        self.epochs = []

    def record(self, loss):
        self.epochs.append({"loss": loss, "weights": torch.zeros(WIDTH, WIDTH)})
        return len(self.epochs)

    def average(self, count):
        if not self.epochs:
            return []
        return sorted(self.epochs, key=lambda epoch: epoch["loss"])[:count]


class History:
    """The same of all that there are; the best is asked for besides."""

    def __init__(self):
        self.rounds = []

    def record(self, loss):
        self.rounds.append({"loss": loss, "weights": torch.zeros(WIDTH, WIDTH)})

    def average(self):
        return sum(epoch["loss"] for epoch in self.rounds), min(self.rounds, key=len)


class Ranking:
    """The best come first, and are read."""

    def __init__(self):
        self.trials = []

    def record(self, loss):
        self.trials.append((loss, torch.zeros(WIDTH, WIDTH)))
        self.trials.sort(key=lambda trial: trial[0])

    def best(self):
        return self.trials[:3]


@pytest.mark.parametrize(
    ("kind", "best"),
    [
        (Journal, "sorted(self.epochs, key=lambda epoch: epoch['loss'])[:count]"),
        (Ranking, "self.trials[:3]"),
        (History, ""),
    ],
)
def test_where_only_the_best_items_are_read_the_others_are_to_go(kind, best, tmp_path):
    (found,) = findings_of(lambda: kind().record, tmp_path / "run.json")
    assert found.remedies[0].fix == "clear_container"
    text = f"only the best few of it are read (`{best}`): take the others out as they come"
    assert (text in found.remedies[0].why) is bool(best)


def hardest():
    heap = []

    def step(number):
        heapq.heappush(heap, (-number, torch.zeros(WIDTH, WIDTH)))

    return step


def test_a_default_argument_is_to_be_made_in_the_function(tmp_path):
    (found,) = findings_of(by_default, tmp_path / "run.json")
    fixes = [one.fix for one in found.remedies]
    assert fixes[:2] == ["own_container", "clear_container"]
    assert found.remedies[0].code == "seen.append(value)"


def test_a_list_that_objects_are_given_is_to_be_copied_for_each(tmp_path):
    found = findings_of(lambda: of_one_configuration(Fold), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("growing-container", "own_container")
    assert first.code == "self.callbacks = settings.callbacks"
    assert first.typed == "list(settings.callbacks)"
    others = findings_of(lambda: of_one_configuration(Member), tmp_path / "team.json")[0]
    assert "own_container" not in [one.fix for one in others.remedies]


def test_a_heap_is_to_hold_the_first_few(tmp_path):
    (found,) = findings_of(hardest, tmp_path / "run.json")
    assert found.remedies[0].fix == "clear_container"
    assert "`heapq.heappushpop` once there are enough" in found.remedies[0].why


def collected_results():
    """An evaluation whose vectors are joined when all of them are there."""

    def collect():
        vectors = []
        for number in range(40):
            vectors.append(torch.ones(WIDTH, WIDTH) * number)
            memprof.step()
        return torch.cat(vectors)

    def step(number):
        if number == 0:
            collect()

    return step


def test_parts_of_a_result_that_are_joined_afterwards_are_no_headline(tmp_path):
    found = findings_of(collected_results, tmp_path / "run.json", steps=1)
    assert [one.rule for one in found if not one.minor] == []


def returned_results(learns):
    """A function that collects what it returns, after training or while it goes on."""
    layer = torch.nn.Linear(WIDTH, WIDTH)

    def collect():
        answers = []
        for _ in range(40):
            with torch.no_grad():
                answers.append((layer(torch.ones(WIDTH, WIDTH)), 0))
            learns()
            memprof.step()
        return answers

    def learn():
        layer(torch.ones(WIDTH, WIDTH)).sum().backward()
        layer.zero_grad()

    learns = learn if learns else int

    def step(number):
        learn()
        if number == 0:
            collect()

    return step


@pytest.mark.parametrize(("learns", "rules"), [(False, []), (True, ["growing-container"])])
def test_a_list_that_is_returned_is_no_headline_unless_something_learns(learns, rules, tmp_path):
    found = findings_of(lambda: returned_results(learns), tmp_path / "run.json", steps=1)
    assert [one.rule for one in found if not one.minor] == rules


def saliency():
    """Of every picture of a data set, which is there from the start; the gradients come."""
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(WIDTH * WIDTH, 1))
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    pictures = []
    for number in range(200):
        pictures.append(torch.full((1, WIDTH, WIDTH), float(number)))

    def step(number):
        picture = pictures[number]
        picture.requires_grad_(True)
        model(picture).sum().backward()
        picture.grad.abs().max().item()

    return step


def test_gradients_that_data_is_left_with_are_no_models(tmp_path):
    found, *_ = findings_of(saliency, tmp_path / "run.json")
    assert (found.rule, found.bytes_per_step) == ("growing-container", WIDTH * WIDTH * 4)
    first, second, *_ = found.remedies
    assert (first.fix, first.code) == ("detach", "picture.requires_grad_(True)")
    assert (second.fix, second.code) == ("set_to_none", "model(picture).sum().backward()")
    assert "`.grad` of every tensor in `pictures`" in second.why


class Maps:
    """Of all maps of all steps the mean is shown."""

    def __init__(self):
        self.maps = []

    def add(self, one):
        self.maps.append(one)

    def mean(self):
        return torch.stack(self.maps).mean(dim=0)


def averaged():
    store = Maps()

    def step(number):
        store.add(torch.zeros(WIDTH, WIDTH))

    return step


def test_what_only_a_mean_is_read_of_is_added_up_as_it_comes(tmp_path):
    (found,) = findings_of(averaged, tmp_path / "run.json")
    first, second, *_ = found.remedies
    assert (first.fix, first.code) == ("running_total", "self.maps.append(one)")
    assert "`torch.stack(self.maps).mean(dim=0)` is read" in first.why
    assert second.fix == "clear_container"


class Adapted(torch.nn.Module):
    """A layer with a small one beside it, named as PEFT names them."""

    def __init__(self):
        super().__init__()
        self.base_layer = torch.nn.Linear(128, 128).requires_grad_(False)
        self.lora_A, self.lora_B = torch.nn.Linear(128, 2), torch.nn.Linear(2, 128)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


def states_of_tasks():
    model, states = Adapted(), {}
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)

    def step(number):
        model(torch.randn(8, 128)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        states[number] = copy.deepcopy(model.state_dict())

    return step


def test_of_a_model_with_adapters_their_state_alone_is_to_be_kept(tmp_path):
    (found, *_) = findings_of(states_of_tasks, tmp_path / "run.json", steps=20)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("growing-container", "del_ref")
    assert first.typed == "get_peft_model_state_dict(model)"
    assert first.code == "states[number] = copy.deepcopy(model.state_dict())"


class Pages:
    """Of each page's rows one mean is read, when all are there."""

    def __init__(self):
        self.pages = []

    def add(self, rows):
        self.pages.extend(rows)

    def finish(self):
        return [rows[1:-1].mean(dim=0) for rows in self.pages]


class Drafts:
    """They are compared with what is known when all are there."""

    def __init__(self):
        self.drafts = []

    def add(self, rows):
        self.drafts.extend(rows)

    def finish(self, wanted):
        return [(rows - wanted).square().mean() for rows in self.drafts]


def paging(kind):
    def program():
        pages = kind()

        def step(number):
            pages.add([torch.zeros(WIDTH, WIDTH) for _ in range(2)])

        return step

    return program


def test_what_only_a_reduction_of_each_item_is_read_of_is_reduced_before(tmp_path):
    found = findings_of(paging(Pages), tmp_path / "run.json")[0]
    first = found.remedies[0]
    assert (first.fix, first.code) == ("reduce_predictions", "self.pages.extend(rows)")
    assert "only `rows[1:-1].mean(dim=0)` is read" in first.why


def test_a_reduction_with_something_else_may_have_to_wait_for_that(tmp_path):
    found = findings_of(paging(Drafts), tmp_path / "run.json")[0]
    assert "reduce_predictions" not in [one.fix for one in found.remedies]


def deferred_lines():
    """Each function that a log keeps has a value as its default argument."""
    entries = []

    def step(number):
        values = torch.rand(64, 256)
        entries.append((number, lambda values=values: f"{values.mean():.4f}"))

    return step


def gradients_of_each_step():
    model, history = torch.nn.Linear(256, 64), defaultdict(list)

    def step(number):
        model.zero_grad()
        model(torch.rand(8, 256)).sum().backward()
        for name, one in model.named_parameters():
            history[name].append(one.grad)

    return step


@pytest.mark.parametrize("program", [deferred_lines, gradients_of_each_step])
def test_what_a_list_of_the_program_keeps_is_to_be_taken_out_of_it(program, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    assert found.rule == "growing-container"
    assert "own_container" not in [one.fix for one in found.remedies]
    assert found.remedies[0].fix in ("clear_container", "del_ref")


class Jobs:
    """Requests by their number, which a batch takes out; some have been given up by then."""

    def __init__(self):
        self.waiting = {}

    def put(self, number):
        self.waiting[number] = torch.zeros(WIDTH, WIDTH)

    def batch(self, numbers):
        taken = []
        for number in numbers:
            if self.waiting[number].numel() and number % 2:
                continue
            taken.append(number)
        return [self.waiting.pop(number).sum() for number in taken]


def given_up():
    jobs = Jobs()

    def step(number):
        jobs.put(number)
        jobs.batch([number])

    return step


def test_a_branch_that_leaves_an_entry_in_is_named(tmp_path):
    found = findings_of(given_up, tmp_path / "run.json", 32)[0]
    first = next(one for one in found.remedies if one.fix == "clear_container")
    assert first.code == "if self.waiting[number].numel() and number % 2:"
    assert "reads `self.waiting[number]` and leaves it in" in first.why


def fields_with_gradients():
    """An optimizer moves a field of each subject; the fields are wanted, their gradients not."""
    fields = []

    def step(number):
        field = torch.zeros(WIDTH, WIDTH, requires_grad=True)
        optimizer = torch.optim.SGD([field], lr=0.1)
        (field - number).square().sum().backward()
        optimizer.step()
        fields.append(field)

    return step


def test_of_leaves_that_are_wanted_the_gradients_go_first(tmp_path):
    (found,) = findings_of(fields_with_gradients, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("growing-container", "set_to_none")
    assert (first.typed, first.code) == ("field.grad = None", "fields.append(field)")
    assert found.bytes_per_step == 2 * WIDTH * WIDTH * 4
    assert first.saves_bytes == WIDTH * WIDTH * 4


class PredictionOutput(NamedTuple):
    """What a Trainer's `predict` returns."""

    predictions: object
    label_ids: object
    metrics: object


def step_of(path, text):
    """The step of a program that is a file of its own."""
    path.write_text(text)
    module = importlib.util.module_from_spec(importlib.util.spec_from_file_location("job", path))
    module.__dict__.update(torch=torch, PredictionOutput=PredictionOutput)
    module.__spec__.loader.exec_module(module)
    sys.modules["job"] = module
    return module.step


@pytest.fixture
def _no_job():
    yield
    sys.modules.pop("job", None)


@pytest.mark.usefixtures("_no_job")
@pytest.mark.parametrize("read", [False, True])
def test_the_one_field_that_is_read_of_results_is_to_be_kept(read, tmp_path):
    text = RESULTS.format(read="results[number].predictions.sum()" if read else "pass")
    path = tmp_path / "train.py"
    found = findings_of(lambda: step_of(path, text), tmp_path / "run.json", steps=40)[0]
    first = found.remedies[0]
    assert first.fix == "clear_container"
    assert ("of each item only `.metrics` is read: keep that alone" in first.why) is not read


RESULTS = """\
results = {{}}


def step(number):
    results[number] = PredictionOutput(torch.zeros(64, 64), None, {{"loss": 1.0}})
    if number % 8 == 7:
        for result in results.values():
            print(result.metrics["loss"])
        print([one.metrics for one in results.values()][-1]["loss"])
        {read}
"""

PAGES = """\
pages = [{{"ids": torch.arange(8)}} for _ in range(40)]
more = []


def prepare():
    for page in pages:
        more.append({{"ids": page["ids"]{first}}})


prepare()


def step(number):
    more[number]["bias"] = torch.zeros(64, 64)
"""


@pytest.mark.parametrize(("first", "fix"), [("", "del_ref"), (', "bias": None', "clear_container")])
def test_what_an_item_is_given_later_is_not_the_containers(first, fix, tmp_path):
    """A data set's own dictionaries get one entry more in each batch."""
    text = PAGES.format(first=first)
    path = tmp_path / "train.py"
    found = findings_of(lambda: step_of(path, text), tmp_path / "run.json", steps=40)[0]
    assert found.remedies[0].fix == fix


WORST = """\
cases = []


def step(number):
    cases.append((float(number), torch.zeros(64, 64)))
    if number % 8 == 7:
        print(min(score for score, _ in cases))


def end():
    cases.sort(key=lambda case: case[0])
    {read}
"""


@pytest.mark.usefixtures("_no_job")
@pytest.mark.parametrize(
    ("read", "few"), [("return cases[:12]", True), ("return [x for _, x in cases]", False)]
)
def test_the_least_of_all_numbers_is_one_of_the_best_few(read, few, tmp_path):
    text = WORST.format(read=read)
    path = tmp_path / "train.py"
    found = findings_of(lambda: step_of(path, text), tmp_path / "run.json", steps=40)[0]
    assert ("only the best few of it are read (`cases[:12]`)" in found.remedies[0].why) is few


SHARDS = """\
shards = []
for _ in range(60):
    shards.append(torch.rand(64, 64))
weight = torch.rand(64, 64, requires_grad=True)


def step(number):
    real = shards[number]
    {ask}
    (real @ weight).square().sum().backward()
    weight.grad = None
"""


@pytest.mark.usefixtures("_no_job")
@pytest.mark.parametrize(
    ("ask", "fix"),
    [("real.requires_grad_(True)", "detach"), ("real = real.detach().requires_grad_()", "")],
)
def test_what_a_container_has_is_not_to_ask_for_gradients_itself(ask, fix, tmp_path):
    path = tmp_path / "train.py"
    text = SHARDS.format(ask=ask)
    found = findings_of(lambda: step_of(path, text), tmp_path / "run.json", steps=40)
    growth = [one for one in found if one.bytes_per_step]
    if not fix:
        assert growth == []
        return
    first = growth[0].remedies[0]
    assert (first.fix, first.code) == (fix, ask)
    assert first.typed == "real = real.detach().requires_grad_(True)"
    assert growth[0].bytes_per_step == 64 * 64 * 4


MEAN = """\
maps = []


def step(number):
    maps.append(torch.zeros(64, 64))
    if number == 39:
        print(torch.stack(maps).mean(0).sum().item())
"""


@pytest.mark.usefixtures("_no_job")
def test_what_is_added_up_is_not_joined_either(tmp_path):
    found = findings_of(
        lambda: step_of(tmp_path / "train.py", MEAN), tmp_path / "run.json", steps=40
    )[0]
    first = found.remedies[0]
    one = 64 * 64 * 4
    assert (found.rule, first.fix) == ("growing-container", "running_total")
    assert first.peak_before >= 80 * one  # forty in the list, and joined
    assert first.peak_after <= 4 * one


PASSED = """\
maps = []


def step(number):
    maps.append(torch.rand(64, 64))
    if number == 39:
        {read}
"""


@pytest.mark.usefixtures("_no_job")
@pytest.mark.parametrize(
    ("read", "fix", "how"),
    [
        (
            "total = torch.zeros(64, 64)\n        for one in maps:\n            total += one.T @ one",
            "running_total",
            "one after the other: do what it does with each as it comes, and keep none.",
        ),
        (
            "print(maps[0].norm())",
            "clear_container",
            "only its first item is read (`maps[0]`): keep that, and put no more into it.",
        ),
        (
            "print(random.choice(maps).norm())",
            "clear_container",
            "(`random.choice(maps)`): let the oldest go once there are enough (`deque(maxlen=…)`).",
        ),
    ],
)
def test_what_is_kept_is_what_is_read(read, fix, how, tmp_path):
    text = "import random\n" + PASSED.format(read=read)
    found = findings_of(
        lambda: step_of(tmp_path / "train.py", text), tmp_path / "run.json", steps=40
    )[0]
    assert (found.rule, found.remedies[0].fix) == ("growing-container", fix)
    assert found.remedies[0].why.endswith(how)


LOGS = """\
from torch import nn

logs = {}
net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512))


def log(name, value):
    logs.setdefault(name, []).append(value)


def step(number):
    out = net(torch.randn(64, 64))
    loss = out.mean()
    size = out.square().mean()
    log("loss", loss.item())
    log("size", size)
    loss.backward()
"""


@pytest.mark.usefixtures("_no_job")
def test_a_function_that_is_also_handed_numbers_cuts_nothing_off_itself(tmp_path):
    found = findings_of(
        lambda: step_of(tmp_path / "train.py", LOGS), tmp_path / "run.json", steps=40
    )[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("kept-graph", "detach", 'log("size", size)')
    assert first.why.startswith("`logs` keeps `size` with the graph that made it")


def loss_read():
    results = []

    def step(number):
        logits = torch.rand(WIDTH, WIDTH)
        results.append(SimpleNamespace(loss=logits.mean(), logits=logits))
        return sum(one.loss.item() for one in results)

    return step


def both_read():
    pairs = []

    def step(number):
        logits = torch.rand(WIDTH, WIDTH)
        pairs.append(SimpleNamespace(loss=logits.mean(), logits=logits))
        return sum(one.loss.item() * one.logits[0, 0].item() for one in pairs)

    return step


def test_the_attribute_that_is_read_of_each_item_is_to_be_kept_alone(tmp_path):
    found, *_ = findings_of(loss_read, tmp_path / "a.json")
    assert found.remedies[0].fix == "del_ref"
    assert "of each item only `.loss` is read: keep that alone" in found.remedies[0].why
    found, *_ = findings_of(both_read, tmp_path / "b.json")
    assert "keep that alone" not in found.remedies[0].why
