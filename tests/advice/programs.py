"""Small programs with one mistake each, for which memprof offers a patch; used by `test_patches`."""

from __future__ import annotations

HEAD = """\
import functools
import torch
from torch import nn


"""

MODEL = """\
def build(width=192, blocks=4):
    layers = [m for _ in range(blocks) for m in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*layers)


"""

LEAKS = {
    "item": """\
class Meter:
    def __init__(self):
        self.net, self.sum = build(), 0.0

    def step(self):
        error = self.net(torch.randn(64, 192)).square().mean()
        self.sum = self.sum + error
""",
    "detach": """\
class History:
    def __init__(self):
        self.net, self.state = build(), torch.zeros(64, 192)

    def step(self):
        carried = self.net(self.state)
        self.state = carried
""",
    "weakref": """\
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
    "bound_cache": """\
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
    "clone_view": """\
class Features:
    def __init__(self):
        self.net, self.first = build(), []

    @torch.no_grad()
    def step(self):
        out = self.net(torch.randn(96, 192))
        self.first.append(out[0])
""",
    "clear_traceback": """\
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
    "break_cycle": """\
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
    "save_for_backward": """\
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
}
"""By fix: a program whose classes' last one has a ``step`` that leaks."""

WASTE = {
    "no_grad": """\
def score(net, x):
    return net(x).mean()


class Evaluation:
    def __init__(self):
        self.net = build(blocks=8)

    def step(self):
        score(self.net, torch.randn(256, 192)).item()
""",
    "set_to_none": """\
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
    "foreach_false": """\
class Foreach:
    def __init__(self):
        self.net = build(blocks=8)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3, foreach=True)

    def step(self):
        self.net(torch.randn(8, 192)).square().mean().backward()
        self.opt.step()
        self.opt.zero_grad()
""",
    "disable_autocast_cache": """\
class Serving:
    def __init__(self):
        self.net = build(blocks=8).eval()
        self.amp = torch.autocast("cpu", dtype=torch.bfloat16)
        self.amp.__enter__()

    @torch.no_grad()
    def step(self):
        self.net(torch.randn(8, 192)).float().mean().item()
""",
    "del_ref": """\
class Trials:
    def __init__(self):
        self.net = None

    def step(self):
        self.net = build(blocks=6)
""",
    "no_retain_graph": """\
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
}
"""By fix: a program that wastes memory without growing."""

RUN = """\


def main(path, steps=24):
    import memprof

    with memprof.track(path, sources=["cpu"]) as tracker:
        job = {name}()
        for _ in range(steps):
            job.step()
            tracker.step()
"""


def program(fix: str) -> str:
    """The whole source of a program; ``main(path)`` records it."""
    body = {**LEAKS, **WASTE}[fix]
    name = body.rsplit("\nclass ", 1)[-1] if "\nclass " in body else body[len("class ") :]
    return HEAD + MODEL + body + RUN.replace("{name}", name.split("(")[0].split(":")[0])
