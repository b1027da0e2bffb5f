"""unused-gradients: gradients that no optimizer reads and nothing clears."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.rules.recorded import findings_of


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(192, 192) for _ in range(3)))

    def forward(self, x):
        return self.body(x)


class Teacher(Net):
    pass


def fires():
    net, teacher = Net(), Teacher()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step(number):
        x = torch.randn(64, 192)
        wanted = teacher(x)
        (net(x) - wanted).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def looks_alike():
    """The critic of a generator gets gradients in each step, and is trained in every third."""
    net, critic = Net(), Teacher()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    of_critic = torch.optim.SGD(critic.parameters(), 0.1)

    def step(number):
        made = net(torch.randn(64, 192))
        critic(made).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 3 == 0:
            of_critic.zero_grad()
            (-critic(made.detach()).mean()).backward()
            of_critic.step()

    return step


def test_they_are_the_gradients_of_the_teacher_and_its_output_is_cut_off(tmp_path):
    (unused,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "unused-gradients"
    ]
    gradients = 3 * (192 * 192 * 4 + 1024)  # a bias takes two blocks of 512 bytes
    assert unused.match.graph == 2 * 64 * 192 * 4  # the input is there all the same
    assert unused.bytes == gradients + unused.match.graph
    assert unused.match.modules == "`Teacher.body`"
    assert not unused.match.within_model
    assert [remedy.fix for remedy in unused.remedies] == ["no_grad", "freeze_params"]
    lines = ["+        with torch.no_grad():", "+            wanted = teacher(x)"]
    assert "\n".join(lines) in unused.remedies[0].patch


class ImageEncoder(nn.Module):
    """Parts without parameters save as much as the others."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(192, 192), nn.GELU(), nn.Linear(192, 192)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


class Quantizer(nn.Linear):
    pass


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.quantizer = ImageEncoder(), Quantizer(192, 192)

    def encode(self, x):
        return self.quantizer(self.encoder(x))


def encoded():
    """A method is called that is no forward: its parts are what is known of the model."""
    coder, net = Autoencoder(), Net()
    optimizer = torch.optim.Adam(net.parameters(), 1e-4)

    def step(number):
        codes = coder.encode(torch.randn(2048, 192))
        net(codes).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_parts_without_parameters_are_of_the_graph_that_nobody_needs(tmp_path):
    found = findings_of(encoded, tmp_path / "run.json")
    (unused,) = [one for one in found if one.rule == "unused-gradients"]
    assert unused.match.modules == "`ImageEncoder` and `Quantizer`"
    # what GELU, and the two layers after it, keep of what they are given
    assert unused.match.graph == 3 * 2048 * 192 * 4
    assert unused.site.code == "return self.last(self.act(self.first(x)))"
    assert unused.remedies[0].code == "codes = coder.encode(torch.randn(2048, 192))"


