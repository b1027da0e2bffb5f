"""What a dry run costs: a model of 70 billion parameters, and a step beside the CPU's own.

Wanted: 70 billion parameters built on the device take a few GiB of the host and seconds; a training
step of a model of 1.3 billion is 20 times as fast as on this machine's CPU. The CPU's step is
measured with two of the model's 24 layers, which leaves room in 24 GiB, and the dry run's with the
same two; then with all. Processor time is that of all threads, and the smallest of several steps
counts: on a busy machine the clock says more about the others.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import datetime, timezone

from memprof.dry_run.build import compiler, find_torch
from memprof.errors import MissingError

AIM = 20.0
GIB = 1 << 30

LARGE = """
import json, resource, time
import torch
class Block(torch.nn.Module):
    def __init__(self, width, inner, heads, groups):
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.query = torch.nn.Linear(width, width, bias=False)
        self.key = torch.nn.Linear(width, groups * self.size, bias=False)
        self.value = torch.nn.Linear(width, groups * self.size, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.gate, self.up = (torch.nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(inner, width, bias=False)
    def forward(self, x):
        b, t, c = x.shape
        y = self.norm1(x)
        q = self.query(y).view(b, t, self.heads, self.size).transpose(1, 2)
        each = self.heads // self.groups
        k, v = (
            f(y).view(b, t, self.groups, self.size).transpose(1, 2).repeat_interleave(each, 1)
            for f in (self.key, self.value)
        )
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        y = self.norm2(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))
torch.set_default_dtype(torch.bfloat16)
torch.cuda.init()
host, wall, processor = (
    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter(), time.process_time()
)
with torch.device("cuda"), torch.no_grad():
    embedding = torch.nn.Embedding(128256, 8192)
    blocks = torch.nn.Sequential(*(Block(8192, 28672, 64, 8) for _ in range(80)))
    head = torch.nn.Linear(8192, 128256, bias=False)
    built = time.process_time() - processor
    head(blocks(embedding(torch.zeros(1, 128, dtype=torch.int64))))
parts = (embedding, blocks, head)
print(json.dumps({
    "parameters": sum(p.numel() for part in parts for p in part.parameters()),
    "built_s": built,
    "processor_s": time.process_time() - processor,
    "wall_s": time.perf_counter() - wall,
    "host_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "host_before_kib": host,
    "peak": torch.cuda.max_memory_allocated(),
}))
"""
STEP = """
import json, sys, time
import torch
device, layers, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(0)
with torch.device(device):
    embedding = torch.nn.Embedding(50304, 2048)
    body = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(
            2048, 16, 8192, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        ),
        layers, enable_nested_tensor=False,
    )
    head = torch.nn.Linear(2048, 50304, bias=False)
    tokens = torch.randint(50304, (1, 512))
    mask = torch.nn.Transformer.generate_square_subsequent_mask(512, device=device)
head.weight = embedding.weight
model = torch.nn.ModuleList([embedding, body, head])
optimizer = torch.optim.AdamW(model.parameters())
best = [float("inf"), float("inf")]
for _ in range(steps):
    wall, processor = time.perf_counter(), time.process_time()
    logits = head(body(embedding(tokens), mask=mask, is_causal=True))
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
    took = time.perf_counter() - wall, time.process_time() - processor
    best = [min(before, now) for before, now in zip(best, took)]
print(json.dumps({
    "wall_s": best[0],
    "processor_s": best[1],
    "parameters": sum(p.numel() for p in model.parameters()),
    "peak": torch.cuda.max_memory_allocated() if device == "cuda" else 0,
}))
"""


def main() -> int:
    """Measure and print; 1 where an aim is missed, 0 also where there is nothing to measure."""
    try:
        torch = find_torch()
        compiler()
    except MissingError as missing:
        print(f"skipped: a dry run needs a torch with CUDA and a C compiler: {missing.message}")
        return 0
    when = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"{when}, torch {torch.version}, {machine}, load {os.getloadavg()[0]:.1f}")

    large = below("b200", LARGE)
    print(
        f"{large['parameters'] / 1e9:.1f} billion parameters in bfloat16 on a B200, built and run "
        f"forward once: {large['processor_s']:.2f} s of the processor ({large['wall_s']:.2f} s by "
        f"the clock), of it {large['built_s']:.2f} s to build; "
        f"{large['host_kib'] / (1 << 20):.2f} GiB of the host in all, "
        f"{(large['host_kib'] - large['host_before_kib']) / 1024:.0f} MiB of them after torch and "
        f"CUDA had begun; peak {large['peak'] / GIB:.1f} GiB"
    )
    ours = below("a100-80gb", STEP, "cuda", 2, 6)
    cpu = run([sys.executable, "-c", STEP, "cpu", "2", "2"], {**os.environ, "MEMPROF": "0"})
    whole = below("a100-80gb", STEP, "cuda", 24, 4)
    by_processor = cpu["processor_s"] / ours["processor_s"]
    print(
        f"a training step of 2 layers of a GPT of {whole['parameters'] / 1e9:.2f} billion "
        f"parameters, 512 tokens, fp32, AdamW: CPU {cpu['wall_s']:.2f} s ({cpu['processor_s']:.2f} "
        f"s of the processor), dry run {ours['wall_s'] * 1e3:.0f} ms "
        f"({ours['processor_s'] * 1e3:.0f} ms): {cpu['wall_s'] / ours['wall_s']:.0f} times as fast, "
        f"{by_processor:.0f} times by processor time (aim {AIM:.0f})"
    )
    print(
        f"all 24 layers in a dry run: {whole['wall_s'] * 1e3:.0f} ms a step "
        f"({whole['processor_s'] * 1e3:.0f} ms), peak {whole['peak'] / GIB:.1f} GiB"
    )
    return int(by_processor < AIM)


def below(card: str, program: str, *arguments: object) -> dict[str, float]:
    """What a program prints at the end of a dry run that is not recorded."""
    words = ["dry-run", "--gpu", card, "--no-record", sys.executable, "-c", program]
    return run([sys.executable, "-m", "memprof_cli", *words, *map(str, arguments)], os.environ)


def run(words: list[str], environment: os._Environ[str] | dict[str, str]) -> dict[str, float]:
    """What a process prints as JSON on its last line."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            words, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, check=True
        )
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.exit(main())
