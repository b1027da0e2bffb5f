"""uncalled-release: an object has a method that takes out what is put in, and nothing calls it."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from memprof.rules.finding import Kind
from memprof.source_code.opposite_methods import opposite
from tests.rules.recorded import findings_of

WIDTH = 64


class Hub:
    """As a library has it: what is loaded is registered far from the call."""

    def __init__(self):
        self.parts = nn.ModuleDict()

    def load_adapter(self, name):
        self._register(name, nn.Linear(WIDTH, WIDTH, bias=False))

    def _register(self, name, part):
        self.parts[name] = part

    def delete_adapter(self, name):
        del self.parts[name]


class Board:
    """Has a way out, but one for other things."""

    def __init__(self):
        self.parts = nn.ModuleDict()

    def load_adapter(self, name):
        self.parts[name] = nn.Linear(WIDTH, WIDTH, bias=False)

    def delete_messages(self):
        return None


def fires():
    hub = Hub()

    def step(number):
        hub.load_adapter(f"tenant_{number}")

    return step


def looks_alike():
    board = Board()

    def step(number):
        board.load_adapter(f"tenant_{number}")

    return step


def test_the_opposite_of_what_was_called_is_to_be_called_on_the_same_name(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    first = found.remedies[0]
    assert found.rule == first.rule == "uncalled-release"
    assert found.bytes_per_step == WIDTH * WIDTH * 4
    assert (first.fix, first.code) == ("release", 'hub.load_adapter(f"tenant_{number}")')
    assert "call `hub.delete_adapter()` when it is done with (`Hub` has it)" in first.why


def test_a_part_of_a_model_is_deleted_where_there_is_no_method_for_it(tmp_path):
    (found,) = findings_of(looks_alike, tmp_path / "run.json")
    first = found.remedies[0]
    assert "ModuleDict `board.parts` (16 items)" in found.title or "`board`" in found.title
    assert (first.rule, first.fix) == ("growing-container", "clear_container")
    assert first.code == "self.parts[name] = nn.Linear(WIDTH, WIDTH, bias=False)"
    assert "`del self.parts[…]`" in first.why


@pytest.mark.parametrize(
    ("method", "offered", "expected"),
    [
        ("load_adapter", ["delete_adapter", "disable_adapter"], "delete_adapter"),
        ("load_lora", ["unload_lora", "delete_lora"], "unload_lora"),
        ("prepare", ["clear", "free_memory", "end_training"], "clear"),
        ("prepare", ["free_memory"], "free_memory"),
        ("update", ["reset"], "reset"),
        ("update", ["reset", "reset_all"], "reset_all"),
        ("add", ["remove", "remove_all"], "remove"),
        ("__call__", ["reset"], "reset"),
        ("add_tokens", ["remove_listener"], ""),
        ("evaluate", ["reset", "clear"], ""),
        ("register_hook", ["remove_hooks"], "remove_hooks"),
    ],
)
def test_the_opposite_is_about_the_same_things(method, offered, expected):
    assert opposite(method, offered) == expected


def test_parameters_and_their_container_are_named_apart(tmp_path):
    (found,) = findings_of(fires, tmp_path / "run.json")
    links = found.holders[0].links
    item = next(link for link in links if link.type_name == "ModuleDict")
    assert (item.kind, item.length) == ("item", 16)
    assert [link.name for link in links][-2:] == [item.name, "weight"]


AVERAGE = """\
class Average:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0

    def update(self, value):
        self.sum += value
