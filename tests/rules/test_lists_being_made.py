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
    source = tmp_path / "train.py"
    source.write_text(f"def main(parts):\n    {statement}\n")
    trace = TraceBuilder(device="cpu")
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=(Frame("main", str(source), 2),))
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner=owner)),
        *([Link(LinkKind.ITEM, "5", "list", length=13)] if owner else []),
    ]
    holder = Holder(LinkKind.ITEM if owner else LinkKind.UNKNOWN, links=links)
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held,)).write(tmp_path / "run.json"))
    assert any(one.bytes_per_step for one in findings(run)) is is_told


@pytest.mark.parametrize(
    ("reading", "is_told"),
    [
        ("return min(row['loss'] for row in rows)", True),
        ("return min(row['rate']() for row in rows)", False),
    ],
)
def test_records_with_a_method_that_nothing_calls_are_told(reading, is_told, tmp_path):
    source = tmp_path / "sweep.py"
    source.write_text(
        "def run(number):\n"
        "    schedule = Schedule(number)\n"
        "    return {'loss': schedule.loss(), 'rate': schedule.rate}\n\n"
        "def main(numbers):\n"
        "    rows = [run(number) for number in numbers]\n"
        f"    {reading}\n"
    )
    trace = TraceBuilder(device="cpu")
    stack = (Frame("run", str(source), 2), Frame("main", str(source), 6))
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=stack)
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner="list")),
        Link(LinkKind.ITEM, "5", "list", length=13),
        Link(LinkKind.ITEM, "'rate'", "dict", length=2, is_record=True),
        Link(LinkKind.BOUND_METHOD, "__self__", "Schedule.rate"),
        Link(LinkKind.ATTRIBUTE, "weights", "Schedule"),
    ]
    holder = Holder(LinkKind.ITEM, links=links)
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held,)).write(tmp_path / "run.json"))
    growing = [one for one in findings(run) if one.bytes_per_step]
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
    source = tmp_path / "answers.py"
    source.write_text(ANSWERS.replace("MADE", made).replace("READ", reading))
    trace = TraceBuilder(device="cpu")
    stack = (Frame("answer", str(source), 3), Frame("main", str(source), 7))
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=stack)
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner=owner)),
        Link(LinkKind.ITEM, "'q5'" if owner == "dict" else "5", owner, length=13),
        Link(LinkKind.ITEM, "'hidden'", "dict", length=2, is_record=True),
    ]
    holder = Holder(LinkKind.ITEM, links=links)
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held,)).write(tmp_path / "run.json"))
    growing = [one for one in findings(run) if one.bytes_per_step]
    assert [one.rule for one in growing] == rules
    assert [one.remedies[0].line for one in growing] == [4] * len(rules)


def test_exceptions_that_a_function_returns_are_told(tmp_path):
    source = tmp_path / "attempts.py"
    source.write_text(
        "def attempt(fn, x):\n"
        "    try:\n"
        "        return fn(x), None\n"
        "    except ValueError as error:\n"
        "        return None, error\n\n"
        "def main(fn, batches):\n"
        "    outcomes = [attempt(fn, x) for x in batches]\n"
        "    return sum(error is not None for _, error in outcomes)\n"
    )
    trace = TraceBuilder(device="cpu")
    stack = (Frame("attempt", str(source), 3), Frame("main", str(source), 8))
    for step in range(20):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"t{step}", stack=stack)
    links = [
        Link(LinkKind.UNKNOWN, unowned=Unowned(owner="list")),
        Link(LinkKind.ITEM, "5", "list", length=13),
        Link(LinkKind.ITEM, "1", "tuple", length=2),
        Link(LinkKind.EXCEPTION, "__traceback__", "ValueError"),
        Link(LinkKind.FRAME, "x", "fn"),
    ]
    holder = Holder(LinkKind.EXCEPTION, links=links)
    files = SourceFiles([str(source)], [digest_of(source.read_bytes())])
    held = Finding("holders", device="cpu", step=16, stack=1, holders=[holder])
    run = load(Recording((trace,), more=(held, files)).write(tmp_path / "run.json"))
    growing = [one for one in findings(run) if one.bytes_per_step]
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
    source = tmp_path / "trials.py"
    source.write_text(f"def main(rates):\n    {statement}\n")
    files = SourceFiles([str(source)], [digest_of(source.read_bytes())])
    trace = TraceBuilder(device="cpu")
    stack = (Frame("main", str(source), 2),)
    for step in range(60):
        trace.label(step=step).alloc(512, "work").free("work")
        trace.alloc(1 << 20, f"m{step}", stack=stack, category=Category.PARAMETER)
    run = load(Recording((trace,), more=(files,)).write(tmp_path / "run.json"))
    growing = [one for one in findings(run) if one.bytes_per_step]
    assert [one.rule for one in growing] == rules
    assert [one.remedies[0].line for one in growing] == [2]
