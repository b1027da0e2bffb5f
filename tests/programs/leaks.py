"""Small training programs that leak or only look as if they did; each is a function of the step."""

from __future__ import annotations

import collections
import contextvars
import copy
import functools
import itertools
import queue
import random
import threading
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import ClassVar

import torch
from torch import nn

Step = Callable[[int], None]
LEAKING: dict[str, tuple[Callable[[], Step], float]] = {}
"""Program and the bytes that it leaks a step; 0 where autograd decides."""
HEALTHY: dict[str, Callable[[], Step]] = {}


def leaking(bytes_per_step: float = 0) -> Callable[[Callable[[], Step]], Callable[[], Step]]:
    def register(program: Callable[[], Step]) -> Callable[[], Step]:
        LEAKING[program.__name__] = program, bytes_per_step
        return program

    return register


def healthy(program: Callable[[], Step]) -> Callable[[], Step]:
    HEALTHY[program.__name__] = program
    return program


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16))


def trainer(model: nn.Module, optimizer: torch.optim.Optimizer, batch: int = 8):
    def train() -> torch.Tensor:
        loss = model(torch.randn(batch, 16)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return train


@leaking(8 * 16 * 4 + 8 * 32 * 4 + 8 * 16 * 4 + 4)
def losses_kept_before_backward():
    model, losses = mlp(), []

    def step(i):
        losses.append(model(torch.randn(8, 16)).pow(2).mean())

    return step


@leaking(32 * 32 * 4)
def dict_keyed_by_step():
    cache = {}

    def step(i):
        cache[i] = torch.zeros(32, 32)

    return step


@leaking(96)
def ninety_six_bytes():
    model = mlp()
    train, kept = trainer(model, torch.optim.Adam(model.parameters())), []

    def step(i):
        train()
        kept.append(torch.ones(24))

    return step


@leaking(64 * 16 * 4 / 5)
def validation_every_fifth_step():
    model, outputs = mlp(), []
    train = trainer(model, torch.optim.SGD(model.parameters(), 1e-3))

    def step(i):
        train()
        if i % 5 == 4:
            with torch.no_grad():
                outputs.append(model(torch.randn(64, 16)))

    return step


@leaking(16 * 16 * 4)
def concatenation():
    state = SimpleNamespace(all=torch.zeros(0, 16))

    def step(i):
        state.all = torch.cat([state.all, torch.randn(16, 16)])

    return step


@leaking()
def recurrent_state_not_detached():
    cell, state = nn.GRUCell(16, 16), SimpleNamespace(h=torch.zeros(4, 16))

    def step(i):
        state.h = cell(torch.randn(4, 16), state.h)

    return step


@leaking(2 * 64 * 64 * 4)
def errors_kept():
    errors = []

    def work(x):
        y = x.relu()
        raise ValueError(y.shape)

    def step(i):
        try:
            work(torch.randn(64, 64))
        except ValueError as error:
            errors.append(error)

    return step


class Registry(nn.Module):
    made: ClassVar[list[Registry]] = []

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(32, 32))
        Registry.made.append(self)


@leaking(32 * 32 * 4)
def class_registry():
    Registry.made.clear()

    def step(i):
        Registry()

    return step


class Node:
    def __init__(self, value):
        self.me, self.value = self, value


@leaking(64 * 32 * 4)
def cycle_of_one():
    def step(i):
        Node(torch.randn(64, 32))

    return step


@leaking((16 * 32 + 32 + 32 * 16 + 16) * 4)
def models_kept():
    models = []

    def step(i):
        models.append(mlp())

    return step


@leaking(100 * 4 * 4)
def unbounded_lru_cache():
    @functools.cache
    def positions(n, version):
        return torch.arange(n, dtype=torch.float32)[:, None].repeat(1, 4)

    def step(i):
        positions(100, i)

    return step


@leaking(32 * 16 * 4)
def queue_never_read():
    waiting = queue.Queue()

    def step(i):
        waiting.put(torch.randn(32, 16))

    return step


@leaking(8 * 32 * 4)
def forward_hook_appends():
    model, seen = mlp(), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(output.detach()))
    train = trainer(model, torch.optim.SGD(model.parameters(), 1e-3))

    def step(i):
        train()

    return step


