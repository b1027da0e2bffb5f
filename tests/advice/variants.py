"""Programs where the first patch that comes to mind would end them; used by `programs`."""

from __future__ import annotations

VARIANTS = {
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
"""By fix, rule and what is special."""
