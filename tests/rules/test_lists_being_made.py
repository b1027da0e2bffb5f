"""A list that a comprehension makes grows until it is whole, and is no leak."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.records import Finding, Holder, SourceFiles
from memprof.reference_chain import Link, LinkKind, Unowned
from memprof.rules.ranked_findings import findings
from memprof.runfile.source_digests import digest_of
from memprof.testing import TraceBuilder
from memprof.trace import Category, Frame
from tests.rules.recorded import Recording


def growth_of(folder, text, calls, links=(), kind=LinkKind.ITEM, steps=20, category=0):
    """What grows where each step makes a MiB at some lines of a file, as (function, line) pairs.

    ``links`` are how the search came upon it.
    """
    source = folder / "job.py"
    source.write_text(text)
    trace = TraceBuilder(device="cpu")
    stack = tuple(Frame(name, str(source), line) for name, line in calls)
    for step in range(steps):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=stack, category=category)
    more = [SourceFiles([str(source)], [digest_of(source.read_bytes())])]
    if links:
        holder = Holder(kind, links=[*links])
        more.append(Finding("holders", device="cpu", step=16, stack=1, holders=[holder]))
    run = load(Recording((trace,), more=tuple(more)).write(folder / "run.json"))
    return [one for one in findings(run) if one.bytes_per_step]


@pytest.mark.parametrize(
    ("owner", "statement", "is_told"),
    [
        ("list", "feats = cat([extractor(part) for part in parts])", False),
        ("list", "feats = list(map(extractor, parts))", False),
        ("list", "feats = extractor(part)", True),  # a library in C++ may keep it
        ("Reader", "feats = cat([extractor(part) for part in parts])", True),
        ("", "feats = cat([extractor(part) for part in parts])", True),
    ],
)
def test_what_only_the_interpreter_has_is_being_made(owner, statement, is_told, tmp_path):
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner=owner)),
        *([Link(LinkKind.ITEM, "5", "list", length=13)] if owner else []),
    ]
    kind = LinkKind.ITEM if owner else LinkKind.UNKNOWN
    text = f"def main(parts):\n    {statement}\n"
    assert bool(growth_of(tmp_path, text, [("main", 2)], links, kind)) is is_told


@pytest.mark.parametrize(
    ("reading", "is_told"),
    [
        ("return min(row['loss'] for row in rows)", True),
        ("return min(row['rate']() for row in rows)", False),
    ],
)
def test_records_with_a_method_that_nothing_calls_are_told(reading, is_told, tmp_path):
    text = (
        "def run(number):\n"
        "    schedule = Schedule(number)\n"
        "    return {'loss': schedule.loss(), 'rate': schedule.rate}\n\n"
        "def main(numbers):\n"
        "    rows = [run(number) for number in numbers]\n"
        f"    {reading}\n"
    )
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner="list")),
        Link(LinkKind.ITEM, "5", "list", length=13),
        Link(LinkKind.ITEM, "'rate'", "dict", length=2, is_record=True),
        Link(LinkKind.BOUND_METHOD, "__self__", "Schedule.rate"),
        Link(LinkKind.ATTRIBUTE, "weights", "Schedule"),
    ]
    growing = growth_of(tmp_path, text, [("run", 2), ("main", 6)], links)
    assert [(one.rule, one.remedies[0].line) for one in growing] == [("kept-method", 3)] * is_told


ANSWERS = """
def answer(net, x):
    hidden = net[:2](x)
    return {"score": net[2](hidden).max().item(), "hidden": hidden}

def main(net, batches):
    answers = MADE
    READ
"""
EACH = "answer(net, x)"


@pytest.mark.parametrize(
    ("owner", "made", "reading", "rules"),
    [
        (
            *("dict", f"{{i: {EACH} for i, x in enumerate(batches)}}"),
            *("print(max(one['score'] for one in answers.values()))", ["unread-field"]),
        ),
        (
            *("list", f"[{EACH} for x in batches]"),
            *("print(max(one['score'] for one in answers))", ["unread-field"]),
        ),
        ("list", f"[{EACH} for x in batches]", "print(answers[0]['hidden'].mean())", []),
        ("list", f"[{EACH} for x in batches]", "torch.save(answers, 'answers.pt')", []),
        ("list", f"[{EACH} for x in batches]", "return collate(answers)", []),
        (
            *("list", f"[{EACH} for x in batches]"),
            *("print([one[key] for one in answers for key in one])", []),
        ),
    ],
)
def test_dicts_with_an_entry_that_nothing_reads_are_told(owner, made, reading, rules, tmp_path):
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner=owner)),
        Link(LinkKind.ITEM, "'q5'" if owner == "dict" else "5", owner, length=13),
        Link(LinkKind.ITEM, "'hidden'", "dict", length=2, is_record=True),
    ]
    text = ANSWERS.replace("MADE", made).replace("READ", reading)
    growing = growth_of(tmp_path, text, [("answer", 3), ("main", 7)], links)
    assert [one.rule for one in growing] == rules
    assert [one.remedies[0].line for one in growing] == [4] * len(rules)


def test_exceptions_that_a_function_returns_are_told(tmp_path):
    text = (
        "def attempt(fn, x):\n"
        "    try:\n"
        "        return fn(x), None\n"
        "    except ValueError as error:\n"
        "        return None, error\n\n"
        "def main(fn, batches):\n"
        "    outcomes = [attempt(fn, x) for x in batches]\n"
        "    return sum(error is not None for _, error in outcomes)\n"
    )
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner="list")),
        Link(LinkKind.ITEM, "5", "list", length=13),
        Link(LinkKind.ITEM, "1", "tuple", length=2),
        Link(LinkKind.EXCEPTION, "__traceback__", "ValueError"),
        Link(LinkKind.FRAME, "x", "fn"),
    ]
    calls = [("attempt", 3), ("main", 8)]
    growing = growth_of(tmp_path, text, calls, links, LinkKind.EXCEPTION)
    assert [(one.rule, one.remedies[0].line) for one in growing] == [("stored-exception", 5)]


@pytest.mark.parametrize(
    ("statement", "rules"),
    [
        ("trials = sorted((Trial(x) for x in rates), key=score)", ["collected-models"]),
        ("trials = [Trial(x) for x in rates]", ["collected-models"]),
        ("best = max((Trial(x) for x in rates), key=score)", ["kept-attribute"]),
        ("study.run(Trial(x) for x in rates)", ["kept-attribute"]),
    ],
)
def test_objects_with_models_are_told_by_what_collects_them(statement, rules, tmp_path):
    text = f"def main(rates):\n    {statement}\n"
    made = {"steps": 60, "category": Category.PARAMETER}
    growing = growth_of(tmp_path, text, [("main", 2)], **made)
    assert [one.rule for one in growing] == rules
    assert [one.remedies[0].line for one in growing] == [2]
