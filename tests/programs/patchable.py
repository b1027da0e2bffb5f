"""Small programs with one mistake each, for which memprof offers a patch."""

from __future__ import annotations

HEAD = """\
import functools
import torch
from torch import nn
from weakref import WeakKeyDictionary


"""

MODEL = """\
def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


"""

LEAKS = {
    "item/running-sum": """\
class Meter:
    def __init__(self):
        self.net, self.sum = build(), 0.0

    def step(self):
        error = self.net(torch.randn(64, 192)).square().mean()
        self.sum = self.sum + error
""",
    "detach/assigned-history": """\
class History:
    def __init__(self):
        self.net, self.state = build(), torch.zeros(64, 192)

    def step(self):
        carried = self.net(self.state)
        self.state = carried
""",
    "detach/carried-state": """\
class Recurrent:
    def __init__(self):
        self.cell, self.hidden = nn.GRUCell(192, 192), torch.zeros(64, 192)

    def step(self):
        self.hidden = self.cell(torch.randn(64, 192), self.hidden)
        return self.hidden.square().mean().item()
""",
    "weakref/class-registry": """\
class Adapter(nn.Module):
    everyone = set()

    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(160, 160)
        Adapter.everyone.add(self)


class Pipeline:
    def step(self):
        with torch.no_grad():
            Adapter().proj(torch.randn(4, 160))
""",
    "weakref/own-key": """\
class Fit:
    def __init__(self, layer):
        self.layer = layer


class Fits:
    def __init__(self):
        self.of = WeakKeyDictionary()

    def step(self):
        layer = nn.Linear(160, 160)
        self.of[layer] = Fit(layer)
        with torch.no_grad():
            layer(torch.randn(4, 160))
""",
    "bound_cache/functools-cache/lru_cache": """\
@functools.lru_cache(maxsize=None)
def table(n):
    return torch.arange(n * 64, dtype=torch.float32).view(n, 64)


class Decoder:
    def __init__(self):
        self.n = 100

    def step(self):
        for _ in range(12):
            self.n += 1
            table(self.n)
""",
    "clone_view/advice_on_view": """\
class Features:
    def __init__(self):
        self.net, self.first = build(), []

    @torch.no_grad()
    def step(self):
        out = self.net(torch.randn(96, 192))
        self.first.append(out[0])
""",
    "clear_traceback/advice_on_exception": """\
def broken(net):
    hidden = net(torch.randn(96, 192))
    raise ValueError(hidden.shape)


class Skipping:
    def __init__(self):
        self.net = build()

    def step(self):
        problem = None
        try:
            broken(self.net)
        except ValueError as error:
            problem = error
        return problem is not None
""",
    "break_cycle/reentrant-checkpoint": """\
from torch.utils.checkpoint import checkpoint


class Checkpointed:
    def __init__(self):
        self.net = build(blocks=1)

    def step(self):
        self.run(torch.randn(96, 192, requires_grad=True))

    def run(self, x):
        seen = {"x": x * 2}

        def part(h):
            return self.net(h) + seen["x"].mean()

        seen["out"] = checkpoint(part, x, use_reentrant=True)
        seen["out"].sum().backward()
        self.net.zero_grad()
""",
    "save_for_backward/advice_on_context": """\
class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.y = y
        return y

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad * ctx.y.abs().pow(2 / 3)


class Cubing:
    def __init__(self):
        self.net = build(blocks=1)

    def step(self):
        Cube.apply(self.net(torch.randn(96, 192))).sum().backward()
        self.net.zero_grad()
""",
    "item/kept-graph": """\
class Losses:
    def __init__(self):
        self.net, self.losses = build(), []

    def step(self):
        error = self.net(torch.randn(64, 192)).square().mean()
        error.backward()
        self.net.zero_grad()
        self.losses.append(error)
""",
    "detach/kept-graph": """\
class Values:
    def __init__(self):
        self.net, self.values = build(), []

    def step(self):
        value = self.net(torch.randn(64, 192)).square().mean()
        self.values.append(value)
""",
    "no_grad/no-backward": """\
def score(net, x):
    return net(x).square().mean()


class Scores:
    def __init__(self):
        self.net, self.scores = build(), []

    def step(self):
        self.scores.append(score(self.net, torch.randn(64, 192)))
""",
    "bound_cache/functools-cache/cache": """\
@functools.cache
def table(n):
    return torch.arange(n * 64, dtype=torch.float32).view(n, 64)


class Encoder:
    def __init__(self):
        self.n = 100

    def step(self):
        for _ in range(12):
            self.n += 1
            table(self.n)
""",
    "clone_view/saved-view": """\
class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gated = x.sigmoid()
        first = gated[:48]
        ctx.save_for_backward(first.flatten())
        return first, gated

    @staticmethod
    def backward(ctx, of_first, of_gated):
        (first,) = ctx.saved_tensors
        return of_gated * first.mean()


class Gating:
    def __init__(self):
        self.net = build(blocks=1)

    def step(self):
        first, gated = Gate.apply(self.net(torch.randn(96, 192)))
        (first.mean() + gated.mean()).item()
""",
    # Where the first patch that comes to mind would end the program:
    "clone_view/advice_on_view/tuple": """\
class Rows:
    def __init__(self):
        self.first, self.steps = [], 0

    def step(self):
        self.steps += 1
        part = {"name": f"part {self.steps}", "rows": torch.randn(96, 192)}
        name = part["name"]
        rows = part["rows"]
        self.first.append((name.upper(), rows[:1]))
        return self.first[0][0].upper()
""",
    "item/running-sum/local": """\
def main(path, steps=24):
    import memprof

    net, total = build(), 0.0
    with memprof.track(path, sources=["cpu"]) as tracker:
        for _ in range(steps):
            error = net(torch.randn(64, 192)).square().mean()
            tracker.step()
            total += error
        print("mean", float(total) / steps)
""",
    "detach/running-sum/read": """\
class Averaging:
    def __init__(self):
        self.net, self.sum, self.steps = build(), 0.0, 0

    def step(self):
        error = self.net(torch.randn(64, 192)).square().mean()
        self.sum = self.sum + error
        self.steps += 1
        return self.mean().item()

    def mean(self):
        return self.sum / self.steps
""",
    "detach/kept-graph/stacked": """\
class Stacking:
    def __init__(self):
        self.net, self.losses = build(), []

    def step(self):
        error = self.net(torch.randn(64, 192)).square().mean()
        self.losses.append(error)
        return torch.stack(self.losses).mean().tolist()
""",
    "detach/kept-graph/called": """\
class Calling:
    def __init__(self):
        self.net, self.values = build(), []

    def step(self):
        self.net(torch.randn(64, 192)).square().mean().backward()
        self.net.zero_grad()
        self.values.append(self.net(torch.randn(64, 192)).square().mean())
""",
}
"""By fix and rule: a program whose classes' last one has a ``step`` that leaks."""

