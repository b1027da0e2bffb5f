"""What `memprof leaks` costs as recordings become longer and the program's file larger.

A small GPT is trained and, in between, evaluated: backward passes, windows of evaluation, and
results that are kept. Each recording is made once; the command runs in processes of its own.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from processes import measured

from memprof.loading import load

LEAKS = "import sys; from memprof_cli import main; main(['leaks', sys.argv[1]])"
BARE = "import memprof_cli, memprof.rules.ranked_findings"
PROGRAM = """\
import sys

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        h = self.norm(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.down(torch.relu(self.up(self.after(x))))


class Model(nn.Module):
    def __init__(self, words=512, width=64, heads=4, depth=4):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, ids):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def loss_of(model, ids):
    logits = model(ids[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def evaluate(model, batches):
    with torch.no_grad():
        return [loss_of(model, ids).item() for ids in batches]


def train(steps):
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for step in range(steps):
        loss = loss_of(model, torch.randint(512, (8, 33)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        history.append(loss)
        if step % 25 == 24:
            evaluate(model, [torch.randint(512, (8, 33)) for _ in range(4)])


"""
MORE = """\
def prepare_{0}(rows, scale={0}):
    kept = []
    for number, row in enumerate(rows):
        value = row * scale + number
        if value.sum() > {0}:
            kept.append(value)
    return torch.stack(kept).mean(0)


"""
END = "train(int(sys.argv[1]))\n"


def record(folder: Path, steps: int, lines: int) -> Path:
    """Record the program with so many steps, its file with about so many lines."""
    number = max(0, lines - PROGRAM.count("\n")) // MORE.count("\n")
    source, path = folder / f"train_{lines}.py", folder / f"{steps}_{lines}.json"
    source.write_text(PROGRAM + "".join(MORE.format(one) for one in range(number)) + END)
    options = ["--allowance", "600", "-o", str(path)]
    command = [sys.executable, "-m", "memprof_cli", "run", *options, str(source), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return path


def profile(path: Path) -> None:
    """Print where the time of the longest one goes."""
    from memprof_cli import main as command

    profiler = cProfile.Profile()
    with redirect_stdout(StringIO()):
        profiler.enable()
        try:
            command(["leaks", str(path)])
        except SystemExit as end:  # the command's way to return
            if end.code:
                raise
        finally:
            profiler.disable()
    pstats.Stats(profiler).sort_stats("cumulative").print_stats("memprof", 40)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 200, 800])
    parser.add_argument("--lines", type=int, nargs="+", default=[100, 5000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="where the last one's time goes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = {
            (steps, lines): record(folder, steps, lines)
            for lines in options.lines
            for steps in options.steps
        }
        page = folder / "none"
        best = dict.fromkeys(paths, (float("inf"), float("inf")))
        bare = float("inf")
        for _ in range(options.rounds):  # in turn, so that a busy moment hits all of them
            bare = min(bare, measured(BARE, page, page)[0])
            for key, path in paths.items():
                best[key] = min(best[key], measured(LEAKS, path, page))
        print(f"the imports alone take {bare:.2f} s")
        print(f"{'steps':>6} {'lines':>6} {'events':>9} {'s':>6} {'of the imports':>15} {'MiB':>6}")
        for (steps, lines), (seconds, peak) in best.items():
            events = sum(device.events for device in load(paths[steps, lines]).devices)
            share = f"{seconds / bare:.1f} x"
            print(f"{steps:6} {lines:6} {events:9,} {seconds:6.2f} {share:>15} {peak:6.0f}")
        if options.profile:
            profile(paths[options.steps[-1], options.lines[-1]])


if __name__ == "__main__":
    main()
