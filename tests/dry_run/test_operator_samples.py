"""torch's own list of some 700 operators, with inputs for each, forward and backward in a dry run.

One input for each; ``MEMPROF_TEST_SAMPLES=8`` takes more. `docs/dry-run.md` has the counts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("programs") / "operator_samples.py"
SAMPLES = os.environ.get("MEMPROF_TEST_SAMPLES", "1")
WITHOUT_CUDA = {
    "linalg.lstsq",  # but one of its drivers
    "linalg.lstsq.grad_oriented",
    "nonzero_static",  # until torch 2.5
    "sparse.mm.reduce",
    "tensor_split",  # wants its indices on the host
    "torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
}
"""What torch itself refuses on every card."""
OTHER_SHAPES = {"native_batch_norm", "_native_batch_norm_legit"}
"""Where CUDA's code gives more than the CPU's."""


@pytest.mark.slow
def test_no_operator_crashes_and_none_fails_but_by_values(dry_run, tmp_path):
    if importlib.util.find_spec("expecttest") is None:
        pytest.skip("torch's list of operators needs the package expecttest")
    rows = list(outcomes(dry_run, tmp_path))
    assert [row["name"] for row in rows if "crashed" in row] == []
    failed = {row["name"]: row["messages"]["failed"] for row in rows if row.get("failed")}
    assert {name: text for name, text in failed.items() if name not in WITHOUT_CUDA} == {}
    assert {row["name"] for row in rows if row.get("shape")} <= OTHER_SHAPES
    assert sum(row.get("ran", 0) > 0 for row in rows) > 500


def outcomes(dry_run, tmp_path: Path) -> Iterator[dict]:
    """A row for each operator; one that crashed ends a process, and the next begins after it."""
    first, last = 0, 1
    while first < last:
        words = [sys.executable, PROGRAM, first, 10_000, SAMPLES]
        done = dry_run("--gpu", "a100-80gb", "--no-record", *words, cwd=tmp_path)
        begun = {}
        for row in map(json.loads, done.stdout.splitlines()):
            if "of" in row:
                begun, last = row, row["of"]
            else:
                begun, first = {}, row["number"] + 1
                yield row
        if begun:
            yield {**begun, "crashed": done.stderr[-3000:]}
            first = begun["number"] + 1
        elif done.returncode:
            pytest.fail(done.stderr[-3000:])
