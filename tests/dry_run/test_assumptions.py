"""``--assume``: values that no kernel computed, where sizes and branches depend on them."""

from __future__ import annotations

import json

import pytest

from memprof.dry_run.assumptions import Assumptions
from memprof.errors import SettingsError

PROGRAM = """\
import json
import torch

x = torch.rand(100, 5, device="cuda")
rows = x[:, 0] > 0.3
changed = x.clone()
changed[rows] = changed[rows] * 2
weights = torch.rand(10, 5, device="cuda", requires_grad=True)
chosen = weights[weights > 0.5]
chosen.sum().backward()
print(json.dumps({
    "nonzero": list(x.nonzero().shape),
    "where": [list(one.shape) for one in torch.where(x > 0.5)],
    "mask": list(x[x > 0.5].shape),
    "rows": list(x[rows].shape),
    "masked_select": list(torch.masked_select(x, x > 0.5).shape),
    "chosen": list(chosen.shape),
    "unique": list(torch.unique(x).shape),
    "counts": [list(one.shape) for one in torch.unique(x, True, True, True)],
    "sum": x.sum().item(),
    "largest": int(x.argmax()),
    "half": x.sum().bfloat16().item(),
    "any": bool((x > 0).any()),
    "known": [torch.tensor(0, device="cuda").item(), torch.tensor(3.0, device="cuda").item()],
}))
"""


@pytest.fixture
def found(dry_run, tmp_path):
    """What the program finds under these options, and what the report says was not seen."""

    def run(*options: str) -> tuple[dict, list[str]]:
        (tmp_path / "sizes.py").write_text(PROGRAM)
        words = ["--gpu", "t4", *options, "--json", "-o", "run.json", "sizes.py"]
        done = dry_run(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        first, _, rest = done.stdout.partition("\n")
        return json.loads(first), json.loads(rest)["not_seen"]

    return run


def test_sizes_and_numbers_are_as_they_were_assumed(found):
    told, unseen = found("--assume", "nonzero=0.5,unique=0.1", "--assume", "item=2,bool=true")
    assert told == {
        "nonzero": [250, 2],
        "where": [[250], [250]],
        "mask": [250],
        "rows": [50, 5],
        "masked_select": [250],
        "chosen": [25],
        "unique": [50],
        "counts": [[50], [100, 5], [50]],
        "sum": 2.0,
        "largest": 2,
        "half": 2.0,
        "any": True,
        "known": [0, 3.0],
    }
    assumed = [line for line in unseen if "was assumed" in line]
    assert len(assumed) == 4
    assert (
        "that 10 % of the elements are unique was assumed (--assume unique=0.1), 2 times"
        in " ".join(assumed)
    )
    assert any(
        "number on the device is 2 was assumed (--assume item=2), 3 times" in a for a in assumed
    )


def test_without_an_assumption_all_are_zeros_and_nothing_is_said_of_one(found):
    told, unseen = found()
    assert told["nonzero"] == [0, 2]
    assert told["mask"] == [0]
    assert told["sum"] == 0.0
    assert not told["any"]
    assert told["known"] == [0, 3.0]
    assert not any("was assumed" in line for line in unseen)


def test_what_was_not_assumed_stays_as_it_is(found):
    told, unseen = found("--assume", "nonzero=1")
    assert told["mask"] == [500]
    assert told["sum"] == 0.0
    assert any("sizes.py" in line and "zeros" in line for line in unseen)


def test_several_are_read_from_one_text_and_from_many():
    found = Assumptions.of(["nonzero=0.5, unique=0.1", "bool=false"])
    assert found.values == {"nonzero": 0.5, "unique": 0.1, "bool": 0.0}
    assert Assumptions.of([str(found)]).values == found.values
    assert not Assumptions.of([""])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nonzero=1.5", "a share lies between 0 and 1"),
        ("nonzero", "'' is no finite number"),
        ("bool=maybe", "'maybe' is neither true nor false"),
        ("item=x", "'x' is no finite number"),
        ("item=inf", "'inf' is no finite number"),
        ("sort=0.5", "there is no kind 'sort'"),
    ],
)
def test_what_cannot_be_assumed_is_refused_with_the_reason(text, why):
    with pytest.raises(SettingsError) as refused:
        Assumptions.of([text])
    assert refused.value.message == f"--assume {text}: {why}"
    assert "nonzero=SHARE" in refused.value.hint
