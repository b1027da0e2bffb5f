"""Whose bytes they are, to the byte: models, optimizers and gradients as programs build them."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

from memprof.sources.guarded_access import GuardedAccess  # noqa: E402
from memprof.sources.owners.tensor_owners import Differentiated, owned_tensors, storages, tensors_in  # noqa: E402
from memprof.trace import Action, Category  # noqa: E402
from tests.sources.recording import CpuRecording  # noqa: E402

PARAMETER, GRADIENT, STATE = Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER_STATE


STARTS, PLACES = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
ONES, BLOCKS = torch.ones(2), torch.ones(2, 2, 2)


class Recorder(CpuRecording):
    def __init__(self):
        super().__init__()
        before = self.source.begin_window()["cpu"].blocks
        self._before = set(before.address.tolist())  # of which gradients are other tests'

    def end(self):
        """Bytes by category and module, and both by address, of what is alive."""
        blocks = self.source.end_window()["cpu"].blocks
        labels = self.interner.tables().labels
        found, at = Counter(), {}
        for row in range(len(blocks)):
            category = Category(blocks.category[row])
            if category == GRADIENT and int(blocks.address[row]) in self._before:
                continue
            owner = category, labels[blocks.label[row]].module
            found[owner] += int(blocks.size[row])
            at[int(blocks.address[row])] = owner
        return found, at

    def made(self):
        """Bytes by category and module of what was allocated since the last call."""
        (chunk,) = self.source.drain()
        labels = self.interner.tables().labels
        found = Counter()
        for row in range(len(chunk.events)):
            if chunk.events.action[row] == Action.ALLOC:
                owner = Category(chunk.events.category[row]), labels[chunk.events.label[row]].module
                found[owner] += int(chunk.events.size[row])
        return found


@pytest.fixture
def recorder():
    it = Recorder()
    yield it
    it.close()


def nbytes(tensors: Iterable) -> int:
    """Bytes of the distinct storages of some tensors."""
    found = {s.data_ptr(): s.nbytes() for t in tensors for s in storages(t, GuardedAccess())}
    return sum(found.values())


def of(found: Counter, category: Category) -> int:
    """Bytes of a category over all modules."""
    return sum(size for (kind, _), size in found.items() if kind == category)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, 0.1),
        lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        lambda p: torch.optim.Adam(p, amsgrad=True),
        lambda p: torch.optim.AdamW(p, foreach=True),
        torch.optim.Adagrad,
        lambda p: torch.optim.RMSprop(p, momentum=0.9, centered=True),
        torch.optim.Rprop,
        torch.optim.Adadelta,
        torch.optim.NAdam,
        lambda p: torch.optim.LBFGS(p, max_iter=3),
    ],
    ids=["sgd", "momentum", "adam", "adamw", "adagrad", "rms", "rprop", "delta", "nadam", "lbfgs"],
)
def test_the_state_of_an_optimizer_is_what_it_keeps_and_no_more(recorder, make):
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
    optimizer = make(list(model.parameters()))
    x = torch.ones(3, 6)

    def closure():
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)
    found, _ = recorder.end()
    state = nbytes(tensors_in(list(optimizer.state.values()), GuardedAccess()))
    assert of(found, STATE) == state
    assert of(found, PARAMETER) == nbytes(model.parameters()) == 4 * (35 + 12)
    assert of(found, GRADIENT) == nbytes(p.grad for p in model.parameters()) == 4 * (35 + 12)


def test_tied_weights_are_counted_once_with_the_first_module(recorder):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    found, _ = recorder.end()
    for category in (PARAMETER, GRADIENT, STATE):
        assert {path: n for (c, path), n in found.items() if c == category} == {"Tied.embed": 160}


def test_lazy_parameters_and_buffers_made_in_forward_have_their_owner(recorder):
    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.LazyLinear(3)
            self.register_buffer("table", None)

        def forward(self, x):
            if self.table is None:
                self.table = torch.arange(5.0)
            return self.linear(x) * self.table[0]

    model = Lazy()
    recorder.loop_watch.modules.path(model)
    before = recorder.made()  # parameters that have no bytes yet are no obstacle
    assert of(before, PARAMETER) == 0
    model(torch.ones(2, 4)).sum().backward()
    found, _ = recorder.end()
    assert found[PARAMETER, "Lazy.linear"] == found[GRADIENT, "Lazy.linear"] == 4 * 15
    assert found[Category.BUFFER, "Lazy"] == 4 * 5


def test_a_sparse_gradient_is_its_indices_and_values(recorder):
    model = nn.Embedding(1000, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(list(model.parameters()))
    model(torch.tensor([1, 2, 3])).sum().backward()
    optimizer.step()
    found, _ = recorder.end()
    assert found[GRADIENT, "Embedding"] == 3 * 8 + 3 * 4 * 4
    assert found[PARAMETER, "Embedding"] == 16000
    assert (
        of(found, STATE)
        == nbytes(tensors_in(list(optimizer.state.values()), GuardedAccess()))
        >= 2 * 16000
    )


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: torch.sparse_coo_tensor(torch.stack([PLACES, PLACES]), ONES), 4 * 8 + 2 * 4),
        (lambda: torch.sparse_csr_tensor(STARTS, PLACES, ONES), 3 * 8 + 2 * 8 + 2 * 4),
        (lambda: torch.sparse_csc_tensor(STARTS, PLACES, ONES), 3 * 8 + 2 * 8 + 2 * 4),
        (lambda: torch.sparse_bsr_tensor(STARTS, PLACES, BLOCKS), 3 * 8 + 2 * 8 + 8 * 4),
        (lambda: torch.sparse_bsc_tensor(STARTS, PLACES, BLOCKS), 3 * 8 + 2 * 8 + 8 * 4),
    ],
    ids=["coo", "csr", "csc", "bsr", "bsc"],
)
def test_a_buffer_of_any_layout_is_counted_whole(recorder, make, size):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", make())

        def forward(self, x):
            return x

    model = Holder()
    model(torch.ones(1))
    found, _ = recorder.end()
    assert found[Category.BUFFER, "Holder"] == size


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quantised_buffer_is_a_byte_an_element(recorder):
    model = nn.Module()
    model.register_buffer("q", torch.quantize_per_tensor(torch.ones(9), 0.1, 0, torch.qint8))
    recorder.loop_watch.modules.path(model)
    found, _ = recorder.end()
    assert of(found, Category.BUFFER) == 9


class Pair(torch.Tensor):
    """A wrapper around two tensors, without bytes of its own."""

    @staticmethod
    def __new__(cls, left, right):
        return torch.Tensor._make_wrapper_subclass(cls, left.shape, dtype=left.dtype)

    def __init__(self, left, right):
        self.left, self.right = left, right

    def __tensor_flatten__(self):
        return ["left", "right"], None

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(str(func))


class Nosy(torch.Tensor):
    """Counts every time that its attributes are looked at."""

    looks = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.looks += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_of_a_wrapper_the_tensors_inside_are_counted(recorder):
    model = nn.Module()
    model.register_buffer("pair", Pair(torch.ones(6), torch.ones(6)))
    recorder.loop_watch.modules.path(model)
    found, _ = recorder.end()
    assert of(found, Category.BUFFER) == 2 * 24


def test_no_code_of_a_subclass_runs_when_its_tensors_are_looked_at(recorder):
    # as_subclass fails under a dispatch mode in torch 2.4
    kept = torch.Tensor._make_subclass(Nosy, torch.ones(4))
    before = Nosy.looks
    recorder.source.drain()
    recorder.source.end_window()
    assert Nosy.looks == before
    assert kept is not None


def test_a_parameter_that_only_an_optimizer_knows_has_no_module(recorder):
    weight = torch.zeros(7, requires_grad=True)
    optimizer = torch.optim.Adam([weight])
    (weight * 2).sum().backward()
    optimizer.step()
    found, at = recorder.end()
    assert at[weight.untyped_storage().data_ptr()] == (PARAMETER, "")
    assert at[weight.grad.untyped_storage().data_ptr()] == (GRADIENT, "")
    assert found[STATE, ""] == 2 * 28 + 4


def test_frozen_parameters_have_no_gradient_and_no_state(recorder):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    found, _ = recorder.end()
    assert found[PARAMETER, "Sequential.0"] == 80
    assert {path for kind, path in found if kind in (GRADIENT, STATE)} == {"Sequential.1"}


def test_what_a_deleted_model_leaves_is_nobodys(recorder):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    assert of(recorder.made(), PARAMETER) == 80
    del model, optimizer
    gc.collect()
    found, _ = recorder.end()
    assert not {kind for kind, _ in found} & {PARAMETER, GRADIENT, STATE}


def test_the_gradient_of_an_input_is_a_gradient(recorder):
    model = nn.Linear(4, 2)
    x = torch.ones(3, 4, requires_grad=True)
    model(x).sum().backward()
    _, at = recorder.end()
    assert at[x.grad.untyped_storage().data_ptr()] == (GRADIENT, "")


def test_the_gradient_of_a_perturbation_is_one_even_if_it_is_dropped_at_once(recorder):
    model = nn.Linear(4, 2).requires_grad_(False)
    x = torch.ones(3, 4)
    delta = torch.zeros_like(x, requires_grad=True)
    for _ in range(2):
        model(x + delta).sum().backward()
        with torch.no_grad():
            delta += 0.1 * delta.grad.sign()
        delta.grad = None
    assert recorder.made()[GRADIENT, ""] == 2 * x.nbytes


def test_a_retained_gradient_between_layers_is_a_gradient(recorder):
    model = nn.Linear(4, 2)
    hidden = model(torch.ones(3, 4))
    hidden.retain_grad()
    hidden.pow(2).sum().backward()
    _, at = recorder.end()
    assert at[hidden.grad.untyped_storage().data_ptr()] == (GRADIENT, "")


def test_nothing_that_has_a_gradient_is_held_alive(recorder):
    others = Differentiated(GuardedAccess())
    leaf = torch.ones(3, requires_grad=True)
    (leaf * 2).sum().backward()
    others.see([leaf, None, leaf.untyped_storage(), torch.ones(2)])
    assert [g.tolist() for g in others.gradients()] == [[2.0, 2.0, 2.0]]
    del leaf
    gc.collect()
    assert list(others.gradients()) == []


def test_everything_owned_is_told_with_its_category(recorder):
    model = nn.BatchNorm1d(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    found = owned_tensors(recorder.loop_watch, Differentiated(GuardedAccess()))
    counts = Counter(owner.category for owner, _ in found)
    assert counts == {PARAMETER: 2, GRADIENT: 2, Category.BUFFER: 3, STATE: 2}
