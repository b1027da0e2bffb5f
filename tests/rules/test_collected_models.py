"""collected-models: a container keeps whole models, one of each fold or trial."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.records import Finding, Holder, StepColumns
from memprof.reference_chain import Link, LinkKind
from memprof.rules.finding import Kind
from memprof.rules.ranked_findings import findings
from memprof.rules.unexplained_growth import unexplained_growth
from memprof.testing import TraceBuilder
from memprof.trace import Category, Frame
from memprof.views.examination import examine
from tests.rules.recorded import Recording, findings_of

WIDTH, WIDE = 64, 512


def fires():
    models, scores = [], []

    def step(number):
        model = nn.Linear(WIDTH, WIDTH)
        scores.append(model(torch.randn(8, WIDTH)).square().mean().item())
        models.append(model)

    return step


def looks_alike():
    """Of each model its predictions are kept."""
    predictions = []

    def step(number):
        model = nn.Linear(WIDTH, WIDTH)
        predictions.append(model(torch.randn(WIDTH, WIDTH)).detach())

    return step


def test_scores_are_to_be_kept_and_models_let_go(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "collected-models"
    assert found.bytes_per_step == (WIDTH * WIDTH + WIDTH) * 4
    assert (first.fix, first.code) == ("del_ref", "models.append(model)")


def with_their_optimizers():
    trained = {}

    def step(number):
        model = nn.Linear(WIDTH, WIDTH, bias=False)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()
        trained[number] = (model, optimizer)

    return step


def test_models_are_to_be_kept_without_their_optimizers_and_gradients(tmp_path):
    (found,) = findings_of(with_their_optimizers, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("collected-models", "del_ref")
    assert "each with the states of its optimizer and its gradients" in first.why
    parameters = WIDTH * WIDTH * 4
    assert found.bytes_per_step == 4 * parameters + 4  # and AdamW's count of steps
    assert first.saves_bytes == pytest.approx(3 * parameters, rel=0.01)


def ensemble(members):
    """So many members are trained one after the other, each for some steps, and kept."""
    kept = []

    def step(number):
        if number % 8 == 0 and number < 8 * members:
            kept.append(nn.Linear(WIDTH, WIDTH))

    return step


def five():
    return ensemble(5)


def eight():
    return ensemble(8)


def test_five_models_are_an_ensemble_or_folds_and_eight_pile_up(tmp_path):
    assert not any(one.bytes_per_step for one in findings_of(five, tmp_path / "a.json", steps=40))
    assert findings_of(eight, tmp_path / "b.json", steps=64)[0].rule == "collected-models"


@pytest.mark.parametrize(
    ("models", "each", "at_the_end", "is_told"),
    [(5, 1, 0, False), (30, 1, 0, True), (5, 3, 0, False), (30, 3, 0, True), (5, 1, 90, False)],
)
def test_more_that_are_counted_after_five_were_recorded_pile_up(
    tmp_path, models, each, at_the_end, is_told
):
    """A fold may leave more than its model, and a data set is read after all of them."""
    trace = TraceBuilder(device="cpu")
    numbers = list(range(8 * models))
    for step in numbers[:40]:
        trace.label(step=step)
        if step % 8 == 0:
            stack = (Frame("main", "folds.py", 9),)
            trace.alloc(1 << 20, f"m{step}", stack=stack, category=Category.PARAMETER)
    allocated = [each * (step // 8 + 1) << 20 for step in numbers]
    allocated[-2:] = [nbytes + (at_the_end << 20) for nbytes in allocated[-2:]]
    columns = StepColumns(
        first=numbers,
        last=numbers,
        allocated=allocated,
        window=[0 if step < 40 else -1 for step in numbers],
    )
    run = load(Recording((trace,), columns).write(tmp_path / "run.json"))
    rates = [one.bytes_per_step for one in findings(run) if one.bytes_per_step]
    assert rates == ([(4 << 20) / 32] if is_told else [])


@pytest.mark.parametrize(
    ("filename", "releases", "is_told"),
    [("", ("clear",), True), ("", (), False), ("/job/ensemble.py", ("clear",), False)],
    ids=["a library's", "without a way out", "the program's own"],
)
def test_a_librarys_list_of_what_it_prepared_is_no_ensemble(tmp_path, filename, releases, is_told):
    trace = TraceBuilder(device="cpu")
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        if step % 4 == 0:
            stack = (Frame("main", "folds.py", 9),)
            trace.alloc(1 << 20, f"m{step}", stack=stack, category=Category.PARAMETER)
    links = [
        Link(LinkKind.LOCAL, "accelerator", "main", "folds.py", 3),
        Link(LinkKind.ATTRIBUTE, "_models", "Accelerator", filename, releases=releases),
        Link(LinkKind.ITEM, "2", "list", length=4),
        Link(LinkKind.PARAMETER, "weight", "Linear"),
    ]
    holder = Holder(LinkKind.ITEM, "folds.py", 3, "accelerator = Accelerator()", links)
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held,)).write(tmp_path / "run.json"))
    assert any(one.bytes_per_step for one in findings(run)) is is_told


def folds():
    """Five models, each trained for ten steps; their last gradients stay with them."""
    models, current = [], []

    def step(number):
        if number % 10 == 0:
            model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
            current[:] = [model, torch.optim.Adam(model.parameters())]
        model, optimizer = current
        loss = model(torch.randn(8, WIDTH)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number % 10 == 9:
            models.append(model.requires_grad_(False))

    return step


def test_gradients_that_stay_with_five_models_do_not_make_them_more(tmp_path):
    assert not [one for one in findings_of(folds, tmp_path / "run.json", 50) if one.bytes_per_step]


def trained():
    models = []

    def step(number):
        model = nn.Linear(WIDTH, WIDTH, bias=False)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        models.append(model)

    return step


def test_gradients_are_counted_with_the_models_that_have_them(tmp_path):
    found, *_ = findings_of(trained, tmp_path / "run.json", steps=24)
    assert found.rule == "collected-models"
    assert found.bytes_per_step == 2 * WIDTH * WIDTH * 4


class Trial:
    """It makes a model of its own."""

    def __init__(self):
        self.model = nn.Linear(WIDTH, WIDTH)
        self.score = 0.0

    def run(self):
        self.score = self.model(torch.randn(8, WIDTH)).square().mean().item()


class Sweep:
    def __init__(self):
        self.trials = []

    def run(self):
        trial = Trial()
        trial.run()
        self.trials.append(trial)


def test_where_items_make_their_models_the_line_is_the_one_that_keeps_the_items(tmp_path):
    def program():
        sweep = Sweep()
        return lambda number: sweep.run()

    (found,) = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.fix, first.code) == ("del_ref", "self.trials.append(trial)")


class Stages:
    """Each stage makes an optimizer of its own, and a list keeps its scheduler."""

    def __init__(self):
        self.net = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(8)))
        self.schedulers = []

    def stage(self):
        self.optimizer = torch.optim.Adam(self.net.parameters())
        scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 5)
        self.schedulers.append(scheduler)

    def step(self, number):
        if number % 4 == 0:
            self.stage()
        self.net(torch.randn(8, WIDTH)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def staged():
    return Stages().step


def test_optimizers_of_earlier_stages_are_no_models(tmp_path):
    found, *_ = findings_of(staged, tmp_path / "run.json", steps=40)
    assert found.rule == "collected-models"
    first = found.remedies[0]
    assert (first.fix, first.code) == ("del_ref", "self.schedulers.append(scheduler)")
    assert "keeps optimizers with their state: keep the last one" in first.why


class Members:
    def __init__(self):
        self.models = []

    def add(self, model):
        self.models.append(model)

    def predict(self, x):
        return [model(x) for model in self.models]

    def newest(self, x):
        return self.models[-1](x)


def grown(use, every=1):
    def members():
        kept = Members()

        def step(number):
            if number % every == 0:
                kept.add(nn.Linear(WIDE, WIDE))
            with torch.no_grad():
                getattr(kept, use)(torch.randn(8, WIDE))

        return step

    return members


@pytest.mark.parametrize(("use", "minor"), [("predict", True), ("newest", False)])
def test_models_that_are_all_called_are_an_ensemble(use, minor, tmp_path):
    (found,) = findings_of(grown(use), tmp_path / "run.json")
    assert found.rule == "collected-models"
    assert found.minor is minor


@pytest.mark.parametrize(("use", "explained"), [("predict", True), ("newest", False)])
def test_a_few_models_that_are_all_called_explain_what_rises(use, explained, tmp_path):
    assert findings_of(grown(use, every=8), tmp_path / "run.json", steps=44) == ()
    examination = examine(load(tmp_path / "run.json"))
    assert (unexplained_growth(examination, ()) is None) is explained


class Packed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.register_buffer("weight", (layer.weight.detach() * 8).to(torch.int8))


def packs_its_layers():
    """Each of five layers is packed when it has been worked at for some steps."""
    layers = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(5)))
    packed = nn.ModuleList()

    def step(number):
        layers[number // 16](torch.randn(8, WIDE)).square().mean().backward()
        layers.zero_grad()
        if number % 16 == 15:
            packed.append(Packed(layers[number // 16]))

    return step


def test_the_buffers_of_five_layers_are_no_growth(tmp_path):
    found = findings_of(packs_its_layers, tmp_path / "run.json", steps=80)
    assert [one.title for one in found if one.kind is Kind.LEAK] == []


class Experiment:
    def __init__(self, width):
        self.features = torch.randn(WIDE, WIDE)
        self.model = nn.Linear(width, width)

    def clone(self):
        return copy.deepcopy(self)

    def fit(self):
        self.model(torch.randn(8, self.model.in_features)).square().mean().backward()
        return self


def clones(width=WIDTH):
    """Each fold has a model of its own, and the data once more."""
    base, runs = Experiment(width), {}

    def step(number):
        runs[number] = base.clone().fit()

    return step


def test_data_that_are_copied_with_models_are_to_be_there_once(tmp_path):
    (found,) = findings_of(clones, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("collected-models", "store_once")
    assert first.code == "return copy.deepcopy(self)"
    assert first.saves_bytes == pytest.approx(WIDE * WIDE * 4, rel=0.01)


def test_where_models_are_most_of_what_is_copied_they_are_told(tmp_path):
    found = findings_of(lambda: clones(2 * WIDE), tmp_path / "run.json")
    fixes = [remedy.fix for one in found for remedy in one.remedies]
    assert "del_ref" in fixes
    assert "store_once" not in fixes


def tensors_moved_by_hand():
    """Leaves that an optimizer moved are what is wanted, and no models."""
    fields = []

    def step(number):
        field = torch.zeros(64, 64, requires_grad=True)
        optimizer = torch.optim.Adam([field], lr=0.1)
        (field - number).square().sum().backward()
        optimizer.step()
        fields.append(field.detach())

    return step


def test_tensors_that_an_optimizer_was_given_are_no_models(tmp_path):
    found = findings_of(tensors_moved_by_hand, tmp_path / "run.json")
    rules = {remedy.rule for one in found for remedy in one.remedies}
    assert "growing-container" in rules
    assert "collected-models" not in rules
