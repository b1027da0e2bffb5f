"""What a function hands to what reads tensors without an operator of torch's."""

from __future__ import annotations

import pytest

from memprof.rules.results_read import handed_outside
from memprof.trace import Frame

PROGRAM = """\
def evaluate(net, pairs, labels, parts, table):
    scores = net(pairs)
    picked = scores[pairs]
    {outside}
"""


@pytest.mark.parametrize(
    ("outside", "is_handed"),
    [
        ("return labels.numpy()", False),
        ("return picked.numpy()", False),
        ("return scores.argmax(1).tolist()", False),
        ("return scores.numpy()", True),
        ("shown = scores.detach()\n    return np.asarray(shown)", True),
        ("for one in scores:\n        one.tolist()", True),
        ("parts.append(scores)\n    return parts[0].numpy()", True),
        ("table['scores'] = scores\n    return table['scores'].numpy()", True),
    ],
)
def test_what_is_handed_on_is_known_by_its_names(outside, is_handed, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.format(outside=outside))
    made_at, reader = (Frame("evaluate", str(path), line) for line in (2, 3))
    assert handed_outside([made_at], reader) is is_handed


def test_an_entry_that_takes_what_is_made_is_followed(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(
        "def score(net, x, table):\n"
        "    table['scores'] = net(x)\n"
        "    return table['scores'].numpy()\n"
    )
    assert handed_outside([Frame("score", str(path), 2)], None)
