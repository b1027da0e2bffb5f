from __future__ import annotations

import textwrap

import pytest

from memprof.loading import load
from memprof.records import Site
from memprof.rules.case import Case
from memprof.rules.finding import Kind, RuleFinding
from memprof.source_code.dataflow import flow_into, flow_of
from memprof.source_code.program import calls_in, program_of
from memprof.testing import TraceBuilder, write_run
from memprof.views.examination import examine


@pytest.fixture
def programs(tmp_path):
    """Writes files; their programs, and the place of the first line that holds a text."""

    def programs(*texts):
        made = []
        for number, text in enumerate(texts):
            path = tmp_path / f"part{number}.py"
            path.write_text(textwrap.dedent(text))
            made.append(program_of(str(path)))
        lines = made[0].lines
        return made, lambda part: made[0].at(
            next(n for n, line in enumerate(lines, 1) if part in line)
        )

    return programs


LOOP = """\
def main(net, opt, data, log):
    total, losses = 0.0, []
    for x in data:
        loss = net(x)
        loss.backward()
        total += loss
        losses.append(loss)
    {end}
"""


def asked(programs, text, name="total", line="total += loss"):
    made, at = programs(text)
    return flow_of(made, at(line), name, through=False).more_than_shown


SHOWN = [
    "print(total)",
    "print(f'{total / len(data):.3f}')",
    "print('mean %.3f' % (total / 40))",
    "return float(total) / len(data)",
    "log.info('loss %s', total / len(losses))",
    "best = min(9.0, total); print(best)",
    "import math; print(math.isfinite(total))",
    "if total > 3: print('large')",
    "rows = [total]; rows.append(3); print(len(rows))",
    "total = 0.0",
]


@pytest.mark.parametrize("end", SHOWN)
def test_what_shows_or_compares_a_sum_can_do_with_a_number(programs, end):
    assert not asked(programs, LOOP.format(end=end) + "\nmain(1, 2, 3, 4)\n")


TENSOR = [
    "print(total.item() / 40)",
    "mean = total / 40; print(mean.item())",
    "print(torch.log(total))",
    "import torch as th; print(th.log(total))",
    "np.save('x', total.numpy())",
    "isinstance(total, torch.Tensor)",
    "report(total)",
    "return total",
    "state = {'loss': total}; torch.save(state, 'x')",
    "state = {'loss': total}; state['loss'].cpu()",
    "for each in [total]: each.cpu()",
    "print(1 / len(losses) / total, x / total)",
    "self.total = total; print(self.total.item())",
    "rate = x @ total",
    "show(key=lambda: total)",
    "yield total",
]


@pytest.mark.parametrize("end", TENSOR)
def test_what_only_a_tensor_can_do_is_seen_through_the_names_that_a_sum_gets(programs, end):
    assert asked(programs, LOOP.format(end=end))


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("print(sum(losses) / len(losses))", False),
        ("for i, one in enumerate(losses): print(i, float(one))", False),
        ("print(max(losses), sorted(losses)[0], losses[-1])", False),
        ("losses.clear()", False),
        ("for i, one in enumerate(losses): print(i, one.item())", True),
        ("print([one.item() for one in losses])", True),
        ("print(torch.stack(losses).mean())", True),
        ("print(losses[-1].cpu())", True),
        ("print(max(losses, key=f))", True),
        ("print(sum(losses).item())", True),
        ("print(losses.pop().item())", True),
        ("best, rest = losses[0], 3; best.cpu()", True),
    ],
)
def test_the_items_of_a_container_are_followed(programs, end, expected):
    assert asked(programs, LOOP.format(end=end), "losses", "losses.append") is expected


def test_a_variable_of_the_same_name_in_another_function_is_another(programs):
    text = LOOP.format(end="print(total)") + "\ndef other(total):\n    return total.item()\n"
    assert not asked(programs, text)


def test_what_a_function_returns_is_followed_to_its_callers(programs):
    text = LOOP.format(end="return total / len(data)")
    assert not asked(programs, text + "\nprint(main(1, 2, 3, 4))\n")
    assert asked(programs, text + "\nprint(main(1, 2, 3, 4).item())\n")


METER = """\
class Meter:
    def update(self, value):
        self.total = self.total + value

    @property
    def mean(self):
        return self.total / 3
"""


@pytest.mark.parametrize(
    ("use", "expected"),
    [
        ("print(meter.mean)", False),
        ("print(meter.mean.item())", True),
        ("print(meter.total.item())", True),
    ],
)
def test_an_attribute_is_followed_into_every_file(programs, use, expected):
    made, at = programs(METER, f"import part0\nmeter = part0.Meter()\n{use}\n")
    flow = flow_of(made, at("self.total ="), "self.total", through=False)
    assert flow.more_than_shown is expected


def test_files_that_are_only_imported_are_looked_at_as_well(programs, tmp_path):
    made, _ = programs("import part1\n", "from . import part2\n", "x = 1\n", "y = 1\n")
    write_run(tmp_path / "run.json", TraceBuilder(device="cpu").build())
    found = RuleFinding(Kind.LEAK, "cpu", Site(made[0].filename, 1), "")
    case = Case(found, examine(load(tmp_path / "run.json")))
    assert [one.filename for one in case.everywhere] == [one.filename for one in made[:3]]


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("torch.stack(losses).sum().backward()", True),
        ("best = sum(loss.mean() for loss in losses); torch.autograd.grad(best, x)", True),
        ("learn(losses)\ndef learn(parts):\n    sum(parts).backward()", True),
        ("best = float(losses[0]); step(best).backward()", False),
        ("best = losses[0].detach(); step(best).backward()", False),
        ("print(torch.stack(losses).mean())", False),
    ],
)
def test_a_backward_pass_is_found_behind_what_is_computed(programs, end, expected):
    text = "losses = []\ndef main(net, x):\n    losses.append(net(x))\n"
    made, at = programs(text + f"def end(x):\n    {end}\n")
    assert flow_of(made, at("append"), "losses", through=True).learned is expected


def test_an_argument_is_followed_into_the_function_that_takes_it(programs):
    text = "class Meter:\n    def put(self, value):\n        self.x = value.{}()\n"
    text += "def main(meter, net):\n    loss = net()\n    meter.put(loss)\n"
    for method, number in (("square", True), ("backward", True)):
        made, at = programs(text.format(method))
        (call,) = calls_in(at("meter.put").statement, "put")
        flow = flow_into(made, at("meter.put"), call.args[0], through=False)
        assert flow.more_than_shown is number
        learned = flow_into(made, at("meter.put"), call.args[0], through=True).learned
        assert learned is (method == "backward")


MODULE = """\
class Features(nn.Module):
    def forward(self, x):
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results

class Job:
    def __init__(self, features, image):
        self.features = features
        self.image = image

    def step(self):
        made = {call}
        loss = sum(one.mean() for one in made)
        loss.backward()
"""


@pytest.mark.parametrize(
    ("call", "is_learned"),
    [
        ("self.features(self.image)", True),
        ("load(self.image)", False),  # nobody's variable, and no module's
        ("torch.exp(self.image)", False),
    ],
)
def test_what_a_module_returns_is_had_by_who_calls_the_module(call, is_learned, programs):
    made, at = programs(MODULE.replace("{call}", call))
    flow = flow_of(made, at("results.append(x)"), "results", through=True)
    assert flow.learned is is_learned
