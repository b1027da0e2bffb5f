"""Steps, phases and module paths of training loops."""

from __future__ import annotations

import importlib
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from torch import nn  # noqa: E402

from memprof.record.source_selection import Ticks  # noqa: E402
from memprof.sources.loop.loop_watch import LoopWatch, annotate  # noqa: E402
from memprof.sources.loop.module_hooks import ModuleHooks  # noqa: E402
from memprof.sources.loop.torch_compile import skips_what_is_called  # noqa: E402
from memprof.sources.protocol import Interner  # noqa: E402
from memprof.trace import Phase  # noqa: E402


class Watched:
    def __init__(self):
        self.ended = []
        self.loop_watch = LoopWatch(Interner())
        self.on_step = self.ended.append
        self.loop_watch.open(self.step_ended)
        self.loop_watch.watch_modules()

    def step_ended(self, step):
        self.on_step(step)

    @property
    def label(self):
        return self.loop_watch.label_of(self.loop_watch.label())


@pytest.fixture(params=["in Python", "natively"])
def watched(request):
    it = Watched()
    if request.param == "natively":
        assert it.loop_watch.follow_natively(request.getfixturevalue("native_part"))
    yield it
    it.loop_watch.close()
    assert it.loop_watch.notes() == []


class Spy(nn.Module):
    """A linear layer that notes the label of its moment, forward and backward."""

    def __init__(self, watched, fails=False):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.watched, self.seen, self.fails = watched, [], fails

    def forward(self, x):
        self.seen.append(self.watched.label)
        if self.fails:
            raise ValueError("on purpose")
        y = torch.tanh(x)
        if y.requires_grad:  # runs as the backward of tanh is about to begin
            y.register_hook(lambda _: self.seen.append(self.watched.label))
        return self.linear(y)


def train(model, optimizer):
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def test_a_step_ends_with_the_optimizer(watched):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(4):
        train(model, optimizer)
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_a_step_between_windows_reads_no_clock_and_switches_no_compiler_off(monkeypatch):
    """Each reading asks the kernel, and each switch takes as long as the hooks themselves."""
    importlib.import_module("torch._dynamo.decorators")
    if not skips_what_is_called():
        pytest.skip("torch.compile cannot be told to leave a function alone with what it calls")
    told, readings, switched = [], [], []
    monkeypatch.setattr(
        "memprof.sources.loop.loop_watch.thread_ns", lambda: readings.append(0) or 0
    )
    disable = torch._dynamo.disable

    def counted(function=None, *args, **kwargs):
        if str(getattr(function, "__module__", "")).startswith("memprof."):
            return lambda *_: switched.append(function)
        return disable(function, *args, **kwargs)

    monkeypatch.setattr(torch._dynamo, "disable", counted)
    loop_watch = LoopWatch(Interner())
    loop_watch.listeners.append(Ticks(lambda: None, lambda: told.append("begins")))
    loop_watch.open(told.append)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        train(model, optimizer)
    loop_watch.close()
    assert told == ["begins", 0, "begins", 1, "begins", 2]
    assert readings == switched == []
    assert loop_watch.notes() == []


def test_two_optimizers_in_an_iteration_make_one_step(watched):
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    pairs = [(m, torch.optim.SGD(m.parameters(), 0.1)) for m in models]
    for iteration in range(5):
        for model, optimizer in pairs:
            train(model, optimizer)
        if iteration:
            assert watched.loop_watch.step == iteration + 1
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3, 4]


def test_an_explicit_mark_counts_no_iteration_twice(watched):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for iteration in range(4):
        assert watched.loop_watch.step == iteration
        train(model, optimizer)
        watched.loop_watch.step_done()
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_where_no_optimizer_runs_the_outermost_call_ends_a_step(watched):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    with torch.no_grad():
        for _ in range(4):
            model(torch.ones(1, 2))
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_accumulated_micro_batches_are_one_step(watched):
    merged = []
    watched.loop_watch.on_guess = lambda guess, is_one: merged.append((guess, is_one))
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    watched.loop_watch.close()
    # The first four passes ended some, until the optimizer told that they are one.
    ((guess, is_one),) = merged
    assert (guess.first, is_one) == (0, True)
    assert watched.ended == list(range(guess.last + 3))


