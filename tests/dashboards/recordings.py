"""Small recordings whose every byte is known, for the tests of figures and of the page."""

from __future__ import annotations

from pathlib import Path

from memprof.loading import load
from memprof.records import Finding, Note, Readings
from memprof.run import Run
from memprof.testing import TraceBuilder, step_columns, write_run
from memprof.trace import Category, Frame, Phase, Trace

MIB = 1 << 20
START_US = 1_700_000_000_000_000
STEPS = 4
HOSTILE = '</script><img src=x onerror="alert(1)">&\u202egnp.exe\u2028"\''

MODEL = Frame("forward", "/home/someone/job/model.py", 31)
TRAIN = Frame("main", "/home/someone/job/train.py", 7)
LINEAR = Frame("forward", "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py", 125)


def training(frame: Frame = MODEL, module: str = "GPT.head", device: str = "cuda:0") -> Trace:
    """Four steps of 8 events each: 4 MiB of parameters, 6 MiB kept for backward, 4 of gradients."""
    builder = TraceBuilder(device=device, step_us=100)
    builder.existing(4 * MIB, "weight", category=Category.PARAMETER, stack=(TRAIN,))
    for step in range(STEPS):
        builder.label(step=step, phase=Phase.FORWARD, module=module)
        stack = (LINEAR, frame, TRAIN)
        builder.alloc(6 * MIB, "kept", category=Category.ACTIVATION, stack=stack)
        builder.alloc(2 * MIB, "passing", category=Category.TEMPORARY, stack=stack).free("passing")
        builder.label(step=step, phase=Phase.BACKWARD)
        builder.alloc(4 * MIB, "gradient", category=Category.GRADIENT).free("kept")
        builder.label(step=step, phase=Phase.OPTIMIZER).free("gradient")
    return builder.build()


def counters(trace: Trace) -> list[tuple[int, int]]:
    """Start and end of every step of `training`, in microseconds since the epoch."""
    labels = [trace.label(int(index)).step for index in trace.events.label]
    times = trace.events.time_us
    rows = [[i for i, s in enumerate(labels) if s == step] for step in range(STEPS)]
    return [(int(times[r[0]]), int(times[r[-1]])) for r in rows]


def recorded(
    folder: Path,
    trace: Trace | None = None,
    name: str = "run.json",
    notes: tuple[Note, ...] = (),
    findings: tuple[Finding, ...] = (),
) -> Run:
    """A run file of a training with steps and readings, written and read again."""
    trace = trace or training()
    spans = counters(trace)
    steps = step_columns(
        start_us=[a for a, _ in spans],
        end_us=[b for _, b in spans],
        allocated=[4 * MIB] * STEPS,
        peak_allocated=[14 * MIB] * STEPS,
        reserved=[16 * MIB] * STEPS,
        peak_reserved=[16 * MIB] * STEPS,
        window=[0] * STEPS,
    )
    times = [START_US, START_US + 1500, START_US + 3000]
    nvml = {"used": [30 * MIB, 31 * MIB, None], "total": [64 * MIB] * 3, "power_w": [70.5, 71, 90]}
    more = [
        Readings("nvml", trace.device, times, nvml),
        Readings(
            "host", "host", times, {"rss": [MIB, 2 * MIB, 3 * MIB], "available": [9 * MIB] * 3}
        ),
        *notes,
        *findings,
    ]
    return load(write_run(folder / name, trace, steps=steps, more=more))
