"""binned-curve: a metric compares each value with hundreds of thresholds at once."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import torch

from tests.rules.recorded import findings_of, names

SAMPLES, LABELS, THRESHOLDS = 32, 16, 256
TABLE = SAMPLES * LABELS * THRESHOLDS
LIBRARY = """\
import torch

def _multilabel_precision_recall_curve_update(preds, thresholds):
    above = (preds.unsqueeze(-1) >= thresholds).long()
    return above.sum(0)
"""
PROGRAM = """\
def metric(given):
    from torchmetrics.classification import MultilabelAveragePrecision

    return MultilabelAveragePrecision(num_labels=16, thresholds=256, average="macro")


def step(number):
    preds = torch.rand(32, 16)
    return update(preds, torch.rand(256)).sum().item()
"""
FOLDER = tempfile.TemporaryDirectory()
NUMBERS = itertools.count()


def made(library, program):
    """A program, and a library's function that it calls, each in a file of its own."""
    folder = Path(FOLDER.name) / f"{next(NUMBERS)}"
    names_of = {"torch": torch}
    part = Path("torchmetrics", "functional", "classification", "precision_recall_curve.py")
    for path, text in ((folder / "site-packages" / part, library), (folder / "a.py", program)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        exec(compile(text, str(path), "exec"), names_of)
        names_of["update"] = names_of.get("_multilabel_precision_recall_curve_update")
    return names_of["step"]


def fires():
    """256 thresholds for values of a batch."""
    return made(LIBRARY, PROGRAM)


def looks_alike():
    """The program's own table of comparisons."""
    own = PROGRAM.replace("update(preds, torch.rand(256))", "(preds[..., None] >= torch.rand(256))")
    return made(LIBRARY, own)


def test_fewer_comparisons_are_to_be_made(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    first, second = found.remedies
    assert (found.rule, first.fix) == ("binned-curve", "fewer_thresholds")
    assert found.bytes == TABLE * (1 + 8)  # as bool, and as int64
    assert first.code.strip().startswith("return MultilabelAveragePrecision(")
    assert first.typed == "MultilabelAveragePrecision(num_labels=16, average='macro')"
    assert "with 256 thresholds at once" in first.why
    assert second.fix == "chunk"


def test_a_table_of_the_programs_own_is_none(tmp_path):
    assert "binned-curve" not in names(looks_alike, tmp_path / "run.json")