def test_passes_that_no_module_call_leads_to_end_a_step_each(watched):
    weight = torch.ones(2, requires_grad=True)
    steps = []
    for _ in range(4):
        steps.append(watched.loop_watch.step)
        (weight * 3).sum().backward()
        assert watched.label.phase is Phase.OTHER
    assert steps == [0, 0, 2, 3]  # an optimizer might have come first
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_passes_through_parts_of_one_batch_end_one_step(watched):
    """As a pipeline does it: all forward passes, then all backward passes."""
    weight = torch.ones(2, requires_grad=True)
    steps = []
    for _ in range(4):
        losses = [(weight * part).sum() for part in range(3)]
        for loss in losses:
            loss.backward()
            steps.append(watched.loop_watch.step)
    assert steps == [0, 0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_passes_of_a_loss_that_is_not_the_newest_end_with_the_next_graph(watched):
    weight = torch.ones(2, requires_grad=True)
    for number in range(4):
        loss = (weight * 3).sum()
        accuracy = (weight * 2).mean()  # what is reported has a graph, too
        loss.backward()
        assert watched.loop_watch.step == number
        del accuracy
    # No step was over before the next graph was there.
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_passes_for_gradients_of_an_input_end_a_step_each(watched):
    model = nn.Linear(2, 2).eval().requires_grad_(False)
    patch = torch.ones(1, 2, requires_grad=True)
    for _ in range(4):
        loss = sum(model(patch).sum() for _ in range(3))
        torch.autograd.grad(loss, patch)
    watched.loop_watch.close()
    # Until a second pass was seen, each of the calls ended one.
    assert watched.ended == list(range(6 + 3))


def test_a_step_that_a_gradient_scaler_leaves_out_ends_all_the_same(watched):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for iteration in range(6):
        if iteration > 1:
            assert watched.loop_watch.step == iteration
        loss = model(torch.ones(1, 2)).sum()
        if iteration in (0, 1, 4):
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3, 4, 5]


def test_a_scaler_that_skips_one_of_two_optimizers_parts_no_iteration(watched):
    models = [nn.Linear(2, 2), nn.Linear(2, 2)]
    pairs = [(m, torch.optim.SGD(m.parameters(), 0.1)) for m in models]
    scaler = torch.amp.GradScaler("cpu")
    for iteration in range(6):
        for model, optimizer in pairs:
            loss = model(torch.ones(1, 2)).sum()
            if iteration in (2, 3) and model is models[iteration - 2]:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
        assert watched.loop_watch.step == iteration + 1
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3, 4, 5]


def test_a_scaler_that_somebody_else_wrapped_stays_wrapped(watched):
    from torch.amp import GradScaler

    ours = GradScaler._maybe_opt_step

    def theirs(self, *args, **kwargs):
        return ours(self, *args, **kwargs)

    GradScaler._maybe_opt_step = theirs
    try:
        watched.loop_watch.close()
        assert GradScaler._maybe_opt_step is theirs
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = GradScaler("cpu")
        scaler.scale(model(torch.ones(1, 2)).sum() * float("inf")).backward()
        scaler.step(optimizer)
        assert watched.ended == []
    finally:
        GradScaler._maybe_opt_step = ours.__wrapped__


def test_a_recording_that_ends_within_an_optimizers_hook_raises_nothing_and_leaves_nothing(watched):
    ended = []
    watched.loop_watch.listeners.clear()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    watched.on_step = lambda n: (ended.append(n), watched.loop_watch.close())
    for _ in range(3):
        train(model, optimizer)
    assert ended == [0]
    watched.loop_watch.close()


def test_what_is_told_of_crossings_may_come_and_go_as_a_step_ends(watched):
    crossed = []

    def tell():
        crossed.append(watched.label.phase)

    def on_step(_):
        if tell in watched.loop_watch.crossings:
            watched.loop_watch.crossings.remove(tell)
        else:
            watched.loop_watch.crossings.append(tell)

    watched.on_step = on_step
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        train(model, optimizer)
    assert crossed[:3] == [Phase.OPTIMIZER, Phase.OTHER, Phase.OPTIMIZER]


def test_the_closure_of_an_optimizer_runs_within_its_step(watched):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    for _ in range(4):
        optimizer.step(closure)
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


@pytest.mark.parametrize("clear", [lambda p: p.grad.zero_(), lambda p: setattr(p, "grad", None)])
def test_where_parameters_are_changed_by_hand_the_next_call_ends_the_step(watched, clear):
    model = nn.Linear(2, 2)
    for iteration in range(12):
        assert watched.loop_watch.step == max(0, iteration - 1)
        model(torch.ones(1, 2)).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.1 * parameter.grad)
                clear(parameter)
    assert watched.ended == list(range(11))


def test_a_critic_that_steps_several_times_ends_a_step_each_time(watched):
    critic, generator = nn.Linear(2, 2), nn.Linear(2, 2)
    often = torch.optim.SGD(critic.parameters(), 0.1)
    seldom = torch.optim.SGD(generator.parameters(), 0.1)
    for _ in range(4):
        for _ in range(5):
            train(critic, often)
        train(generator, seldom)
    watched.loop_watch.close()
    assert watched.ended == list(range(20))


