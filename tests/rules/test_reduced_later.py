"""reduced-later: results are collected and joined, and then only reduced."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.source_code.entries_read import entry_read
from memprof.source_code.kept_parts import kept_part
from memprof.source_code.program import program_of
from tests.rules.recorded import findings_of, names, record

PASSES, ROWS, CLASSES = 20, 64, 512
PART = ROWS * CLASSES * 4
NOUGHTS = torch.zeros(PASSES * ROWS, dtype=torch.long)


def predict(number):
    return torch.rand(ROWS, CLASSES).softmax(1)


def fires():
    """Thirty passes with dropout are stacked for their mean and variance."""

    @torch.no_grad()
    def step(number):
        samples = torch.stack([predict(i) for i in range(PASSES)])
        mean, variance = samples.mean(0), samples.var(0)
        return mean.max().item(), variance.max().item()

    return step


def looks_alike():
    """The median of all samples needs all of them."""

    @torch.no_grad()
    def step(number):
        samples = torch.stack([predict(i) for i in range(PASSES)])
        return samples.median(0).values.max().item()

    return step


def by_part():
    """The probabilities of an evaluation are joined for the classes that they are largest for."""

    @torch.no_grad()
    def step(number):
        kept, labels = [], torch.randint(CLASSES, (PASSES * ROWS,))
        for i in range(PASSES):
            kept.append(predict(i))
        probabilities = torch.cat(kept)
        hits = (probabilities.argmax(dim=1) == labels).float()
        return hits.mean().item()

    return step


def under_its_own_name():
    """Scores of all against all are joined, and the best few of each row are read."""

    @torch.no_grad()
    def step(number):
        scores = []
        for i in range(PASSES):
            scores.append(predict(i))
        scores = torch.cat(scores)
        best = scores.topk(3, dim=1)
        return best.values.max().item()

    return step


def test_a_list_that_is_joined_under_its_own_name_is_followed_from_there(tmp_path):
    (found, *_) = findings_of(under_its_own_name, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("reduced-later", False)
    assert found.match.reduction.texts == ("scores.topk(3, dim=1)",)
    assert found.remedies[0].fix == "reduce_predictions"


def by_a_few_columns():
    """All classes are collected for the few that are looked at."""
    columns = torch.tensor([3, 5])

    @torch.no_grad()
    def step(number):
        kept = [predict(i) for i in range(PASSES)]
        few = torch.cat(kept).index_select(1, columns)
        return few.mean().item()

    return step


def by_one_of_each_row():
    """Of the probabilities of all tokens those are read that were drawn."""

    @torch.no_grad()
    def step(number):
        kept = [torch.rand(ROWS, CLASSES) for _ in range(PASSES)]
        drawn = torch.randint(CLASSES, (ROWS, PASSES))
        log_probs = torch.stack(kept, dim=1).log_softmax(dim=-1)
        return log_probs.gather(-1, drawn.unsqueeze(-1)).squeeze(-1).sum().item()

    return step


def by_a_loss():
    """Logits and targets are joined for one number."""

    @torch.no_grad()
    def step(number):
        kept = [predict(i) for i in range(PASSES)]
        joined = torch.cat(kept)
        assert joined.shape[0] == PASSES * ROWS
        return F.cross_entropy(joined.log(), torch.zeros(PASSES * ROWS, dtype=torch.long)).item()

    return step


def scores_of(results, targets):
    results = results.view(-1, results.size(-1))
    loss = F.nll_loss(results, targets)
    right = (results.argmax(-1) == targets).float().mean()
    return loss.item(), right.item()


def handed_to_a_function():
    """A function is given what is joined, and reduces it; the targets are joined beside it."""

    @torch.no_grad()
    def step(number):
        kept = [predict(i) for i in range(PASSES)]
        targets = [torch.zeros(ROWS, dtype=torch.long) for _ in range(PASSES)]
        return scores_of(torch.cat(kept), torch.cat(targets))

    return step


def of_clips():
    """Parts are put together anew before they are reduced: the mean goes over several of them."""

    @torch.no_grad()
    def step(number):
        joined = torch.cat([predict(i) for i in range(PASSES)])
        joined = joined.view(ROWS, PASSES, -1)
        return joined.mean(1).argmax(1).sum().item()

    return step


def best_of(results):
    return results.argmax(1).sum().item()


def handed_to_another_object():
    """What its method does no statement tells, and operators do."""
    sink = SimpleNamespace(best_of=lambda results: results.sum().item())

    @torch.no_grad()
    def step(number):
        kept = [predict(i) for i in range(PASSES)]
        return sink.best_of(torch.cat(kept))

    return step


def a_loss_and_the_best():
    """One number of all of them, and the class that each row is largest for."""

    @torch.no_grad()
    def step(number):
        kept = [predict(i) for i in range(PASSES)]
        joined = torch.cat(kept)
        loss = F.cross_entropy(joined, NOUGHTS)
        return loss.item(), joined.argmax(dim=1).float().mean().item()

    return step


def in_two_ways():
    """Both the best class and the whole distribution are read."""

    @torch.no_grad()
    def step(number):
        kept = [predict(i) for i in range(PASSES)]
        joined = torch.cat(kept)
        best = joined.argmax(1)
        return joined[best == 3].tolist()

    return step


def the_last_few():
    """The mean and variance of the last gradients, some steps apart: most are read again."""
    recent = deque(maxlen=PASSES)

    @torch.no_grad()
    def step(number):
        recent.append(predict(number))
        if number < 6:
            recent.extend(predict(i) for i in range(3))
        joined = torch.stack(tuple(recent))
        mean = joined.mean(0)
        return joined.var(0).sum().item() + mean.sum().item()

    return step


def turned(scores, number):
    """By a line for each way, as views of a picture are turned back."""
    if number % 2:
        return scores.flip(1)
    return scores.clone()


def of_several_lines():
    """What the last part was made of is as large as a part, and there as well."""

    @torch.no_grad()
    def step(number):
        kept = []
        for i in range(PASSES):
            scores = predict(i)
            kept.append(turned(scores, i))
        return torch.stack(kept).mean(dim=0).max().item() + scores.max().item()

    return step


def handed_back():
    """Who calls the function may want them all."""

    def all_of_them():
        kept = [predict(i) for i in range(PASSES)]
        joined = torch.cat(kept)
        return joined, joined.argmax(1)

    @torch.no_grad()
    def step(number):
        joined, best = all_of_them()
        return joined.sort(0).values[best].sum().item()

    return step


@pytest.mark.parametrize(
    ("program", "read", "fix"),
    [
        (fires, "`samples.mean(0)` and `samples.var(0)` are", "running_total"),
        (
            a_loss_and_the_best,
            "`F.cross_entropy(joined, NOUGHTS)` and `joined.argmax(dim=1)` are",
            "running_total",
        ),
        (
            handed_to_a_function,
            "`F.nll_loss(results, targets)` and `results.argmax(-1)` are",
            "running_total",
        ),
        (by_part, "`probabilities.argmax(dim=1)` is", "reduce_predictions"),
        (by_a_few_columns, "`torch.cat(kept).index_select(1, columns)` is", "reduce_predictions"),
        (
            by_one_of_each_row,
            "`log_probs.gather(-1, drawn.unsqueeze(-1))` is",
            "reduce_predictions",
        ),
    ],
)
def test_what_is_read_decides_how_to_spare_them(program, read, fix, tmp_path):
    (found,) = (
        one for one in findings_of(program, tmp_path / "run.json") if one.rule == "reduced-later"
    )
    (first,) = found.remedies
    assert (found.minor, first.fix) == (False, fix)
    assert found.title.endswith(f"of which only {read} read")
    assert found.bytes == 2 * PASSES * PART
    assert first.saves_bytes > 0.8 * found.bytes


def test_a_loss_is_added_up(tmp_path):
    found = findings_of(by_a_loss, tmp_path / "run.json")
    of_rule = [one for one in found if one.rule == "reduced-later"]
    fixes = [one.remedies[0].fix for one in of_rule]
    assert fixes == ["running_total"]


class Judge:
    """Keeps what it is shown, and is asked for a figure of merit at the end."""

    def __init__(self, merit):
        self.kept, self.merit = [], merit

    def show(self, results):
        self.kept.append(results)

    def joined(self, join):
        return join(self.kept)

    def verdict(self, join):
        return self.merit(self.joined(join)).sum().item()


def judged(join, merit):
    @torch.no_grad()
    def step(number):
        judge = Judge(merit)
        for i in range(PASSES):
            judge.show(predict(i))
        return judge.verdict(join)

    return step


def judged_by_its_largest():
    return judged(torch.cat, lambda joined: joined.argmax(1) == 7)


def judged_by_thresholds():
    return judged(torch.cat, lambda joined: (joined > 0.5).any(1))


def judged_on_average():
    return judged(torch.stack, lambda joined: joined.var(0))


def judged_by_the_median():
    return judged(torch.stack, lambda joined: joined.median(0).values)


def judged_by_order():
    return judged(torch.cat, lambda joined: joined.sort(1).values)


@pytest.mark.parametrize(
    ("program", "operators", "fix"),
    [
        (handed_to_another_object, "`sum`", "reduce_predictions"),
        (judged_by_its_largest, "`argmax`", "reduce_predictions"),
        (judged_by_thresholds, "`any`", "reduce_predictions"),
        (judged_on_average, "`var`", "running_total"),
    ],
)
def test_where_no_statement_tells_operators_do(program, operators, fix, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "reduced-later")
    assert (
        f"are {PASSES} results and the tensor joined from them, only for {operators}" in one.title
    )
    assert (one.minor, one.remedies[0].fix) == (False, fix)
    assert one.remedies[0].saves_bytes > 0.8 * 2 * PASSES * PART


@pytest.mark.parametrize(
    "program",
    [in_two_ways, handed_back, the_last_few, of_clips, judged_by_the_median, judged_by_order],
)
def test_nothing_is_said_of_what_is_read_otherwise(program, tmp_path):
    assert "reduced-later" not in names(program, tmp_path / "run.json")


VOCABULARY = 2048


def chosen(logits, tokens):
    return torch.gather(logits.log_softmax(-1), 2, tokens.unsqueeze(-1)).squeeze(-1)


class Rollouts:
    """Items that are kept until a policy learns from them."""

    def __init__(self):
        self.items = []

    def add(self, **fields):
        self.items.append(fields)

    def shuffled(self):
        return [self.items[i] for i in torch.randperm(len(self.items))]


def rollout(ahead):
    tokens = torch.randint(VOCABULARY, (4, 16))
    ahead.add(
        tokens=tokens,
        logits=torch.rand(4, 16, VOCABULARY),
        values=torch.rand(4, 16),
    )


def learning_from_the_chosen():
    """A buffer of rollouts has the logits of the whole vocabulary, and those of tokens are read."""
    buffer, weight = Rollouts(), torch.zeros(16, requires_grad=True)

    def step(number):
        rollout(buffer)
        if number % 12 == 11:
            for item in buffer.shuffled():
                tokens = item["tokens"]
                ratio = chosen(item["logits"], tokens) * weight - item["values"]
                ratio.mean().backward()
            buffer.items.clear()

    return step


def of_entries(program, path):
    record(program, path, steps=40)
    return [one for one in findings(load(path)) if one.rule == "reduced-later"]


def test_an_entry_of_which_only_the_chosen_are_read_is_reduced_before_it_is_kept(tmp_path):
    (found,) = of_entries(learning_from_the_chosen, tmp_path / "run.json")
    (remedy,) = found.remedies
    assert remedy.fix == "reduce_predictions"
    assert "are `logits` of items in a list" in found.title
    assert found.site.code == "logits=torch.rand(4, 16, VOCABULARY),"
    assert found.bytes % (4 * 16 * VOCABULARY * 4) == 0
    assert remedy.saves_bytes > found.bytes / 2


def never_emptied():
    """The list is what is wrong."""
    buffer = Rollouts()

    def step(number):
        rollout(buffer)
        item = buffer.items[-1]
        return chosen(item["logits"], item["tokens"]).mean().item()

    return step


def test_of_a_list_that_is_never_emptied_no_entry_is_named(tmp_path):
    assert of_entries(never_emptied, tmp_path / "run.json") == []


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ("item['logits'].argmax(-1)", True),
        ("item['logits'][:, :-1].max(-1).values", True),
        ("item.get('logits').logsumexp(-1)", True),
        ("pick(item['logits'], item['tokens'])", True),
        ("item['logits'].gather(-1, item['tokens'].unsqueeze(-1))", True),
        ("pick(item['logits'][:, 3:], item['tokens'][:, 3:].long())", True),
        # what is picked was not known when the item was kept
        ("pick(item['logits'], policy(item['tokens']))", False),
        ("pick(item['logits'], chosen)", False),
        # all of it is read
        ("item['logits'].softmax(-1)", False),
        ("(item['logits'] - policy(item['tokens'])).sum(-1)", False),
        ("F.kl_div(policy(item['tokens']), item['logits'])", False),
        ("item['logits'].argmax(-1) + item['logits'].softmax(-1)[0]", False),
        ("other(item['logits'])", False),
        ("item['logits'].argmax(-1) + save(**item)", False),
        ("item['logits'].argmax(-1) + collate([item])", False),
        ("[value for value in item.values()] + [item['logits'].argmax(-1)]", False),
    ],
)
def test_only_an_entry_that_its_item_reduces_is_named(read, expected, tmp_path):
    path = tmp_path / "rollouts.py"
    path.write_text(
        "import torch\n"
        "def pick(logits, tokens):\n"
        "    return logits.gather(-1, tokens[..., None])\n"
        "def collect(buffer, model, tokens):\n"
        "    buffer.append({'tokens': tokens, 'logits': model(tokens)})\n"
        "def learn(policy, tokens):\n"
        "    buffer = []\n"
        "    chosen = policy(tokens)\n"
        "    collect(buffer, policy, tokens)\n"
        "    for item in buffer:\n"
        f"        {read}\n"
    )
    program = program_of(str(path))
    assert (entry_read(program.at(5), "logits", [program]) is not None) is expected


class Watched:
    """Keeps whole results until the next log, which reads the last row of each."""

    def __init__(self):
        self.window = []
        self.model = torch.nn.Linear(16, CLASSES)

    def loss(self, x):
        result = SimpleNamespace(scores=self.model(x), loss=None)
        self.window.append(result)
        return result.scores.logsumexp(-1).mean()

    def log(self):
        with torch.no_grad():
            last = torch.stack([one.scores[-1, :] for one in self.window])
        self.window.clear()
        return last.max().item()


class WholeScores(Watched):
    """Reads all that it kept."""

    def __init__(self):
        super().__init__()
        self.results = []

    def loss(self, x):
        result = SimpleNamespace(scores=self.model(x), loss=None)
        self.results.append(result)
        return result.scores.logsumexp(-1).mean()

    def log(self):
        with torch.no_grad():
            highest = torch.stack([one.scores.max(0).values for one in self.results])
        self.results.clear()
        return highest.max().item()


def trained(watched):
    def step(number):
        watched.loss(torch.randn(ROWS, 16)).backward()
        watched.model.zero_grad()
        if number % 4 == 3:
            watched.log()

    return step


def test_results_of_which_a_part_is_read_are_not_kept_whole(tmp_path):
    every = findings_of(lambda: trained(Watched()), tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "reduced-later"]
    (remedy,) = found.remedies
    assert found.title.endswith("in a list, of which only `one.scores[-1, :]` is read")
    assert found.bytes >= 3 * PART
    assert (remedy.fix, remedy.code) == ("reduce_predictions", "self.window.append(result)")
    assert remedy.typed == "self.window.append(result.scores[-1, :].detach().clone())"
    assert "The lines that read it change, too" in remedy.why
    assert remedy.saves_bytes >= 2 * PART


class Trainer(Watched):
    """Stands for the class of transformers, which has a switch for what an evaluation keeps."""


def run_by_a_library():
    name, names = "/x/site-packages/transformers/trainer.py", {}
    code = "def run(step, number):\n    step(number)\n"
    exec(compile(code, name, "exec"), names)
    step = trained(Trainer())
    return lambda number: names["run"](step, number)


def test_what_is_to_be_typed_belongs_where_the_list_is_filled(tmp_path):
    every = findings_of(run_by_a_library, tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "reduced-later"]
    (remedy,) = found.remedies
    assert remedy.typed.startswith("self.window.append(")
    assert remedy.code == "self.window.append(result)"


def test_results_that_are_read_whole_are_kept(tmp_path):
    every = findings_of(lambda: trained(WholeScores()), tmp_path / "run.json")
    assert "reduced-later" not in [one.rule for one in every]


@pytest.mark.parametrize(
    ("log", "text"),
    [
        ("x = [o.logits[:, -1] for o in self.rows]\n        self.rows.clear()", "o.logits[:, -1]"),
        ("if self.rows:\n            x = [o[:, 0] for o in self.rows]\n        self.rows = []",
         "o[:, 0]"),
        ("for o in self.rows:\n            use(o.logits[..., 3])\n        self.rows = []",
         "o.logits[..., 3]"),
        ("x = [o.logits[:, -1] for o in self.rows]", ""),  # never emptied
        ("x = [o[0] for o in self.rows]\n        self.rows.clear()", ""),  # of a tuple, perhaps
        ("x = [o.logits[:, -1] + o.logits.mean() for o in self.rows]\n        self.rows = []", ""),
        ("x = [o.logits[:, at] for o in self.rows]\n        self.rows = []", ""),
        ("x = torch.cat(self.rows)[:, -1]\n        self.rows = []", ""),
        ("x = self.rows[-1]\n        self.rows = []", ""),
        ("self.rows.append(other)\n        self.rows.clear()", ""),
        ("self.rows.clear()", ""),
        ("x = sum(o[:, -1].sum() for o in self.rows)\n        x.backward()\n        self.rows = []", ""),
        ("x = [o[:, 0] for o in self.rows]\n        sum(x).backward()\n        self.rows = []", ""),
    ],
)  # fmt: skip
def test_only_a_part_that_is_written_is_all_that_is_read(log, text, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.rows = []\n"
        "    def loss(self, model, x):\n"
        "        out = model(x)\n"
        "        self.rows.append(out)\n"
        "        return out.loss\n"
        "    def log(self):\n"
        f"        {log}\n"
    )
    program = program_of(str(path))
    part = kept_part(program.at(5), [program])
    assert (part.texts if part is not None else ()) == ((text,) if text else ())


def each_by_itself():
    def step(number):
        results = []
        for at in range(6):
            result = predict(at)
            results.append(result)
        return torch.cat([one.argmax(dim=1) for one in results])

    return step


def each_whole():
    def step(number):
        results = []
        for at in range(6):
            result = predict(at)
            results.append(result)
        return sum(one @ one.t() for one in results).sum().item()

    return step


def test_what_reduces_each_item_of_a_local_list_is_done_before_it_is_kept(tmp_path):
    (found,) = [
        one
        for one in findings_of(each_by_itself, tmp_path / "run.json")
        if one.rule == "reduced-later"
    ]
    assert found.title.endswith("results in a list, of which only `one.argmax(dim=1)` is read")
    (remedy,) = found.remedies
    assert (remedy.fix, remedy.code) == ("reduce_predictions", "results.append(result)")
    assert remedy.typed == "results.append(result.argmax(dim=1))"
    assert "each gives by itself: compute that before it is kept" in remedy.why
    whole = findings_of(each_whole, tmp_path / "other.json")
    assert "reduced-later" not in [one.rule for one in whole]


def each_by_what_comes_later():
    def step(number):
        results = []
        for at in range(6):
            result = predict(at)
            results.append(result)
        chosen = sum(one.sum(0) for one in results).argmax().item()
        return [one.select(1, chosen) for one in results]

    return step


def each_with_a_name_of_an_argument():
    def step(number):
        results = []
        for at in range(6):
            result = predict(at)
            results.append(result)
        return [p.norm(p=1, dim=1) for p in results]

    return step


def test_what_is_known_only_later_reduces_nothing_before(tmp_path):
    found = findings_of(each_by_what_comes_later, tmp_path / "run.json")
    assert "reduced-later" not in [one.rule for one in found]
    (found,) = [
        one
        for one in findings_of(each_with_a_name_of_an_argument, tmp_path / "other.json")
        if one.rule == "reduced-later"
    ]
    assert found.remedies[0].typed == "results.append(result.norm(p=1, dim=1))"


def test_parts_may_be_of_several_lines_beside_what_the_last_was_made_of(tmp_path):
    (found,) = findings_of(of_several_lines, tmp_path / "run.json")
    assert found.bytes == 2 * PASSES * PART
    assert found.title.endswith("of which only `torch.stack(kept).mean(dim=0)` is read")
    assert [one.fix for one in found.remedies] == ["running_total"]