class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone, self.head = Net(), nn.Linear(192, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


def cleared_every(steps):
    """A head is trained; what goes through the model before an evaluation clears all gradients."""

    def program():
        model = Probe()
        optimizer = torch.optim.AdamW(model.head.parameters())

        def step(number):
            if number % steps == 0:
                model.zero_grad()
            optimizer.zero_grad()
            model(torch.randn(512, 192)).square().mean().backward()
            optimizer.step()

        return step

    return program


def test_gradients_that_an_evaluation_clears_are_unused_all_the_same(tmp_path):
    found = findings_of(cleared_every(11), tmp_path / "run.json", steps=33)
    (unused,) = [one for one in found if one.rule == "unused-gradients"]
    assert unused.match.modules == "`Probe.backbone.body`"
    assert unused.match.graph == 2 * 512 * 192 * 4
    assert not unused.minor


def test_gradients_that_are_cleared_every_few_steps_may_be_used(tmp_path):
    found = findings_of(cleared_every(5), tmp_path / "run.json", steps=33)
    assert not [one for one in found if one.rule == "unused-gradients"]


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(*(Net() for _ in range(4)))
        self.student = nn.Linear(192, 192)

    def forward(self, x):
        wanted = self.teacher(x)
        return (self.student(x) - wanted).square().mean()


def distils():
    """A teacher within the model: its graph is larger than its gradients."""
    model = Distiller()
    optimizer = torch.optim.Adam(model.student.parameters(), 0.1)

    def step(number):
        model(torch.randn(4096, 192)).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class AgainstTeacher(nn.Module):
    """A loss that runs the teacher itself, after the student."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(*(Net() for _ in range(4)))

    def forward(self, x, made):
        wanted = self.teacher(x)
        return (made - wanted).square().mean()


def late_teacher(of_data):
    def program():
        student, loss_of = nn.Linear(192, 192), AgainstTeacher()
        optimizer = torch.optim.Adam(student.parameters(), 0.1)
        loader = DataLoader(torch.randn(4096, 192), batch_size=512)

        def reading(number):
            for batch in loader:
                made = student(batch)
                loss = loss_of(made, batch)
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        def of_batch(number):
            for batch in loader:
                made = student(batch)
                loss = loss_of(batch, made)
                break
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return of_batch if of_data else reading

    return program


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Net()
        self.head = nn.Linear(192, 2)

    def forward(self, x):
        return self.head(self.encoder(x))


def evaluated_between_steps():
    detector = Detector()
    optimizer = torch.optim.SGD(detector.head.parameters(), 0.1)

    def step(number):
        optimizer.zero_grad()
        detector(torch.randn(64, 192)).square().mean().backward()
        optimizer.step()
        if number % 2:
            with torch.no_grad():
                detector(torch.randn(64, 192)).mean().item()

    return step


def test_a_pass_of_an_evaluation_leads_to_no_graph(tmp_path):
    found = findings_of(evaluated_between_steps, tmp_path / "run.json")
    (unused,) = [one for one in found if one.rule == "unused-gradients"]
    assert unused.match.graph == 2 * 64 * 192 * 4  # the head's input is there all the same
    assert unused.remedies[0].code == "return self.body(x)"  # further out the head is called too


def evaluated_once(often):
    """Its result is there still while the next step runs, as a variable of a loop is."""

    def program():
        detector = Detector()
        optimizer = torch.optim.SGD(detector.head.parameters(), 0.1)
        results = []

        def step(number):
            if number == 8 or (often and number % 2):
                with torch.no_grad():
                    results[:] = [detector(torch.randn(64, 192))]
            optimizer.zero_grad()
            detector(torch.randn(64, 192)).square().mean().backward()
            optimizer.step()

        return step

    return program


@pytest.mark.parametrize(("often", "graph"), [(False, 2 * 64 * 192 * 4), (True, 0)])
def test_one_step_that_began_otherwise_does_not_hide_the_graph_of_all_others(
    often, graph, tmp_path
):
    found = findings_of(evaluated_once(often), tmp_path / "run.json")
    (unused,) = [one for one in found if one.rule == "unused-gradients"]
    assert unused.match.graph == graph


def learns_through():
    """The same with something that is trained before the teacher, which needs its graph."""
    model = nn.Sequential(nn.Linear(192, 192), Net())
    optimizer = torch.optim.Adam(model[0].parameters(), 0.1)

    def step(number):
        model(torch.randn(64, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_what_a_teacher_without_no_grad_keeps_is_its_graph_and_the_line_is_its_call(tmp_path):
    found = findings_of(distils, tmp_path / "run.json")[0]
    assert (found.rule, found.minor) == ("unused-gradients", False)
    assert found.match.graph >= 10 * 4096 * 192 * 4
    remedy = found.remedies[0]
    assert (remedy.fix, remedy.typed) == ("no_grad", "with torch.no_grad():")
    assert remedy.code == "wanted = self.teacher(x)"
    assert remedy.saves_bytes > 8 * 4096 * 192 * 4
    assert remedy.peak_before - remedy.peak_after == remedy.saves_bytes


def test_a_teacher_that_runs_after_the_student_is_given_the_batch_alone(tmp_path):
    (found, *_) = findings_of(late_teacher(of_data=True), tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unused-gradients", False)
    assert found.match.graph >= 10 * 512 * 192 * 4
    (remedy, *_) = found.remedies
    assert (remedy.fix, remedy.code) == ("no_grad", "wanted = self.teacher(x)")


def scores(model, rows, settings):
    return model(rows * settings["scale"]).square().sum(-1)


def with_reference(given):
    """A copy that is compared with, after the model: one function calls both."""

    def program():
        model, reference = Net(), Net()
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        settings = {"scale": 2.0}

        def step(number):
            rows = torch.randn(512, 192)
            made = scores(model, rows, settings)
            wanted = scores(reference, given(rows, made), settings)
            (made - wanted).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return program


def test_a_reference_that_is_given_no_graph_needs_none_whatever_runs_before_it(tmp_path):
    found = findings_of(with_reference(lambda rows, made: rows), tmp_path / "run.json")
    assert (found[0].rule, found[0].minor) == ("unused-gradients", False)
    assert found[0].match.graph == 3 * 512 * 192 * 4  # a layer's input, twice, and the result
    (remedy, *_) = found[0].remedies
    assert remedy.fix == "no_grad"
    assert remedy.code == "wanted = scores(reference, given(rows, made), settings)"


def test_a_reference_that_is_given_what_was_made_needs_its_graph(tmp_path):
    def given(rows, made):
        return rows + made.unsqueeze(-1)

    found = findings_of(with_reference(given), tmp_path / "run.json")
    assert [one.match.graph for one in found if one.rule == "unused-gradients"] == [0]


def test_a_teacher_that_the_student_learns_through_keeps_its_graph(tmp_path):
    found = findings_of(late_teacher(of_data=False), tmp_path / "run.json")
    assert [one.match.graph for one in found if one.rule == "unused-gradients"] == [0]


def test_a_graph_that_something_trained_learns_through_is_needed(tmp_path):
    found = [
        one
        for one in findings_of(learns_through, tmp_path / "run.json")
        if one.rule == "unused-gradients"
    ]
    assert [one.match.graph for one in found] == [0]
    assert found[0].remedies[0].fix == "freeze_params"


class Compared(nn.Module):
    """A loss that runs what it compares by twice: on the batch, and on what is made."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(*(Net() for _ in range(4)))

    def forward(self, made, batch):
        wanted = self.features(batch)
        reached = self.features(made)
        return (wanted - reached).abs().mean()


def pictures(count):
    return (torch.randn(count, 192) * 0.5).clamp(0, 1)


def compares(loss=Compared):
    student, loss_of = nn.Linear(192, 192), loss()
    optimizer = torch.optim.Adam(student.parameters(), 0.1)

    def step(number):
        batch = pictures(512)
        made = student(batch)
        loss = nn.functional.l1_loss(made, batch) + 0.1 * loss_of(made, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def test_of_two_passes_the_one_that_is_given_data_needs_no_graph(tmp_path):
    found, *_ = findings_of(compares, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unused-gradients", False)
    of_pass = 12 * 512 * 192 * 4
    assert of_pass - 2 * 512 * 192 * 4 <= found.match.graph <= of_pass
    remedy, *_ = found.remedies
    assert (remedy.fix, remedy.code) == ("no_grad", "wanted = self.features(batch)")


class ComparedAtOnce(Compared):
    """The same in one statement, and the batch comes last."""

    def forward(self, made, batch):
        return (self.features(made) - self.features(batch)).abs().mean()


def test_of_two_calls_in_one_statement_the_one_that_is_given_data_needs_no_graph(tmp_path):
    found, *_ = findings_of(lambda: compares(ComparedAtOnce), tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unused-gradients", False)
    of_pass = 12 * 512 * 192 * 4
    assert of_pass - 2 * 512 * 192 * 4 <= found.match.graph <= of_pass
    assert found.match.call == "self.features(batch)"
    first, second = found.remedies  # not the whole statement: the student learns through the other
    assert (first.fix, second.fix) == ("freeze_params", "no_grad")
    assert second.why.startswith("Or compute `self.features(batch)` alone under")
    assert first.saves_bytes >= of_pass / 2


def scores_of(model, batch):
    made = model(batch[0])
    return made.square().mean(-1)


def prefers():
    """A function is given the model and the batch, of the reference as of the policy."""
    policy, reference = (
        nn.Sequential(*(m for _ in range(6) for m in (nn.Linear(192, 192), nn.Tanh())))
        for _ in range(2)
    )
    optimizer = torch.optim.Adam(policy.parameters(), 0.1)

    def step(number):
        batch = (torch.randn(512, 192),)
        own = scores_of(policy, batch)
        reference_scores = scores_of(reference, batch)
        (own - reference_scores).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_the_line_that_gives_a_function_the_reference_is_named(tmp_path):
    found, *_ = findings_of(prefers, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("unused-gradients", False)
    first = found.remedies[0]
    assert (first.fix, first.code) == (
        "no_grad",
        "reference_scores = scores_of(reference, batch)",
    )


class Encoder(nn.Module):
    """A module whose forward pass is a statement of the program's."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Net() for _ in range(4)))

    def forward(self, x):
        return self.layers(x).tanh()


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = Encoder(), nn.Linear(192, 192)

    def forward(self, x):
        return self.head(self.encoder(x))


def trains_the_head():
    model = Classifier()
    optimizer = torch.optim.Adam(model.head.parameters(), 0.1)

    def step(number):
        model(torch.randn(4096, 192)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def test_a_part_that_one_expression_calls_with_the_head_is_to_be_frozen(tmp_path):
    """The line of its own is in the encoder, where no `torch.no_grad()` belongs."""
    first = findings_of(trains_the_head, tmp_path / "run.json")[0]
    assert first.rule == "unused-gradients"
    frozen, ungraded = first.remedies[:2]
    assert (frozen.fix, ungraded.fix) == ("freeze_params", "no_grad")
    assert ungraded.code == "return self.layers(x).tanh()"
