"""grown-by-concatenation: a tensor is replaced in every step by one that has more appended."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import memprof
from tests.rules.recorded import findings_of

ROWS, WIDTH = 16, 64
NEWEST = 40
STEPS = 16


def fires():
    state = SimpleNamespace(preds=torch.zeros(0, WIDTH))

    def step(number):
        state.preds = torch.cat([state.preds, torch.randn(ROWS, WIDTH)])

    return step


def joined_by_keyword():
    state = SimpleNamespace(preds=torch.zeros(0, WIDTH))

    def step(number):
        longer = torch.cat(tensors=(state.preds, torch.randn(ROWS, WIDTH)), dim=0)
        state.preds = longer

    return step


def of_the_newest():
    """A bank of which a loss takes the last rows."""
    state = SimpleNamespace(bank=torch.zeros(0, WIDTH))

    def step(number):
        state.bank = torch.cat([state.bank, torch.randn(ROWS, WIDTH)])
        assert state.bank.shape[1] == WIDTH
        state.bank[-NEWEST:].mean().item()

    return step


def of_the_newest_and_all():
    """The same, with a norm of everything besides."""
    state = SimpleNamespace(rows=torch.zeros(0, WIDTH))

    def step(number):
        state.rows = torch.cat([state.rows, torch.randn(ROWS, WIDTH)])
        state.rows[-NEWEST:].mean().item()
        state.rows.norm().item()

    return step


def of_an_entry():
    """What grows is an entry of a dictionary."""
    bank = SimpleNamespace(state={"rows": torch.zeros(0, WIDTH)})

    def step(number):
        bank.state.update(rows=torch.vstack([bank.state["rows"], torch.randn(ROWS, WIDTH)]))
        bank.state["rows"].norm().item()

    return step


def looks_alike():
    """Parts pile up in a list, and are joined anew in each step."""
    parts = []

    def step(number):
        parts.append(torch.randn(ROWS, WIDTH))
        joined = torch.cat(parts)
        joined.mean().item()

    return step


def test_it_is_to_be_begun_anew_or_its_parts_collected_on_the_host(tmp_path):
    found, *_ = findings_of(fires, tmp_path / "run.json", STEPS)
    first, second, *_ = found.remedies
    assert found.rule == first.rule == second.rule == "grown-by-concatenation"
    assert found.bytes_per_step == ROWS * WIDTH * 4
    assert (first.fix, second.fix) == ("clear_container", "cpu_offload")
    assert first.code == "state.preds = torch.cat([state.preds, torch.randn(ROWS, WIDTH)])"
    part = ROWS * WIDTH * 4
    assert first.peak_before == (STEPS + (STEPS - 1) + 1) * part  # the new one, the old, and a part
    assert first.peak_after < 4 * part  # begun anew in each step


def test_what_is_joined_may_be_given_by_its_name(tmp_path):
    found, *_ = findings_of(joined_by_keyword, tmp_path / "run.json", STEPS)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("grown-by-concatenation", "clear_container")
    assert first.code.startswith("longer = torch.cat(tensors=(state.preds, ")
    assert "`state.preds` is made longer" in first.why


def test_only_what_is_read_of_it_is_to_be_kept(tmp_path):
    found, *_ = findings_of(of_the_newest, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.rule, first.fix) == ("grown-by-concatenation", "right_size")
    assert first.typed == (
        "state.bank = torch.cat([state.bank, torch.randn(ROWS, WIDTH)])[-NEWEST:]"
    )


class Attention:
    """Keys of a stream; each chunk attends to the last ones."""

    def __init__(self):
        self.past = torch.zeros(0, WIDTH)

    def forward(self, x):
        joined = torch.cat([self.past, x])
        self.past = joined
        return (joined[-NEWEST:] @ x.T).sum().item()


class WholeAttention:
    """Likewise, and to all of them."""

    def __init__(self):
        self.before = torch.zeros(0, WIDTH)

    def forward(self, x):
        joined = torch.cat([self.before, x])
        self.before = joined
        return (joined @ x.T).sum().item() + joined[-NEWEST:].sum().item()


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        (Attention, "joined = torch.cat([self.past, x])[-NEWEST:]"),
        (WholeAttention, None),
    ],
)
def test_of_what_is_stored_by_another_name_the_part_that_is_read_is_to_be_kept(
    kind, typed, tmp_path
):
    layer = kind()
    program = lambda: lambda number: layer.forward(torch.randn(ROWS, WIDTH))  # noqa: E731
    found, *_ = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert (first.fix == "right_size") is (typed is not None)
    if typed is not None:
        assert first.typed == typed
        assert "nothing but `joined[-NEWEST:]` is read" in first.why


def test_what_is_read_as_a_whole_is_not_cut(tmp_path):
    found, *_ = findings_of(of_the_newest_and_all, tmp_path / "run.json")
    assert [one.fix for one in found.remedies][:2] == ["clear_container", "cpu_offload"]


def padded_and_collected():
    """Each part is made as long as the others, and all are kept."""
    parts = []

    def step(number):
        part = torch.randn(ROWS - number % 3, WIDTH)
        padded = part.new_zeros(ROWS, WIDTH)
        padded[: len(part)] = part
        part = padded
        parts.append(part)

    return step


def test_what_is_padded_before_it_is_kept_does_not_become_longer(tmp_path):
    (found,) = findings_of(padded_and_collected, tmp_path / "run.json")
    assert found.rule == "growing-container"
    assert "grown-by-concatenation" not in {one.rule for one in found.remedies}


def accuracy(logits):
    return (logits.argmax(-1) == 0).float().mean().item()


def evaluate(number_of_batches):
    logits = None
    for _ in range(number_of_batches):
        batch = torch.randn(ROWS, 64 * WIDTH)
        logits = batch if logits is None else torch.cat([logits, batch])
        memprof.step()
    return accuracy(logits)


def collect(number_of_batches):
    """What is returned may be needed as it is."""
    rows = None
    for _ in range(number_of_batches):
        batch = torch.randn(ROWS, 64 * WIDTH)
        rows = batch if rows is None else torch.cat([rows, batch])
        memprof.step()
    return rows


def evaluate_into_new(number_of_batches):
    """Each batch goes into a tensor that is longer by it, which is an entry of a dict."""
    state = {"logits": None}
    for _ in range(number_of_batches):
        batch = torch.randn(ROWS, 64 * WIDTH)
        if state["logits"] is None:
            state["logits"] = batch
        else:
            rows = state["logits"].size(0)
            longer = batch.new_empty(rows + ROWS, 64 * WIDTH)
            longer[:rows] = state["logits"]
            longer[rows:] = batch
            state["logits"] = longer
        memprof.step()
    return accuracy(state["logits"])


def evaluate_if_any(number_of_batches):
    logits = None
    for _ in range(number_of_batches):
        batch = torch.randn(ROWS, 64 * WIDTH)
        if logits is None:
            logits = batch
        else:
            longer = torch.cat([logits, batch])
            logits = longer
        memprof.step()
    return accuracy(logits)


@pytest.mark.parametrize(
    ("job", "fix"),
    [
        (evaluate, "reduce_predictions"),
        (evaluate_into_new, "reduce_predictions"),
        (evaluate_if_any, "reduce_predictions"),
        (collect, "preallocate"),
    ],
)
def test_what_is_only_handed_on_behind_the_loop_is_reduced_as_it_comes(job, fix, tmp_path):
    def program():
        job(40)
        return lambda number: None

    found = findings_of(program, tmp_path / "run.json", steps=0)[0]
    assert (found.rule, found.remedies[0].fix) == ("grown-by-concatenation", fix)
    if job is evaluate:
        assert "only handed to `accuracy` when the loop is over" in found.remedies[0].why
    if job is collect:
        batch = ROWS * 64 * WIDTH * 4
        assert found.remedies[0].peak_after == 40 * batch + batch


class Attending(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.key = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x, past=None):
        keys = self.key(x)
        if past is not None:
            keys = torch.concat([past[0], keys], dim=1)
        return (x @ keys.mT).softmax(-1) @ keys, (keys,)


@torch.inference_mode()
def answer(model, x):
    past = None
    for _ in range(40):
        x, past = model(x, past)
        memprof.step()


class Stacked(torch.nn.Module):
    """Each layer has a cache of its own."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([Attending(), Attending()])

    def forward(self, x, cache):
        longer = []
        for layer, past in zip(self.layers, cache, strict=True):
            x, kept = layer(x, past)
            longer.append(kept)
        return x, longer