"""


def test_what_keeps_a_graph_is_to_be_given_none(tmp_path, monkeypatch):
    library = tmp_path / "site-packages" / "averages"
    library.mkdir(parents=True)
    (library / "__init__.py").write_text(AVERAGE)
    monkeypatch.syspath_prepend(library.parent)
    average = importlib.import_module("averages").Average

    def evaluates():
        model, losses = nn.Linear(WIDTH, WIDTH), average()

        def step(number):
            loss = model(torch.randn(256, WIDTH)).square().mean()
            losses.update(loss)

        return step

    found = findings_of(evaluates, tmp_path / "run.json")[0]
    first, second, *_ = found.remedies
    assert found.rule == "uncalled-release"
    assert (first.fix, first.rule) == ("no_grad", "no-backward")  # nothing here learns
    assert second.fix == "detach"
    assert "`loss.detach()`" in second.why


def test_views_that_show_all_of_a_storage_between_them_are_not_to_be_cloned(tmp_path):
    """The mask of each layer is a part of one tensor for all."""
    layers = [nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 2 * WIDTH, bias=False)]

    def program():
        def step(number):
            pairs = [(layer, "weight") for layer in layers]
            prune.global_unstructured(pairs, pruning_method=prune.L1Unstructured, amount=0.01)

        return step

    first = findings_of(program, tmp_path / "run.json", steps=24)[0].remedies[0]
    assert (first.rule, first.fix) == ("uncalled-release", "release")
    assert "prune.global_unstructured(" in first.code
    assert "`prune.remove()` of the same module" in first.why


class Answers:
    """Answers with what it has read of each subject, which it keeps."""

    def __init__(self):
        self.model = sys.modules["chat"].Model()
        self.encoded = {}

    def prefix(self, subject):
        if subject not in self.encoded:
            self.encoded[subject] = sys.modules["chat"].GrowingCache()
        return self.encoded[subject]

    def score(self, subject, tokens):
        cache = self.prefix(subject)
        return self.model(tokens, past=cache)


def scores():
    answers = Answers()

    def step(number):
        answers.score(("law", "art")[number % 2], torch.ones(16, 64))

    return step


def test_an_object_that_each_call_of_a_library_adds_to_is_handed_over_as_a_copy(tmp_path, library):
    library("chat")
    (found,) = (
        one for one in findings_of(scores, tmp_path / "run.json", 60) if one.kind is Kind.LEAK
    )
    assert "`encoded['" in found.title
    assert "`answers`" in found.title
    assert found.rule == "uncalled-release"
    first = found.remedies[0]
    assert first.fix == "release"
    assert first.code == "return self.model(tokens, past=cache)"
    assert first.why == (
        "Every such call adds to `cache`, which is kept for the next one: hand over a copy "
        "(`copy.deepcopy(cache)`), or take out again what the call added (`cache.crop()`)."
    )


class Prefixed(Answers):
    """All answers begin with the same words, of which it keeps what the model made."""

    def __init__(self):
        super().__init__()
        self.start = sys.modules["chat"].GrowingCache()

    def answer(self, tokens):
        cache = self.start
        first = self.model(tokens, past=cache)
        return first + self.model(tokens, past=cache)


class ByMethod(Prefixed):
    """The same, by a method that returns it."""

    def prefix_cache(self):
        return self.start

    def answer(self, tokens):
        past = self.prefix_cache()
        return self.model(tokens, past=past)


def begins_by_a_method():
    answers = ByMethod()
    return lambda number: answers.answer(torch.ones(16, 64))


def test_the_copy_is_made_of_what_a_method_returns(tmp_path, library):
    library("chat")
    path = tmp_path / "run.json"
    (found,) = (one for one in findings_of(begins_by_a_method, path, 60) if one.kind is Kind.LEAK)
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("uncalled-release", "release")
    assert first.code == "past = self.prefix_cache()"
    assert "hand over a copy (`copy.deepcopy(self.prefix_cache())`)" in first.why


def begins_alike():
    answers = Prefixed()
    return lambda number: answers.answer(torch.ones(16, 64))


def test_the_copy_is_made_where_what_is_kept_is_taken(tmp_path, library):
    library("chat")
    (found,) = (
        one for one in findings_of(begins_alike, tmp_path / "run.json", 60) if one.kind is Kind.LEAK
    )
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("uncalled-release", "release")
    assert first.code == "cache = self.start"
    assert "hand over a copy (`copy.deepcopy(self.start)`)" in first.why


def new_masks():
    """Each step has a mask of its own, made by a function of the program."""
    layer = nn.Linear(WIDTH, WIDTH, bias=False)

    def mask_of(weight):
        return (weight.abs() >= weight.abs().median()).float()

    def step(number):
        mask = mask_of(layer.weight.detach())
        prune.custom_from_mask(layer, "weight", mask)

    return step


def test_a_mask_that_the_program_makes_is_to_take_the_place_of_the_last(tmp_path):
    found = findings_of(new_masks, tmp_path / "run.json", steps=24)[0]
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("uncalled-release", "release")
    assert first.code == 'prune.custom_from_mask(layer, "weight", mask)'
    assert "`prune.remove()` of the same module" in first.why


class Tenants:
    """A function has the hub by another name."""

    def __init__(self):
        self.hub = Hub()

    def admit(self, number):
        board = self.hub
        board.load_adapter(f"guest_{number}")


def admits():
    tenants = Tenants()
    return tenants.admit


def test_a_variable_that_is_an_attribute_is_known_by_either_name(tmp_path):
    (found,) = findings_of(admits, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.fix, first.code) == ("release", 'board.load_adapter(f"guest_{number}")')
    assert "call `board.delete_adapter()`" in first.why


class Exporter:
    """Has all gauges by their names, whoever asked for them."""

    def __init__(self):
        self.gauges = {}

    def gauge(self, name, gauge):
        self.gauges[name] = gauge
        return gauge


def observes():
    exporter = Exporter()
    tenants = exporter.gauge("tenants", Hub())

    def step(number):
        tenants.load_adapter(f"guest_{number}")
        return exporter

    return step


def test_an_item_is_known_by_the_name_that_it_was_made_under(tmp_path):
    (found,) = findings_of(observes, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.fix, first.code) == ("release", 'tenants.load_adapter(f"guest_{number}")')
    assert "call `tenants.delete_adapter()` when it is done with (`Hub` has it)" in first.why


class Steps(Answers):
    """The method that calls the model is handed what its caller takes."""

    def __init__(self):
        super().__init__()
        self.opening = sys.modules["chat"].GrowingCache()

    def call(self, tokens, past):
        return self.model(tokens, past=past)

    def reply(self, tokens):
        past = self.opening
        return self.call(tokens, past)


def replies():
    steps = Steps()
    return lambda number: steps.reply(torch.ones(16, 64))


class Direct(Steps):
    """What is kept is handed over as the attribute that it is."""

    def reply(self, tokens):
        return self.model(tokens, past=self.opening)


def replies_at_once():
    direct = Direct()
    return lambda number: direct.reply(torch.ones(16, 64))


def test_an_attribute_that_is_handed_over_is_named(tmp_path, library):
    library("chat")
    found = findings_of(replies_at_once, tmp_path / "run.json", 60)
    (one,) = (each for each in found if each.kind is Kind.LEAK)
    assert "hand over a copy (`copy.deepcopy(self.opening)`)" in one.remedies[0].why


def test_the_copy_is_made_where_the_caller_takes_it(tmp_path, library):
    library("chat")
    (found,) = (
        one for one in findings_of(replies, tmp_path / "run.json", 60) if one.kind is Kind.LEAK
    )
    assert found.remedies[0].code == "past = self.opening"