@leaking()
def optimizers_kept():
    model, optimizers = mlp(), []

    def step(i):
        optimizers.append(torch.optim.Adam(model.parameters()))
        trainer(model, optimizers[-1])()

    return step


@leaking(64 * 64 * 4)
def view_keeps_whole():
    rows = []

    def step(i):
        rows.append(torch.randn(64, 64)[0])

    return step


@leaking(32 * 32 * 4)
def begins_late():
    kept = []

    def step(i):
        x = torch.randn(32, 32)
        if i >= 16:
            kept.append(x)

    return step


@leaking()
def sizes_vary():
    kept, numbers = [], random.Random(0)

    def step(i):
        kept.append(torch.zeros(numbers.randrange(100, 1000)))

    return step


@leaking(256 * 4 / 6)
def saw_with_a_leak_beneath():
    epoch, archive = [], []

    def step(i):
        epoch.append(torch.zeros(256))
        if i % 6 == 5:
            archive.append(epoch[0])
            epoch.clear()

    return step


@leaking(512 * 4 / 7)
def every_seventh_step():
    kept = []

    def step(i):
        if i % 7 == 3:
            kept.append(torch.zeros(512))

    return step


@leaking()
def gradients_with_graphs():
    weight = torch.randn(16, 16, requires_grad=True)

    def step(i):
        loss = (torch.randn(8, 16) @ weight).tanh().pow(2).mean()
        grad = torch.autograd.grad(loss, weight, create_graph=True)[0]
        weight.total = getattr(weight, "total", 0) + grad

    return step


@leaking(32 * 16 * 4)
def linked_list():
    state = SimpleNamespace(head=None)

    def step(i):
        state.head = (torch.zeros(32, 16), state.head)

    return step


@leaking(32 * 16 * 4)
def context_variable():
    trail = contextvars.ContextVar("trail", default=())

    def step(i):
        trail.set((*trail.get(), torch.zeros(32, 16)))

    return step


@leaking(32 * 16 * 4)
def suspended_generators():
    def reader(x):
        yield x.sum()
        yield x.mean()

    started = []

    def step(i):
        started.append(reader(torch.zeros(32, 16)))
        next(started[-1])

    return step


@leaking(64 * 4)
def buffers_with_new_names():
    model = mlp()

    def step(i):
        model.register_buffer(f"mask_{i}", torch.zeros(64))

    return step


@leaking(64 * 4)
def parameter_list_that_grows():
    prompts = nn.ParameterList()

    def step(i):
        prompts.append(nn.Parameter(torch.zeros(64)))

    return step


@leaking()
def saved_tensors_packed_and_never_used():
    model, kept = mlp(), []

    def step(i):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
            kept.append(model(torch.randn(8, 16)).sum())

    return step


@leaking(128 * 4)
def partials_kept_as_callbacks():
    callbacks = []

    def step(i):
        callbacks.append(functools.partial(print, torch.zeros(128)))

    return step


@leaking(16 * 16 * 4)
def thread_that_collects():
    waiting = queue.Queue()

    def collect():
        seen = []
        while (tensor := waiting.get()) is not None:
            seen.append(tensor)
            waiting.task_done()

    threading.Thread(target=collect, daemon=True).start()

    def step(i):
        waiting.put(torch.zeros(16, 16))
        waiting.join()

    weakref.finalize(step, waiting.put, None)  # else other tests would meet the thread
    return step


@leaking()
def loss_scaled_and_summed_before_backward():
    model, state = mlp(), SimpleNamespace(total=0.0)

    def step(i):
        state.total = state.total + 0.1 * model(torch.randn(8, 16)).pow(2).mean()

    return step


@leaking()
def exploding_double_buffer():
    pages = {"a": [], "b": []}

    def step(i):
        pages["ab"[i % 2]].append(torch.zeros(100 + i))

    return step


@leaking(2 * 8 * 16 * 4)
def collection_copied_at_every_call():
    results = SimpleNamespace(kept=[])

    def copied(values):
        return [one.clone() for one in values]

    def step(i):
        results.kept = copied(results.kept)
        results.kept += [torch.randn(8, 16), torch.randn(8, 16)]

    return step