@torch.inference_mode()
def answer_of_layers(model, x):
    cache = [None] * 2
    for _ in range(40):
        x, cache = model(x, cache)
        memprof.step()


def one_prompt_of_layers():
    answer_of_layers(Stacked(), torch.randn(ROWS, 4, WIDTH))
    return lambda number: None


@torch.inference_mode()
def answers(model, prompts):
    """Each prompt is added to those before."""
    past = None
    for prompt in prompts:
        _, past = model(prompt, past)
        memprof.step()


def one_prompt():
    answer(Attending(), torch.randn(ROWS, 4, WIDTH))
    return lambda number: None


def many_prompts():
    answers(Attending(), [torch.randn(ROWS, 4, WIDTH) for _ in range(40)])
    return lambda number: None


def test_an_entry_that_is_updated_by_its_key_is_replaced_as_well(tmp_path):
    found, *_ = findings_of(of_an_entry, tmp_path / "run.json", STEPS)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("grown-by-concatenation", "clear_container")
    assert first.code.startswith("bank.state.update(rows=torch.vstack(")
    assert "`bank.state['rows']` is made longer again and again" in first.why


@pytest.mark.parametrize("program", [one_prompt, one_prompt_of_layers])
def test_what_a_loop_carries_and_begins_with_none_needs_its_final_size_at_once(program, tmp_path):
    found, *_ = findings_of(program, tmp_path / "run.json", steps=0)
    first = found.remedies[0]
    assert (found.rule, first.fix) == ("grown-by-concatenation", "preallocate")
    assert first.code == "keys = torch.concat([past[0], keys], dim=1)"
    assert "`past[0]` is replaced by a larger copy of itself" in first.why


def test_a_loop_through_prompts_is_to_begin_each_with_an_empty_cache(tmp_path):
    found, *_ = findings_of(many_prompts, tmp_path / "run.json", steps=0)
    assert (found.rule, found.remedies[0].fix) == ("generation-cache", "clear_container")