def test_optimizers_in_backward_hooks_make_one_step_an_iteration(watched):
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(4)))
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter], 0.1)
        parameter.register_post_accumulate_grad_hook(lambda _, o=optimizer: o.step())
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
    watched.loop_watch.close()
    assert watched.ended == [0, 1, 2, 3]


def test_optimizers_that_are_made_anew_and_kept_end_a_step_each(watched):
    kept = []
    for _ in range(20):
        model = nn.Linear(2, 2)
        kept.append(torch.optim.SGD(model.parameters(), 0.1))
        train(model, kept[-1])
    assert watched.ended == list(range(13))  # the first of twenty, and from the ninth on each


def test_ten_optimizers_that_take_turns_make_one_step_once_they_are_known(watched):
    models = [nn.Linear(2, 2) for _ in range(10)]
    pairs = [(one, torch.optim.SGD(one.parameters(), 0.1)) for one in models]
    for _ in range(3):
        for pair in pairs:
            train(*pair)
    known = watched.loop_watch.step
    for _ in range(4):
        for pair in pairs:
            train(*pair)
    assert watched.loop_watch.step == known + 4


@pytest.mark.parametrize("by_name", [False, True])
def test_calls_that_go_on_with_the_state_of_the_last_one_end_no_step(watched, by_name):
    cell = nn.GRUCell(2, 2)
    state = torch.zeros(1, 2)
    for _ in range(40):
        x = torch.ones(1, 2)
        state = cell(x, hx=state) if by_name else cell(x, state)
    state.sum().backward()
    watched.loop_watch.close()
    assert watched.ended == []


def test_calls_in_training_mode_that_nobody_differentiates_end_a_step_each(watched):
    model = nn.Linear(2, 2)
    for _ in range(20):
        model(torch.ones(1, 2))
    watched.loop_watch.close()
    assert watched.ended == list(range(13))  # undecided up to the seventh


def test_phases_follow_one_another(watched):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    phases = [watched.label.phase]
    loss = model(torch.ones(1, 2)).sum()
    loss.register_hook(lambda _: phases.append(watched.label.phase))
    phases.append(watched.label.phase)
    optimizer.register_step_pre_hook(lambda *_: phases.append(watched.label.phase))
    loss.backward()
    optimizer.step()
    phases.append(watched.label.phase)
    expected = [Phase.OTHER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER]
    assert phases == expected


def test_paths_are_those_of_named_modules_forward_and_backward(watched):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(Spy(watched), Spy(watched)))
    model(torch.ones(1, 2)).sum().backward()
    for name, module in model.named_modules():
        if isinstance(module, Spy):
            assert [s.module for s in module.seen] == [f"Sequential.{name}"] * 2
            assert [s.phase for s in module.seen] == [Phase.FORWARD, Phase.BACKWARD]


def test_a_shared_module_keeps_its_first_name(watched):
    spy = Spy(watched)
    nn.Sequential(spy, nn.ReLU(), spy)(torch.ones(1, 2))
    assert [s.module for s in spy.seen] == ["Sequential.0", "Sequential.0"]


def test_a_second_model_of_the_same_class_has_a_number(watched):
    first, second = Spy(watched), Spy(watched)
    first(torch.ones(1, 2))
    second(torch.ones(1, 2))
    assert [first.seen[0].module, second.seen[0].module] == ["Spy", "Spy#2"]


def test_a_module_added_later_is_found(watched):
    model = nn.Sequential(nn.ReLU())
    model(torch.ones(1, 2))
    spy = Spy(watched)
    model.append(spy)
    model(torch.ones(1, 2))
    assert spy.seen[0].module == "Sequential.1"


def test_an_exception_in_forward_leaves_no_module_running(watched):
    model = nn.Sequential(Spy(watched, fails=True))
    with pytest.raises(ValueError, match="on purpose"):
        model(torch.ones(1, 2))
    assert watched.label.module == ""
    assert watched.label.phase == Phase.OTHER


def test_an_exception_in_an_optimizer_leaves_no_step_running(watched):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.LBFGS(model.parameters())

    def fail():
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        optimizer.step(fail)
    spy = Spy(watched)
    spy(torch.ones(1, 2))
    assert spy.seen[0].phase == Phase.FORWARD


def test_a_replica_of_data_parallel_has_the_path_of_its_original(watched):
    spy = Spy(watched)
    parallel = nn.DataParallel(nn.Sequential(spy))
    replica = parallel.module._replicate_for_data_parallel()
    replica._modules["0"] = copy = spy._replicate_for_data_parallel()
    copy._modules["linear"] = spy.linear
    parallel.forward = replica.__call__
    parallel(torch.ones(1, 2))
    assert spy.seen[0].module == "DataParallel.module.0"


