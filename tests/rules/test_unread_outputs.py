"""unread-outputs: a model is asked for what it computes on the way, and nothing reads that."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from memprof.loading import load
from memprof.rules.waste.unread_outputs import may_read_cache, states_read, unread_flag
from memprof.source_code.program import source_of
from memprof.views.examination import examine
from tests.rules.layered_models import DEPTH, ROWS, WIDTH, decoder, library, stack_of_layers
from tests.rules.recorded import findings_of, names, peak_of, record


def fires():
    model = stack_of_layers()

    @torch.no_grad()
    def step(number):
        output = model(torch.randn(ROWS, WIDTH), output_hidden_states=True)
        return output.last.sum().item()

    return step


def looks_alike():
    model = stack_of_layers()

    @torch.no_grad()
    def step(number):
        output = model(torch.randn(ROWS, WIDTH), output_hidden_states=False)
        return output.last.sum().item()

    return step


def learns():
    """Autograd saves the same results for its backward pass."""
    model = stack_of_layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        output = model(torch.randn(ROWS, WIDTH), output_hidden_states=True)
        optimizer.zero_grad()
        output.last.mean().backward()
        optimizer.step()

    return step


def test_what_autograd_saves_is_there_without_being_asked_for(tmp_path):
    assert "unread-outputs" not in names(learns, tmp_path / "run.json")


def test_the_call_is_to_ask_for_none(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert found.rule == "unread-outputs"
    assert found.bytes == DEPTH * ROWS * WIDTH * 4
    assert remedy.fix == "drop_outputs"
    assert remedy.code == ("output = model(torch.randn(ROWS, WIDTH), output_hidden_states=True)")
    assert remedy.saves_bytes > (DEPTH // 2) * ROWS * WIDTH * 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.k, self.v = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        k, v = self.k(x), self.v(x)
        return x + torch.softmax(x @ k.t(), 1) @ v, (k, v)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))

    def forward(self, x, use_cache=True):
        present = []
        for layer in self.layers:
            x, cached = layer(x)
            if use_cache:
                present.append(cached)
        return x, present


def embedding():
    model = Embedder()

    @torch.no_grad()
    def step(number):
        states, _ = model(torch.randn(ROWS, WIDTH))
        return states.sum().item()

    return step


def embedding_alone():
    model = Embedder()

    @torch.no_grad()
    def step(number):
        states, _ = model(torch.randn(ROWS, WIDTH), use_cache=False)
        return states.sum().item()

    return step


def test_what_a_model_of_the_program_collects_besides_is_not_to_be_asked_for(tmp_path):
    found, *_ = findings_of(embedding, tmp_path / "run.json")
    assert found.rule == "unread-outputs"
    assert found.title.endswith("are collected in `present`, a result that nothing reads")
    assert found.bytes >= (2 * DEPTH - 2) * ROWS * WIDTH * 4
    (first,) = found.remedies
    assert first.fix == "drop_outputs"
    assert first.code == "states, _ = model(torch.randn(ROWS, WIDTH))"
    assert "say `use_cache=False` in this call" in first.why
    before = first.peak_before
    found = findings_of(embedding_alone, tmp_path / "other.json")
    assert "unread-outputs" not in {one.rule for one in found}
    saved = before - peak_of(tmp_path / "other.json")
    assert first.saves_bytes == pytest.approx(saved, rel=0.1)


def call_of_model(tmp_path, code):
    """The statement of a program that calls ``model``."""
    path = tmp_path / "program.py"
    path.write_text(code)
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "model(" in text)
    return source_of(str(path)).at(line)


def scores():
    """A decoder whose scores alone are read."""
    model = decoder()

    @torch.no_grad()
    def step(number):
        output = model(torch.randn(ROWS, WIDTH))
        return output.logits.sum().item()

    return step


def scores_without_cache():
    model = decoder()

    @torch.no_grad()
    def step(number):
        output = model(torch.randn(ROWS, WIDTH), use_cache=False)
        return output.logits.sum().item()

    return step


def generates():
    model = decoder()
    generation = library("generation", "transformers/generation/utils.py")

    @torch.no_grad()
    def step(number):
        return generation.generate(model, torch.randn(ROWS, WIDTH)).sum().item()

    return step


TOKENS = 6


def completes(**asked):
    def program():
        model = decoder()
        generation = library("generation", "transformers/generation/utils.py")

        @torch.no_grad()
        def step(number):
            if asked:
                out = generation.sample(model, torch.randn(ROWS, WIDTH), TOKENS, output_scores=True)
            else:
                out = generation.sample(model, torch.randn(ROWS, WIDTH), TOKENS)
            return out["sequences"].sum().item()

        return step

    return program


def test_scores_of_tokens_that_nothing_reads_are_not_to_be_asked_for(tmp_path):
    found, *_ = findings_of(completes(output_scores=True), tmp_path / "run.json")
    (remedy,) = found.remedies
    assert (found.rule, remedy.fix) == ("unread-outputs", "drop_outputs")
    assert found.title.endswith("are scores of every new token, which a call asks for and "
                                "nothing reads")  # fmt: skip
    assert remedy.code.endswith("TOKENS, output_scores=True)")
    record(completes(), tmp_path / "mended.json")
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    assert remedy.peak_after == mended.peak_allocated


def test_keys_and_values_are_for_who_generates(tmp_path):
    found, *_ = findings_of(scores, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert (found.rule, found.bytes) == ("unread-outputs", 2 * DEPTH * ROWS * WIDTH * 4)
    assert (remedy.fix, remedy.code) == ("drop_outputs", "output = model(torch.randn(ROWS, WIDTH))")
    assert remedy.typed == "outputs = model(**inputs, use_cache=False)"
    record(scores_without_cache, tmp_path / "mended.json")
    (mended,) = examine(load(tmp_path / "mended.json")).devices
    assert remedy.peak_after == mended.peak_allocated


@pytest.mark.parametrize("program", [scores_without_cache, generates])
def test_where_none_are_kept_or_a_library_generates_nothing_is_to_be_left_out(program, tmp_path):
    assert "unread-outputs" not in names(program, tmp_path / "run.json")


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("out = model(x)\ny = out.logits", False),
        ("out = model(x)\ny = out[0]\nz = rows[1:]", False),
        ("def f():\n    y = model(x).logits\n    return y[1:]", False),
        ("def f():\n    return model(x)\nz = f()[0]", False),
        ("out = model(x)\ny = out.past_key_values", True),
        ("out = model(x, past_key_values=cache)\ny = out.logits", True),
        ("out = model(x)\ny = out['past_key_values']", True),
        ("out = model(x, cache=slots[0])\ny = out.logits", True),
        ("out = model(x)\nslots[0] = out.cache", True),
        ("out = model(x)\nslots[0] = out['cache']", True),
        ("kept = model(x).cache", True),
        ("class A:\n    def f(self):\n        y = model(self.cache).logits", False),
        ("out = model(x)\ny = out[1]", True),
        ("def f():\n    return model(x)\nz = f()\nz[1]", True),
        ("loss, cache = model(x)", True),
        ("out = model(x)\ny = out.to_tuple()", True),
    ],
)
def test_whether_keys_and_values_may_be_read(code, may, tmp_path):
    place = call_of_model(tmp_path, code)
    assert may_read_cache(place, [place.program]) is may


@pytest.mark.parametrize(
    ("code", "flag"),
    [
        ("out = model(x, output_hidden_states=True)\ny = out.logits", "output_hidden_states"),
        (
            "out = model(x, output_hidden_states=True)\ny = out.logits\nz = rows[2:]",
            "output_hidden_states",
        ),
        ("out = model(x, output_attentions=True)\ny = out[0]", "output_attentions"),
        ("out = model(x, output_attentions=True)\ny = out.hidden_states", "output_attentions"),
        ("out = model(x, output_hidden_states=True)\ny = out.hidden_states[-2]", ""),
        ("out = model(x, output_hidden_states=True)\ny = out['hidden_states']", ""),
        ("out = model(x, output_hidden_states=True)\ny = out[2]", ""),
        ("out = model(x, output_hidden_states=True)\ny = out[-1]", ""),
        ("out = model(x, output_hidden_states=True)\ny = out[1:]", ""),
        ("gains = []\nout = model(x, output_attentions=True)\ny = gains[-1]", "output_attentions"),
        ("a, b = model(x, output_hidden_states=True)", ""),
        ("out = model(x, output_hidden_states=True)\ny = out.to_tuple()", ""),
        ("out = model(x, output_hidden_states=deep)\ny = out.logits", ""),
        ("out = model(x)\ny = out.logits", ""),
    ],
)
def test_what_the_program_may_read_is_asked_for(code, flag, tmp_path):
    place = call_of_model(tmp_path, code)
    assert unread_flag(place, [place.program]) == flag


@pytest.mark.parametrize(
    ("code", "which"),
    [
        ("out = model(x)\ny = out.logits", "none"),
        ("out = model(x)\ny = out.hidden_states[-1]", "last"),
        ("out = model(x)\ny = out['hidden_states'][-1]", "last"),
        ("out = model(x)\ny = out.hidden_states[-1]\nz = out.hidden_states[4]", "any"),
        ("out = model(x)\ny = out.hidden_states", "any"),
        ("out = model(x)\ny = out[2]", "any"),
        ("def f(x):\n    return model(x)\ny = f(x)[-1]\nz = rows[2]", "any"),
    ],
)
def test_which_results_of_layers_are_read(code, which, tmp_path):
    place = call_of_model(tmp_path, code)
    assert states_read(place, [place.program], "output_hidden_states") == which