LEAKS["detach/running-sum"] = LEAKS["item/running-sum"]

WASTE = {
    "no_grad/evaluation-graph": """\
def score(net, x):
    return net(x).mean()


class Evaluation:
    def __init__(self):
        self.net = build(blocks=8)

    def step(self):
        score(self.net, torch.randn(256, 192)).item()
""",
    "set_to_none/held-gradients": """\
class Zeroing:
    def __init__(self):
        self.net = build(blocks=4)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        loss = self.net(torch.randn(512, 192)).square().mean()
        self.opt.zero_grad(set_to_none=False)
        loss.backward()
        self.opt.step()
""",
    "freeze_params/frozen-by-attribute": """\
class Probe(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = build(blocks=4)
        self.backbone.requires_grad = False
        self.head = nn.Linear(192, 4)

    def forward(self, x):
        return self.head(self.backbone(x))


class Probing:
    def __init__(self):
        self.net = Probe()
        self.opt = torch.optim.AdamW(one for one in self.net.parameters() if one.requires_grad)

    def step(self):
        self.net(torch.randn(256, 192)).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()
""",
    "history_size/lbfgs-history": """\
class Fitting:
    def __init__(self):
        self.net = torch.nn.Linear(64, 64)
        self.opt = torch.optim.LBFGS(self.net.parameters(), lr=0.5, max_iter=4)
        self.x, self.y = torch.randn(32, 64), torch.randn(32, 64)

    def closure(self):
        self.opt.zero_grad()
        loss = (self.net(self.x) - self.y).square().mean()
        loss.backward()
        return loss

    def step(self):
        self.opt.step(self.closure)
""",
    "foreach_false/optimizer-temporaries": """\
class Foreach:
    def __init__(self):
        self.net = build(blocks=8)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, foreach=True)

    def step(self):
        self.net(torch.randn(8, 192)).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()
""",
    "disable_autocast_cache/uncached": """\
class Serving:
    def __init__(self):
        self.net = build(blocks=8).eval()
        self.amp = torch.autocast("cpu", dtype=torch.bfloat16)
        self.amp.__enter__()

    @torch.no_grad()
    def step(self):
        self.net(torch.randn(8, 192)).float().mean().item()
""",
    "del_ref/lingering": """\
class Trials:
    def __init__(self):
        self.net = None

    def step(self):
        self.net = build(blocks=6)
""",
    "no_retain_graph/retaining": """\
class Retaining:
    def __init__(self):
        self.net, self.loss = build(blocks=8), None
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        loss = self.net(torch.randn(512, 192)).square().mean()
        loss.backward(retain_graph=True)
        self.opt.step()
        self.opt.zero_grad()
        self.loss = loss
""",
    "detach/old-graphs": """\
import collections


class Recent:
    def __init__(self):
        self.net, self.critic = build(blocks=2), build()
        self.recent = collections.deque(maxlen=6)

    def step(self):
        x = torch.randn(256, 192)
        value = self.critic(x)
        self.recent.append(value)
        self.net(x).square().mean().backward()
        self.net.zero_grad()
""",
    "no_grad/old-graphs": """\
def score(net, x):
    return net(x).square().mean()


class Validating:
    def __init__(self):
        self.net, self.critic = build(blocks=2), build(blocks=2)
        self.total, self.batches = 0.0, 0

    def step(self):
        x = torch.randn(256, 192)
        self.net(x).square().mean().backward()
        self.net.zero_grad()
        if self.batches % 6 == 0:
            self.total = 0.0
        self.total = self.total + score(self.critic, x)
        self.batches += 1
""",
    "no_grad/unused-gradients": """\
class Teacher(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = build()

    def forward(self, x):
        return self.body(x)


class Distilling:
    def __init__(self):
        self.teacher, self.net = Teacher(), build()
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        x = torch.randn(64, 192)
        wanted = self.teacher(x)
        (self.net(x) - wanted).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()
""",
    "bucket_view/buckets": """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Parallel

if not dist.is_initialized():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Distributed:
    def __init__(self):
        self.net = Parallel(build(blocks=8))
        self.opt = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        self.net(torch.randn(8, 192)).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()
""",
}
"""By fix and rule: a program that wastes memory without growing."""

RUN = """\


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = {name}()
        for _ in range(steps):
            job.step()
            tracker.step()
"""


def program(case: str) -> str:
    """The whole source of a program; ``main(path)`` records it."""
    body = {**LEAKS, **WASTE}[case]
    if body.startswith("def main("):
        return HEAD + MODEL + body
    name = body.rsplit("\nclass ", 1)[-1] if "\nclass " in body else body[len("class ") :]
    return HEAD + MODEL + body + RUN.replace("{name}", name.split("(")[0].split(":")[0])