def test_annotations_nest_and_end(watched):
    with annotate("outer"), annotate("inner"):
        assert watched.label.annotation == "outer/inner"
    assert watched.label.annotation == ""


def test_nothing_is_held_alive(watched):
    import gc
    import weakref

    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(model, optimizer)
    refs = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


@pytest.fixture
def tasks(monkeypatch):
    """The graph task that a thread says it is in."""
    tasks = threading.local()
    monkeypatch.setattr(torch._C, "_current_graph_task_id", lambda: getattr(tasks, "id", -1))
    return tasks


def test_after_a_backward_pass_on_autograds_own_thread_the_loss_is_over(tasks, watched):
    """As on CUDA: the thread that calls ``backward()`` makes no event in the pass itself."""
    model, phases = nn.Linear(2, 2), []

    def device_thread(task):
        tasks.id = task  # nothing tells the thread that its pass has ended
        phases.append(watched.label.phase)

    with ThreadPoolExecutor(1) as pool:
        for task in range(3):
            model(torch.ones(1, 2))
            phases.append(watched.label.phase)
            pool.submit(device_thread, task).result()
            phases.append(watched.label.phase)
    assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.OTHER] * 3


def module_hooks():
    from torch.nn.modules import module

    return {
        name: len(table)
        for name, table in vars(module).items()
        if name.startswith("_global_") and table
    }


def test_no_module_is_hooked_where_none_is_watched_and_one_pair_is_where_they_are(watched):
    assert module_hooks() == {
        "_global_forward_hooks": 1,
        "_global_forward_hooks_always_called": 1,
        "_global_forward_pre_hooks": 1,
    }
    watched.loop_watch.unwatch_modules()
    assert module_hooks() == {}
    assert watched.loop_watch.counts_calls


def test_steps_that_nobody_counted_are_skipped_and_an_open_one_is_told(watched):
    model = nn.Linear(2, 2).eval()
    with torch.no_grad():
        for call in range(10):
            if call == 1:  # the end of the first stays open until the next iteration
                watched.loop_watch.unwatch_modules()
            if call == 8:
                assert watched.ended == []
                watched.loop_watch.skip(7)
                assert watched.ended == [0]
                assert (watched.loop_watch.step, watched.label.step) == (8, 8)
                watched.loop_watch.watch_modules()
            model(torch.ones(1, 2))
    assert watched.ended == [0, 8, 9]
    assert watched.label.step == 10


@pytest.mark.parametrize("watched", ["in Python"], indirect=True)
def test_time_in_hooks_is_reckoned_for_every_call_and_counted_once(watched, monkeypatch):
    model = nn.Sequential(*[nn.Identity() for _ in range(31)])
    clock = iter(range(0, 10**9, 1000))
    monkeypatch.setattr("memprof.sources.loop.loop_watch.thread_ns", lambda: next(clock))
    monkeypatch.setattr("memprof.sources.loop.loop_watch.READING_NS", 0)
    model(torch.ones(1))
    # 32 calls of 2 hooks; of those that are timed each takes one microsecond.
    assert watched.loop_watch.take_spent_us() == 64
    assert watched.loop_watch.take_spent_us() == 0


def test_hooks_on_modules_are_hidden_from_torch_compile_and_come_back_in_their_places():
    from torch.nn.modules import module

    hooks = ModuleHooks(lambda *_: None, lambda *_: None)
    hooks.add()
    hooks.hide()
    assert module_hooks() == {}
    other = module.register_module_forward_pre_hook(lambda *_: None)
    hooks.show()
    assert list(module._global_forward_pre_hooks)[1] == other.id
    hooks.hide()
    hooks.remove()
    hooks.show()
    assert module_hooks() == {"_global_forward_pre_hooks": 1}
    other.remove()


@pytest.mark.parametrize("goes_backward", [True, False])
def test_steps_that_a_backward_pass_ends_train_without_an_optimizer_of_torchs(goes_backward):
    it, trains = Watched(), []
    it.on_step = lambda _: trains.append(it.loop_watch.trains)
    net = nn.Linear(2, 2)
    for _ in range(4):
        with torch.set_grad_enabled(goes_backward):
            loss = net(torch.ones(1, 2)).sum()
        if goes_backward:
            loss.backward()
            with torch.no_grad():
                for one in net.parameters():
                    one.sub_(one.grad)
                    one.grad = None
    it.loop_watch.close()
    assert trains == [goes_backward] * 4