@healthy
def adam_with_changing_lengths():
    model, numbers = mlp(), random.Random(1)
    optimizer = torch.optim.Adam(model.parameters())
    state = SimpleNamespace()

    def step(i):
        state.x = torch.randn(numbers.randrange(2, 40), 16)
        state.loss = model(state.x).pow(2).mean()
        optimizer.zero_grad()
        state.loss.backward()
        optimizer.step()

    return step


@healthy
def average_of_weights():
    model, state = mlp(), SimpleNamespace(average=None)
    train = trainer(model, torch.optim.AdamW(model.parameters()))

    def step(i):
        train()
        if i == 5:
            state.average = copy.deepcopy(model)
        if i > 5:
            with torch.no_grad():
                for kept, new in zip(state.average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(new, 0.1)

    return step


@healthy
def short_deque():
    recent = collections.deque(maxlen=8)

    def step(i):
        recent.append(torch.randn(16, 16))

    return step


@leaking()
def graphs_in_a_long_deque_still_filling():
    model, recent = mlp(), collections.deque(maxlen=1000)

    def step(i):
        recent.append((model(torch.randn(8, 16)), i))

    return step


@leaking(32 * 16 * 4)
def itertools_cycle_over_a_long_epoch():
    batches = itertools.cycle(torch.randn(32, 16) for _ in range(1000))

    def step(i):
        next(batches)

    return step


@leaking(32 * 16 * 4)
def list_built_anew_with_one_more():
    state = SimpleNamespace(chunks=[])

    def step(i):
        state.chunks = [*state.chunks, torch.randn(32, 16)]

    return step


@leaking(64 * 16 * 4)
def results_chained_by_an_attribute_of_the_tensor():
    state = SimpleNamespace(out=None)

    def step(i):
        out = torch.randn(64, 16)
        out.previous = state.out
        state.out = out

    return step


@leaking()
def errors_raised_from_the_one_before():
    model, job = mlp(), SimpleNamespace(error=None)

    def attempt(x):
        hidden = model(x)
        raise ValueError(str(hidden.shape)) from job.error

    def step(i):
        try:
            attempt(torch.randn(64, 16))
        except ValueError as error:
            job.error = error

    return step


class Finalized:
    def __init__(self, size):
        self.data = torch.zeros(size)
        weakref.finalize(self, id, self).atexit = False


@leaking(1000 * 4)
def finalizers_that_hold_their_own_object():
    def step(i):
        Finalized(1000)

    return step


class Once(type):
    made: ClassVar[dict] = {}

    def __call__(cls, size):
        if size not in cls.made:
            cls.made[size] = super().__call__(size)
        return cls.made[size]


class Table(metaclass=Once):
    def __init__(self, size):
        self.values = torch.zeros(size)


@leaking()
def one_table_for_every_size():
    Once.made.clear()

    def step(i):
        Table(1000 + i)

    return step


@leaking(2 * 16 * 32 * 4)
def heads_added_in_forward():
    heads = nn.ModuleList()

    def step(i):
        for _ in range(2):
            heads.append(nn.Linear(16, 32, bias=False))

    return step


class Neighbour:
    def __init__(self, data):
        self.data, self.others = data, []

    def connect(self, other):
        self.others.append(other)
        other.others.append(self)


@leaking()
def neighbours_that_know_each_other():
    def step(i):
        first, second = (Neighbour(torch.randn(64, 16)) for _ in range(2))
        first.connect(second)

    return step


@leaking(64 * 16 * 4 + 10 * 16 * 4 + 10 * 8)  # input, output and indices
def statistics_written_into_a_buffer_with_their_graph():
    encoder, centers = nn.Linear(16, 16, bias=False), torch.zeros(10, 16)

    def step(i):
        centers[torch.randperm(10)] = encoder(torch.randn(64, 16))[:10].tanh()

    return step


@healthy
def entries_that_live_for_twelve_steps():
    cache = {}

    def step(i):
        cache[i] = torch.randn(32, 16)
        cache.pop(i - 12, None)

    return step


@healthy
def reservoir_of_thirty():
    kept, chance = [], random.Random(0)

    def step(i):
        if len(kept) < 30:
            kept.append(torch.randn(32, 16))
        elif (at := chance.randint(0, i)) < 30:
            kept[at] = torch.randn(32, 16)

    return step


@healthy
def pool_of_images_that_is_full():
    """What one line has made goes, as another line makes as much."""
    generator, images = random.Random(0), []

    def step(i):
        for image in torch.randn(4, 32, 32).unbind(0):
            if len(images) < 96:
                images.append(image.clone())
            elif generator.random() > 0.5:
                images[generator.randrange(96)] = image.clone()

    return step


@healthy
def texts_decoded_token_by_token():
    state = SimpleNamespace(cache=None, left=9)

    def step(i):
        new = torch.randn(4, 1, 16)
        state.cache = new if state.cache is None else torch.cat([state.cache, new], 1)
        state.left -= 1
        if not state.left:
            state.cache, state.left = None, 7 + i % 5

    return step


@healthy
def window_cut_after_each_concatenation():
    state = SimpleNamespace(keys=torch.zeros(4, 0, 16))

    def step(i):
        state.keys = torch.cat([state.keys, torch.randn(4, 1, 16)], 1)[:, -12:].contiguous()

    return step


@healthy
def episodes_that_become_longer():
    state = SimpleNamespace(episode=[], length=3)

    def step(i):
        state.episode.append(torch.randn(32, 16))
        if len(state.episode) >= state.length:
            state.episode.clear()
            state.length += 2

    return step


@healthy
def long_deque_still_filling():
    recent = collections.deque(maxlen=100)

    def step(i):
        recent.append(torch.randn(16, 16))

    return step


@healthy
def bounded_lru_cache_still_filling():
    @functools.lru_cache(maxsize=64)
    def mask(n):
        return torch.ones(n, n).tril()

    def step(i):
        mask(10 + i)

    return step


@healthy
def data_set_cached_in_its_first_epoch():
    cache = {}

    def step(i):
        key = i % 20
        if key not in cache:
            cache[key] = torch.randn(16, 16)

    return step


@healthy
def outputs_cleared_every_epoch():
    outputs = []

    def step(i):
        outputs.append(torch.randn(16, 16))
        if i % 9 == 8:
            outputs.clear()

    return step


@healthy
def gradual_unfreezing():
    layers = nn.Sequential(*[nn.Linear(16, 16) for _ in range(12)])
    for parameter in layers.parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.Adam(layers.parameters())

    def step(i):
        if i % 3 == 0 and i // 3 < len(layers):
            layers[-1 - i // 3].requires_grad_(True)
        trainer(layers, optimizer)()

    return step


@healthy
def lbfgs_with_a_long_history():
    model = nn.Linear(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, history_size=100)
    data = torch.randn(64, 16), torch.randn(64, 4)

    def closure():
        optimizer.zero_grad()
        loss = (model(data[0]).tanh() - data[1]).pow(2).mean()
        loss.backward()
        return loss

    def step(i):
        optimizer.step(closure)

    return step


@healthy
def accumulation_of_gradients():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)

    def step(i):
        model(torch.randn(8, 16)).pow(2).mean().backward()
        if i % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()

    return step


@healthy
def validation_with_a_local_list():
    model = mlp()
    train = trainer(model, torch.optim.Adam(model.parameters()))

    def validate():
        with torch.no_grad():
            outputs = [model(torch.randn(32, 16)) for _ in range(4)]
        return torch.cat(outputs).mean().item()

    def step(i):
        train()
        if i % 5 == 4:
            validate()

    return step


@healthy
def key_value_cache_of_a_generation():
    state = SimpleNamespace(cache=None)

    def step(i):
        if i % 12 == 0:
            state.cache = None
        new = torch.randn(1, 1, 16)
        state.cache = new if state.cache is None else torch.cat([state.cache, new], 1)

    return step


@healthy
def buffer_for_the_longest_so_far():
    numbers, state = random.Random(2), SimpleNamespace(table=torch.zeros(0))

    def step(i):
        length = numbers.randrange(10, 500)
        if len(state.table) < length:
            state.table = torch.arange(length, dtype=torch.float32)

    return step


@healthy
def best_three_checkpoints():
    model, numbers, best = mlp(), random.Random(3), []
    train = trainer(model, torch.optim.SGD(model.parameters(), 1e-3))

    def step(i):
        train()
        best.append((numbers.random(), i, copy.deepcopy(model.state_dict())))
        best.sort(key=lambda entry: entry[:2])
        del best[3:]

    return step


@healthy
def batches_that_become_longer():
    state = SimpleNamespace()

    def step(i):
        state.batch = torch.randn(16 + 4 * i, 16)
        state.out = state.batch.tanh()

    return step


@healthy
def histories_of_numbers():
    model, losses = mlp(), []
    train = trainer(model, torch.optim.Adam(model.parameters()))

    def step(i):
        losses.append(train().item())

    return step


@healthy
def model_replaced_now_and_then():
    state = SimpleNamespace()

    def step(i):
        if i % 8 == 0:
            state.model = mlp()
            state.train = trainer(state.model, torch.optim.Adam(state.model.parameters()))
        state.train()

    return step


@healthy
def cache_with_random_eviction():
    numbers, cache = random.Random(4), {}

    def step(i):
        cache[i] = torch.randn(numbers.randrange(8, 64))
        if len(cache) > 10:
            del cache[numbers.choice(list(cache))]

    return step


@healthy
def cache_whose_keys_run_out():
    numbers, cache = random.Random(5), {}

    def step(i):
        length = numbers.randrange(12)
        if length not in cache:
            cache[length] = torch.zeros(length + 1, 16)

    return step


@healthy
def queue_of_three_batches():
    waiting = collections.deque(torch.randn(8, 16) for _ in range(3))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step(i):
        waiting.append(torch.randn(8, 16))
        loss = model(waiting.popleft()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@healthy
def cycles_without_tensors():
    model = mlp()
    train = trainer(model, torch.optim.Adam(model.parameters()))

    def step(i):
        for _ in range(50):
            Node(i)
        train()

    return step


@healthy
def average_of_losses_detached():
    model, state = mlp(), SimpleNamespace(total=torch.zeros(()))
    train = trainer(model, torch.optim.Adam(model.parameters()))

    def step(i):
        state.total = state.total + train().detach()

    return step


@healthy
def two_optimizers_in_turn():
    one, two = mlp(), mlp()
    trainers = [trainer(m, torch.optim.Adam(m.parameters())) for m in (one, two)]

    def step(i):
        trainers[i % 2]()

    return step


@healthy
def copies_of_the_states_of_ever_longer_sequences():
    cell = nn.GRUCell(16, 16)
    optimizer = torch.optim.SGD(cell.parameters(), 1e-3)
    last = SimpleNamespace(states=[])

    def step(i):
        hidden, states = torch.zeros(4, 16), []
        for _ in range(4 + i):
            hidden = cell(torch.randn(4, 16), hidden)
            states.append(hidden.detach().clone())
        hidden.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        last.states = states

    return step


@leaking(64 * 4 * 4)
def results_kept_by_the_closure_of_lbfgs():
    model = nn.Linear(16, 4)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1, history_size=3)
    data = torch.randn(64, 16), torch.randn(64, 4)
    residuals = []

    def closure():
        optimizer.zero_grad()
        residual = model(data[0]).tanh() - data[1]
        residual.pow(2).mean().backward()
        residuals.append(residual.detach())
        return residual.pow(2).mean()

    def step(i):
        optimizer.step(closure)

    return step


@healthy
def list_of_fixed_length_still_filling():
    recent = [None] * 100

    def step(i):
        recent[i % 100] = torch.randn(16, 16)

    return step


@healthy
def ring_that_is_made_as_it_fills():
    recent, capacity = [], 100

    def step(i):
        if len(recent) < capacity:
            recent.append(None)
        recent[i % capacity] = torch.randn(16, 16)

    return step


@leaking(16 * 16 * 4)
def list_made_longer_for_each_item():
    every = []

    def step(i):
        every.append(None)
        every[i] = torch.randn(16, 16)

    return step


@leaking(16 * 16 * 4)
def item_of_a_fixed_list_that_becomes_longer():
    layers = [torch.randn(16, 16) for _ in range(2)]

    def step(i):
        longer = torch.cat((layers[1], torch.randn(16, 16)))
        layers[1] = longer

    return step
