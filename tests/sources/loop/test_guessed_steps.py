"""Steps of programs that mark none: how many a recording of each has, and where they ended."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

import memprof  # noqa: E402
from tests.tracked import of_kind  # noqa: E402


@pytest.fixture
def steps(tmp_path):
    """A function that records another one and tells its steps and what of them was guessed."""

    def recorded(program):
        path = tmp_path / "run.json"
        with memprof.track(path, sources=["cpu"], allowance_s=600):
            program()
        run = memprof.load(path)
        numbers = run.device("cpu").steps
        assert numbers.first.tolist() == numbers.last.tolist() == list(range(len(numbers)))
        assert run.footer.steps == len(numbers)
        labels = [one.step for window in run.device("cpu").windows for one in window.tables.labels]
        assert max(labels) <= len(numbers)
        return len(numbers), run.guessed

    return recorded


class Affine(nn.Module):
    """A transform as torchvision has them: a module without parameters."""

    def forward(self, x):
        return (x - 0.1) / 0.3


def trained(model, optimizer, x):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def test_transforms_of_samples_are_no_steps_of_the_training_that_they_feed(steps):
    def program():
        model, criterion, affine = nn.Linear(4, 3), nn.CrossEntropyLoss(), Affine()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(10):
            x = torch.stack([affine(torch.ones(4)) for _ in range(16)])
            loss = criterion(model(x).squeeze(), torch.zeros(16, dtype=torch.long))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert steps(program) == (10, None)


def test_where_nothing_but_modules_without_parameters_is_called_each_call_is_a_step(steps):
    def program():
        affine, results = Affine(), []
        for _ in range(12):
            results.append(affine(torch.ones(4)))

    count, guessed = steps(program)
    assert count == 12
    assert (guessed.first, guessed.last, guessed.sign) == (0, 11, "bare_call")


def test_an_evaluation_before_the_training_belongs_to_its_first_step(steps):
    def program():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.no_grad():
            for _ in range(20):
                model.eval()(torch.ones(2, 4))
        for _ in range(6):
            trained(model.train(), optimizer, torch.ones(2, 4))

    assert steps(program) == (6, None)


def test_an_evaluation_between_two_epochs_belongs_to_the_step_that_follows(steps):
    def program():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(2):
            for _ in range(5):
                trained(model.train(), optimizer, torch.ones(2, 4))
            with torch.no_grad():
                for _ in range(30):
                    model.eval()(torch.ones(2, 4))
        for _ in range(2):
            trained(model.train(), optimizer, torch.ones(2, 4))

    assert steps(program) == (12, None)


def test_a_long_evaluation_after_the_training_has_steps_of_its_own(steps):
    def program():
        model = nn.Linear(4, 4)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            trained(model.train(), optimizer, torch.ones(2, 4))
        with torch.no_grad():
            for _ in range(30):
                model.eval()(torch.ones(2, 4))

    count, guessed = steps(program)
    assert count == 5 + 30 - 8  # the first eight might have belonged to the training still
    assert (guessed.first, guessed.last, guessed.sign) == (5, 26, "call")
    assert guessed.filename == __file__
    assert guessed.line == program.__code__.co_firstlineno + 7


def test_each_model_of_a_sweep_is_a_step(steps):
    def score(model):
        with torch.no_grad():
            return float(model.eval()(torch.ones(2, 4)).sum())

    count, guessed = steps(lambda: [score(nn.Linear(4, 4)) for _ in range(15)])
    assert count == 15
    assert guessed.line == score.__code__.co_firstlineno + 2


def test_two_lines_that_call_one_model_make_one_step(steps):
    def program():
        model = nn.Linear(4, 4).eval()
        with torch.no_grad():
            for _ in range(15):
                first = model(torch.ones(2, 4))
                model(first.clone())

    assert steps(program)[0] == 15


def test_gradients_asked_for_in_an_evaluation_make_steps(steps):
    def program():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
        for _ in range(15):
            x = torch.ones(2, 4, requires_grad=True)
            torch.autograd.grad(model(x).sum(), x)

    count, guessed = steps(program)
    assert (count, guessed.sign) == (15, "backward")
    assert guessed.line == program.__code__.co_firstlineno + 4


def test_parameters_that_are_changed_through_data_make_steps(steps):
    def program():
        model, criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()
        for _ in range(15):
            model.zero_grad()
            out = model(torch.ones(2, 4)).view(-1, 3)
            criterion(out, torch.zeros(2, dtype=torch.long)).backward()
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.01)

    count, guessed = steps(program)
    assert (count, guessed.sign) == (15, "backward")


def test_layers_that_are_called_one_by_one_make_one_step_with_their_backward_pass(steps):
    def program():
        layers = [nn.Linear(4, 4) for _ in range(3)]
        parameters = [p for layer in layers for p in layer.parameters()]

        def forward(x):
            for layer in layers:
                x = layer(x).relu()
            return x

        for _ in range(15):
            with torch.no_grad():
                forward(torch.ones(2, 4))
            gradients = torch.autograd.grad(forward(torch.ones(2, 4)).sum(), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(0.1 * gradient)

    assert steps(program)[0] == 15


def test_a_loop_without_any_module_has_the_steps_of_its_backward_passes(steps):
    def program():
        weight = torch.zeros(4, requires_grad=True)
        for _ in range(15):
            (weight * torch.ones(4)).square().sum().backward()
            with torch.no_grad():
                weight -= 0.1 * weight.grad
                weight.grad = None

    count, guessed = steps(program)
    assert (count, guessed.sign) == (15, "backward")


@pytest.mark.parametrize("with_module", [False, True])
def test_a_closure_of_an_optimizer_ends_no_step(tmp_path, with_module):
    model = nn.Linear(8, 1, dtype=torch.double)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=20, tolerance_change=0)

    def closure():
        optimizer.zero_grad()
        weight = model.weight
        made = model(torch.eye(8).double()) if with_module else weight * 1
        loss = ((made.flatten() - torch.arange(8)) ** 4).sum()
        loss.backward()
        return loss

    path = tmp_path / "run.json"
    with memprof.track(path, sources=["cpu"], allowance_s=600):
        optimizer.step(closure)
    (window,) = of_kind(path, "window")
    assert (window["last_step"], window["in_step"]) == (1, True)  # the one after the optimizer's
    assert not of_kind(path, "guessed_steps")


def test_steps_that_the_program_marks_are_no_guess(steps):
    def program():
        model = nn.Linear(4, 4).eval()
        with torch.no_grad():
            for _ in range(12):
                model(torch.ones(2, 4))
                memprof.step()

    assert steps(program) == (12, None)


@pytest.mark.usefixtures("with_native")
def test_explanations_after_the_training_have_steps_where_no_operator_is_seen(steps):
    """Each calls a model and asks for gradients, which no optimizer follows."""

    def explained(model):
        x = torch.ones(2, 4)
        model(x).sum().backward()
        return model[0].weight.grad.norm()

    def program():
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            trained(model.train(), optimizer, torch.ones(2, 4))
        model.eval()
        for _ in range(30):
            explained(model)

    count, guessed = steps(program)
    assert (guessed.sign, guessed.last) == ("backward", count - 1)
    assert guessed.line == explained.__code__.co_firstlineno + 2
    assert count == 5 + 30 - 8  # as above; what ended with a call is put together


@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize(("sets_to_none", "late"), [(False, 16), (True, 15)])
def test_a_simulation_after_the_training_has_steps_of_its_own(sets_to_none, late, steps):
    """Its model is in training mode still, with the gradients of the last step."""

    def program():
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(6):
            trained(model, optimizer, torch.ones(2, 3))
        optimizer.zero_grad(set_to_none=sets_to_none)
        place = torch.zeros(4, 3, requires_grad=True)
        for _ in range(60):
            (force,) = torch.autograd.grad(model(place).sum(), place, create_graph=True)
            place = (place + 0.01 * force).detach().requires_grad_(True)

    number, guessed = steps(program)
    # The first calls might have belonged to the training still; with a gradient one call more.
    assert (number, guessed.sign) == (6 + 60 - late, "backward")


def merged_guesses(path, program):
    """Records of guessed steps that a surer sign has put together, of a recording."""
    with memprof.track(path, sources=["cpu"], allowance_s=600):
        program()
    return [one for one in of_kind(path, "guessed_steps") if one.get("merged")]


def test_passes_of_many_tasks_are_guessed_to_be_steps_before_the_first_optimizer_alone(tmp_path):
    def program():
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(5):
            for _ in range(30):
                model(torch.ones(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    path = tmp_path / "run.json"
    assert len(merged_guesses(path, program)) == 1
    assert len(memprof.load(path).device("cpu").steps) == 5


def test_the_passes_of_a_jacobian_are_no_steps(tmp_path):
    def program():
        model = nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(4):
            trained(model, optimizer, torch.ones(8, 4))
            torch.autograd.functional.jacobian(model, torch.ones(20, 4))

    path = tmp_path / "run.json"
    assert merged_guesses(path, program) == []
    assert len(memprof.load(path).device("cpu").steps) == 4


@pytest.mark.parametrize("function", ["jacobian", "vjp", "hvp"])
def test_each_derivative_of_a_plain_function_is_a_step(steps, function):
    derivative = getattr(torch.autograd.functional, function)

    def value(x):
        return (x**3).sum() if function == "hvp" else x**3

    def program():
        torch.ones(3, requires_grad=True).sum().backward()
        for _ in range(12):
            x = torch.ones(6)
            derivative(value, x) if function == "jacobian" else derivative(value, x, x.clone())

    count, _ = steps(program)
    assert count >= 12


def test_many_calls_before_the_training_silence_none_after_it(steps):
    def program():
        features, model = nn.Linear(4, 4).eval(), nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with torch.no_grad():
            data = [features(torch.ones(2, 4)) for _ in range(200)]
        for x in data[:10]:
            trained(model, optimizer, x)
        with torch.no_grad():
            for x in data:
                model(x)

    count, guess = steps(program)
    assert count > 100
    assert guess.sign == "call"
