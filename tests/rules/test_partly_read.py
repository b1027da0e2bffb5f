"""partly-read: a large result is computed whole, and one part of it is read."""

from __future__ import annotations

import runpy
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import memprof
from memprof.loading import load
from memprof.rules.ranked_findings import findings
from tests.rules.recorded import findings_of, names, peak_of

ROWS, POSITIONS, WIDTH, WORDS = 2, 64, 32, 4096


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids, labels=None):
        return self.head(self.embedding(ids))


def fires():
    """Text is generated: of the logits of the whole prompt those of its end are sampled from."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        logits = decoder(ids)
        assert logits.shape == (ROWS, POSITIONS, WORDS)
        return logits[:, -1].argmax(dim=-1).tolist()

    return step


def looks_alike():
    """The end is sampled from, and all of it is scored."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        logits = decoder(ids)
        following = logits[:, -1].argmax(dim=-1).tolist()
        return following, logits.logsumexp(dim=-1).mean().item()

    return step


LETTERS = torch.tensor([3, 5, 8])


def scores_of_letters():
    """Probabilities are taken of all positions, and those of a few words are read at the end."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        scores = torch.log_softmax(logits.float(), dim=-1)
        return scores[:, -1, LETTERS].argmax(dim=-1).tolist()

    return step


def scores_of_letters_later():
    """A step ends between the logits and what is computed of them, as one that a call ends does."""
    decoder = Decoder()

    @torch.no_grad()
    def turns():
        while True:
            logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
            yield
            scores = torch.log_softmax(logits.float(), dim=-1)
            scores[:, -1, LETTERS].argmax(dim=-1).tolist()
            del logits, scores

    running = turns()
    return lambda number: next(running)


def scores_over_positions():
    """The same, but each of them depends on all positions."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        scores = torch.log_softmax(logits.float(), dim=1)
        return scores[:, -1, LETTERS].argmax(dim=-1).tolist()

    return step


def last_position():
    """Of one text's logits, which the program takes out of the batch first, the last are read."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS * POSITIONS,)))
        return logits[-1, :].argmax().item()

    return step


def taken_at_once():
    """The call's result has no name but for its part."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))[:, -1, :]
        return logits.argmax(dim=-1).tolist()

    return step


def half_taken_at_once():
    """Every second position is read, which is no single part."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))[:, ::2]
        return logits.argmax(dim=-1).tolist()

    return step


def generate(decoder, tokens):
    """A pass ends its step before its result is bound: the one before goes in the next step."""
    ids = torch.randint(WORDS, (ROWS, POSITIONS))
    for _ in range(tokens):
        logits = decoder(ids)
        ids = logits[:, -1].argmax(dim=-1, keepdim=True)


def test_what_the_next_pass_replaces_is_read_in_part(tmp_path):
    with memprof.track(tmp_path / "run.json", sources=["cpu"], allowance_s=600), torch.no_grad():
        decoder = Decoder().eval()
        for _ in range(4):
            generate(decoder, 4)
    (found,) = [one for one in findings(load(tmp_path / "run.json")) if one.rule == "partly-read"]
    assert found.remedies[0].fix == "narrow_first"
    assert "`logits[:, -1]`" in found.title


def test_the_part_may_be_taken_of_the_call_itself(tmp_path):
    (found, *_) = findings_of(taken_at_once, tmp_path / "run.json")
    assert found.rule == "partly-read"
    assert found.match.part.text == "decoder(…)[:, -1, :]"
    assert found.remedies[0].saves_bytes > 0.9 * found.bytes
    assert "partly-read" not in names(half_taken_at_once, tmp_path / "half.json")


def test_the_part_may_be_written_first(tmp_path):
    (found, *_) = findings_of(last_position, tmp_path / "run.json")
    assert found.rule == "partly-read"
    assert found.match.part.text == "logits[-1, :]"


def one_of_each_row():
    """Rows of several lengths: of each the last position."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        lengths = torch.randint(1, POSITIONS, (ROWS,))
        scores = torch.log_softmax(decoder(ids), dim=-1)
        last = scores[torch.arange(ROWS), lengths - 1]
        return (last[:, 3] - last[:, 5]).tolist()

    return step


def of_each_row_by_names():
    """The rows have a name, and what is taken of each is what softmax weighs."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        lengths = torch.randint(1, POSITIONS, (ROWS,))
        logits = decoder(ids)
        rows = torch.arange(ids.size(0))
        last = logits[rows, lengths - 1]
        return torch.log_softmax(last, dim=-1).argmax(-1).tolist()

    return step


def of_rows_that_are_given():
    """Whether `rows` numbers them is not known: it may be a mask."""
    decoder = Decoder()

    def scored(logits, rows, lengths):
        last = logits[rows, lengths - 1]
        return torch.log_softmax(last, dim=-1).argmax(-1).tolist()

    @torch.no_grad()
    def step(number):
        lengths = torch.randint(1, POSITIONS, (ROWS,))
        return scored(decoder(torch.randint(WORDS, (ROWS, POSITIONS))), torch.arange(ROWS), lengths)

    return step


def of_labels():
    """One class of each row: all that goes into the layer is needed."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        ids, labels = torch.randint(WORDS, (512,)), torch.randint(WORDS, (512,))
        scores = torch.log_softmax(decoder(ids), dim=-1)
        chosen = scores[torch.arange(512), labels]
        return -chosen.mean().item()

    return step


@pytest.mark.parametrize("program", [of_labels, of_rows_that_are_given])
def test_the_class_of_a_row_is_no_position(program, tmp_path):
    assert "partly-read" not in names(program, tmp_path / "run.json")


def test_one_position_of_each_row_is_a_part(tmp_path):
    (found, *_) = findings_of(one_of_each_row, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("partly-read", False)
    assert found.match.part.text == "scores[torch.arange(ROWS), lengths - 1]"
    (found, *_) = findings_of(of_each_row_by_names, tmp_path / "named.json")
    assert (found.rule, found.minor) == ("partly-read", False)
    assert found.match.part.text == "logits[rows, lengths - 1]"


def test_what_is_computed_of_each_position_by_itself_is_followed_to_the_part(tmp_path):
    for program in (scores_of_letters, scores_of_letters_later):
        (found, *_) = findings_of(program, tmp_path / f"{program.__name__}.json")
        assert (found.rule, found.minor) == ("partly-read", False)
        assert found.match.part.text == "scores[:, -1, LETTERS]"
    rules = {one.rule for one in findings_of(scores_over_positions, tmp_path / "other.json")}
    assert "partly-read" not in rules


def two_ends():
    """Two different parts are read."""
    decoder = Decoder()

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        return (logits[:, -1] - logits[:, 0]).sum().item()

    return step


def handed_on():
    """What another function does with it is not known."""
    decoder, sample = Decoder(), [torch.sum]

    @torch.no_grad()
    def step(number):
        logits = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        return sample[0](logits).item() + logits[:, -1].sum().item()

    return step


def by_the_caller():
    """A function of the program hands it on as it is, and the caller reads a part."""
    decoder = Decoder()

    def logits_of(ids):
        return decoder(ids)

    @torch.no_grad()
    def step(number):
        scores = logits_of(torch.randint(WORDS, (ROWS, POSITIONS)))
        return scores[:, -1, :].argmax(dim=-1).tolist()

    return step


@pytest.mark.parametrize("program", [fires, by_the_caller])
def test_the_part_and_the_line_that_computes_it_all_are_named(program, tmp_path):
    (found,) = findings_of(program, tmp_path / "run.json")
    (first,) = found.remedies
    nbytes = ROWS * POSITIONS * WORDS * 4
    assert (found.rule, found.minor, found.bytes) == ("partly-read", False, nbytes)
    assert first.fix == "narrow_first"
    assert first.code == "return self.head(self.embedding(ids))"
    read = "logits[:, -1]" if program is fires else "scores[:, -1, :]"
    assert first.why.startswith(f"Only `{read}` of the 2 MiB is read (test_partly_read.py:")
    assert first.saves_bytes == nbytes


class Scorer(Decoder):
    """Returns its logits with a loss, which there is only where targets are given."""

    def forward(self, ids, targets=None):
        logits = self.head(self.embedding(ids))
        if targets is None:
            return logits, None
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def first_of_two():
    scorer = Scorer()

    @torch.no_grad()
    def step(number):
        logits, _ = scorer(torch.randint(WORDS, (ROWS, POSITIONS)))
        return logits[:, -1].argmax(dim=-1).tolist()

    return step


def item_of_two():
    scorer = Scorer()

    @torch.no_grad()
    def step(number):
        answer = scorer(torch.randint(WORDS, (ROWS, POSITIONS)))
        return answer[0][:, -1].argmax(dim=-1).tolist()

    return step


def scored_as_well():
    """Targets are given, so the loss reads all of the logits."""
    scorer = Scorer()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        logits, loss = scorer(ids, targets=ids)
        return logits[:, -1].argmax(dim=-1).tolist(), loss.item()

    return step


def bound_anew():
    """The part has the name of the whole from then on: as most programs that sample write it."""
    scorer = Scorer()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        for _ in range(2):
            logits, _ = scorer(ids)
            logits = logits[:, -1, :] / 0.8
            least = logits.topk(4, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
            ids = torch.cat([ids[:, 1:], logits.softmax(-1).multinomial(1)], dim=1)
        return ids.tolist()

    return step


def test_what_reads_the_name_of_a_part_reads_the_part(tmp_path):
    (found, *_) = findings_of(bound_anew, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("partly-read", False)
    assert found.match.part.text == "logits[:, -1, :]"


@pytest.mark.parametrize("program", [first_of_two, item_of_two])
def test_what_is_returned_with_a_loss_that_nobody_asked_for_is_followed(program, tmp_path):
    (found, *_) = findings_of(program, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("partly-read", False)
    read = "logits[:, -1]" if program is first_of_two else "answer[0][:, -1]"
    assert found.match.part.text == read
    assert found.remedies[0].code == "logits = self.head(self.embedding(ids))"


@pytest.mark.parametrize("program", [two_ends, handed_on, scored_as_well])
def test_nothing_is_said_of_what_may_be_read(program, tmp_path):
    assert "partly-read" not in names(program, tmp_path / "run.json")


@pytest.mark.parametrize(
    ("part", "kept"), [("-1", "1"), ("-(count + 1):-1", "count + 1"), ("-count - 1:", "count + 1")]
)
def test_a_switch_of_the_model_is_named(part, kept, tmp_path):
    """A model of a library that returns its logits in a field, and can be told how many."""
    folder = tmp_path / "site-packages" / "speech"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(
        "from types import SimpleNamespace\n"
        "def answer(decoder, ids, logits_to_keep=0):\n"
        "    logits = decoder(ids[:, -logits_to_keep:])\n"
        "    loss = logits.sum() if ids is None else None\n"
        "    return SimpleNamespace(loss=loss, logits=logits)\n"
    )
    sys.path.insert(0, str(folder.parent))
    try:
        import speech
    finally:
        sys.path.remove(str(folder.parent))

    def program():
        decoder = Decoder()

        @torch.no_grad()
        def step(number):
            return read(speech.answer, decoder, torch.randint(WORDS, (ROWS, POSITIONS)))

        return step

    (tmp_path / "reads.py").write_text(
        "def read(answer, decoder, ids, count=3):\n"
        "    out = answer(decoder, ids)\n"
        f"    return out.logits[:, {part}].argmax(dim=-1).tolist()\n"
    )
    read = runpy.run_path(str(tmp_path / "reads.py"))["read"]
    (found,) = findings_of(program, tmp_path / "run.json")
    typed = f"model(…, logits_to_keep={kept})"
    assert (found.rule, found.remedies[0].typed) == ("partly-read", typed)
    assert f"Only `out.logits[:, {part}]` of the" in found.remedies[0].why


def kernel(a, b):
    near = torch.cdist(a, b)
    return (1 + near) * torch.exp(-near)


def a_diagonal_of_a_difference():
    """What a function computes is larger for a moment, and no more of it is read."""

    def step(number):
        points, known = torch.randn(512, 4), torch.randn(64, 4)
        weights = kernel(known, points)
        covariance = kernel(points, points) - weights.T @ weights
        return covariance.diagonal().clamp(min=0).sqrt().sum().item()

    return step


def test_of_a_difference_the_diagonal_is_enough(tmp_path):
    found = findings_of(a_diagonal_of_a_difference, tmp_path / "run.json")
    (one,) = [one for one in found if one.rule == "partly-read"]
    assert one.title.endswith("and only `covariance.diagonal()` is read")
    assert one.site.code == "covariance = kernel(points, points) - weights.T @ weights"
    assert one.remedies[0].fix == "narrow_first"


def a_diagonal():
    """Each query is scored with its own item, by way of all items."""

    def step(number):
        queries, items = torch.rand(512, 16), torch.rand(512, 16)
        scores = queries @ items.T
        return scores.diagonal().sum().item()

    return step


def a_diagonal_by_einsum():
    """The same, where the last thing that is done is a mean."""

    def step(number):
        queries, items = torch.rand(512, 16), torch.rand(512, 16)
        scores = torch.einsum("id,jd->ij", queries, items)
        return scores.diag().mean().item()

    return step


def a_variance():
    """A distribution of many points is asked for their covariances."""

    factor = torch.eye(512)

    def step(number):
        points = torch.distributions.MultivariateNormal(
            torch.zeros(512), scale_tril=factor, validate_args=False
        )
        variance = points.covariance_matrix.diagonal()
        return variance.sum().item()

    return step


def a_variance_of_something_as_large():
    """What the distribution is made of has the size of the covariances."""

    factor = torch.eye(512)

    def step(number):
        scaled = factor * 2.0
        points = torch.distributions.MultivariateNormal(
            torch.zeros(512), scale_tril=scaled, validate_args=False
        )
        variance = points.covariance_matrix.diagonal()
        return variance.sum().item()

    return step


def the_best():
    """All scores are sorted for the first few."""

    def step(number):
        scores = torch.rand(64, 4096)
        order = scores.argsort(dim=1, descending=True)
        return order[:, :8].sum().item()

    return step


def some_frames():
    """Clips are converted whole, and every eighth frame is read."""

    def step(number):
        clip = torch.zeros(64, 3, 32, 32, dtype=torch.uint8).float() / 255
        frames = clip[::8]
        return frames.mean().item()

    return step


def frame_by_frame():
    """Each pass of a loop reads another part."""

    def step(number):
        clip = torch.zeros(64, 3, 32, 32, dtype=torch.uint8).float() / 255
        return sum(clip[first : first + 8].mean().item() for first in range(0, 64, 8))

    return step


def by_a_mask():
    """Which part is read depends on the values."""

    def step(number):
        clip = torch.rand(64, 3, 32, 32) / 255
        chosen = torch.arange(64) % 2 == 0
        return clip[chosen].mean().item()

    return step


def the_best_and_their_places():
    def step(number):
        scores = torch.rand(64, 4096)
        values, order = scores.sort(dim=1, descending=True)
        return values[:, :8].sum().item() + order[:, :8].sum().item()

    return step


def of_values_fewer_than_of_places():
    def step(number):
        scores = torch.rand(64, 4096)
        values, order = scores.sort(dim=1, descending=True)
        return values[:, :4].sum().item() + order[:, :8].sum().item()

    return step


def the_chosen_words():
    """A reward model's scores of one word each, out of the whole vocabulary."""

    def step(number):
        logits, words = torch.rand(64, 4096), torch.randint(4096, (64, 1))
        logprobs = logits.log_softmax(dim=-1)
        return logprobs.gather(-1, words).sum().item()

    return step


def chosen_at_once():
    """The same in one statement."""

    def step(number):
        logits, words = torch.rand(64, 4096), torch.randint(4096, (64, 1))
        return torch.gather(F.log_softmax(logits, dim=-1), -1, words).sum().item()

    return step


def the_most_probable():
    """A softmax changes no order."""

    def step(number):
        logits = torch.rand(64, 4096)
        probabilities = logits.softmax(dim=1)
        return probabilities.argmax(dim=1).sum().item()

    return step


def the_most_probable_row():
    """Of each column: the sums of the rows matter."""

    def step(number):
        logits = torch.rand(64, 4096)
        probabilities = logits.softmax(dim=1)
        return probabilities.argmax(dim=0).sum().item()

    return step


def with_its_probability():
    def step(number):
        logits = torch.rand(64, 4096)
        probabilities = logits.softmax(dim=1)
        best = probabilities.argmax(dim=1)
        return probabilities.amax(dim=1).sum().item() + best.sum().item()

    return step


def with_their_entropy():
    """All words are read for the entropy."""

    def step(number):
        logits, words = torch.rand(64, 4096), torch.randint(4096, (64, 1))
        logprobs = logits.log_softmax(dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum().item()
        return logprobs.gather(-1, words).sum().item() + entropy

    return step


def all_pairs():
    """The others are negatives."""

    def step(number):
        scores = torch.rand(512, 16) @ torch.rand(512, 16).T
        return (scores.diagonal() - scores.logsumexp(1)).sum().item()

    return step


def all_ranks():
    """The order is read whole."""

    def step(number):
        order = torch.rand(64, 4096).argsort(dim=1)
        return order[:, :8].sum().item() + order.float().mean().item()

    return step


@pytest.mark.parametrize(
    ("program", "read", "nbytes", "fix"),
    [
        (a_diagonal, "scores.diagonal()", 512 * 512 * 4, "narrow_first"),
        (a_diagonal_by_einsum, "scores.diag()", 512 * 512 * 4, "narrow_first"),
        (the_best, "order[:, :8]", 64 * 4096 * 8, "topk"),
        (the_best_and_their_places, "order[:, :8]", 64 * 4096 * 8, "topk"),
        (some_frames, "clip[::8]", 2 * 64 * 3 * 32 * 32 * 4, "narrow_first"),
        (the_chosen_words, "logprobs.gather(-1, words)", 64 * 4096 * 4, "narrow_first"),
        (the_most_probable, "probabilities.argmax(dim=1)", 64 * 4096 * 4, "narrow_first"),
        (
            chosen_at_once,
            "torch.gather(F.log_softmax(logits, dim=-1), -1, words)",
            64 * 4096 * 4,
            "narrow_first",
        ),
    ],
)
def test_what_a_line_computes_itself_is_told_with_its_part(program, read, nbytes, fix, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "partly-read")
    assert (one.minor, one.bytes, one.remedies[0].fix) == (False, nbytes, fix)
    assert one.title.endswith(f"are computed whole, and only `{read}` is read")


@pytest.mark.parametrize("program", [a_variance, a_variance_of_something_as_large])
def test_of_a_covariance_matrix_the_variance_is_enough(program, tmp_path):
    found = findings_of(program, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "partly-read")
    assert one.title.endswith("and only `points.covariance_matrix.diagonal()` is read")
    assert (one.remedies[0].fix, one.remedies[0].typed) == ("narrow_first", "points.variance")


@pytest.mark.parametrize(
    "program",
    [
        *(all_pairs, all_ranks, frame_by_frame, by_a_mask, with_their_entropy),
        *(the_most_probable_row, with_its_probability, of_values_fewer_than_of_places),
    ],
)
def test_nothing_is_said_of_products_and_orders_that_are_read_whole(program, tmp_path):
    assert "partly-read" not in names(program, tmp_path / "run.json")


class InDictionary(Decoder):
    """Returns its logits under a name."""

    def forward(self, ids):
        return {"logits": self.head(self.embedding(ids))}


def selected_of_a_dictionary():
    decoder = InDictionary()

    @torch.no_grad()
    def step(number):
        out = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        return torch.softmax(out["logits"].select(1, -1) / 0.8, dim=-1).argmax(dim=-1).tolist()

    return step


def selected_by_a_variable():
    """Another position of each round is read, and in the end all of them are."""
    decoder = InDictionary()

    @torch.no_grad()
    def step(number):
        out = decoder(torch.randint(WORDS, (ROWS, POSITIONS)))
        return [out["logits"].select(1, at).argmax(dim=-1).tolist() for at in range(POSITIONS)]

    return step


def taken_of_an_entry_at_once():
    """Neither the result nor its entry has a name."""
    decoder = InDictionary()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        return torch.softmax(decoder(ids)["logits"][:, -1], dim=-1).argmax(dim=-1).tolist()

    return step


def two_taken_at_once():
    """Of two passes a part each: which of them has the large result is not known."""
    decoder = InDictionary()

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        return (decoder(ids)["logits"][:, -1] - decoder(ids)["logits"][:, 0]).sum().item()

    return step


def test_the_part_may_be_taken_of_an_entry_of_the_call_itself(tmp_path):
    (found, *_) = findings_of(taken_of_an_entry_at_once, tmp_path / "run.json")
    assert (found.rule, found.bytes) == ("partly-read", ROWS * POSITIONS * WORDS * 4)
    assert found.match.part.text == "decoder(…)['logits'][:, -1]"
    assert found.remedies[0].code == 'return {"logits": self.head(self.embedding(ids))}'
    assert "partly-read" not in names(two_taken_at_once, tmp_path / "two.json")


def test_a_position_that_is_selected_of_an_entry_is_a_part(tmp_path):
    found = findings_of(selected_of_a_dictionary, tmp_path / "run.json")
    (one,) = (one for one in found if one.rule == "partly-read")
    assert one.title.endswith("and only `out['logits'].select(1, -1)` is read")
    assert one.bytes == ROWS * POSITIONS * WORDS * 4
    assert one.remedies[0].fix == "narrow_first"
    assert "partly-read" not in names(selected_by_a_variable, tmp_path / "whole.json")


class Cached(Decoder):
    """Returns its logits with what the next pass goes on from, in one statement."""

    def forward(self, ids, past=None):
        hidden = self.embedding(ids)
        return self.head(hidden), hidden if past is None else past


def made_as_it_is_returned():
    cached = Cached()

    @torch.no_grad()
    def step(number):
        logits, _ = cached(torch.randint(WORDS, (ROWS, POSITIONS)))
        return logits[:, -1].argmax(dim=-1).tolist()

    return step


def test_what_a_call_makes_as_it_is_returned_beside_another_value_is_followed(tmp_path):
    (found, *_) = findings_of(made_as_it_is_returned, tmp_path / "run.json")
    assert (found.rule, found.minor) == ("partly-read", False)
    assert found.match.part.text == "logits[:, -1]"


def a_draft_and_its_target():
    """Both go through a prompt, one after the other, and one function reads the end of either."""
    target, draft = Decoder(), Decoder()

    def prefill(model, ids):
        logits = model(ids)
        return logits[:, -1].argmax(dim=-1)

    @torch.no_grad()
    def step(number):
        ids = torch.randint(WORDS, (ROWS, POSITIONS))
        first = prefill(target, ids)
        return (first == prefill(draft, ids)).tolist()

    return step


def test_of_two_models_that_one_function_calls_neither_computes_the_rest(tmp_path):
    (found, *_) = findings_of(a_draft_and_its_target, tmp_path / "run.json")
    whole = ROWS * POSITIONS * WORDS * 4
    assert (found.rule, found.bytes) == ("partly-read", whole)
    assert found.remedies[0].saves_bytes >= whole - 64 * ROWS * POSITIONS * WIDTH


def searched(best):
    """The table that is searched is as large as the places of a batch's ranking, to the byte."""
    batch, words, width = 64, 4096, 128
    table = torch.randn(words, width)

    def step(number):
        return best(torch.randn(batch, width) @ table.t())

    return step


def by_ranking(scores):
    ranking = torch.argsort(scores, dim=1, descending=True)
    return ranking[:, :10].float().mean()


def test_what_is_searched_is_not_saved_for_having_the_same_size(tmp_path):
    found = findings_of(lambda: searched(by_ranking), tmp_path / "run.json")
    (ranked,) = [one for one in found if one.rule == "partly-read"]
    findings_of(lambda: searched(lambda s: s.topk(10).indices.float().mean()), tmp_path / "k.json")
    saved = peak_of(tmp_path / "run.json") - peak_of(tmp_path / "k.json")
    assert ranked.remedies[0].saves_bytes == pytest.approx(saved, rel=0.05)


SIDE, STATES = 256, 12


def solved(speed, state, count):
    """The state after each of ``count`` moments."""
    states = [state]
    for _ in range(count):
        states.append(states[-1] + speed(states[-1]) / count)
    return torch.stack(states)


def walked(speed, state, count):
    path = [state]
    for _ in range(count):
        path.append(path[-1] + speed(path[-1]) / count)
    return torch.stack(path)


def last_state():
    return lambda _: solved(torch.neg, torch.randn(SIDE, SIDE), STATES)[-1].mean().item()


def last_of_stacked():
    def step(_):
        states = [torch.randn(SIDE, SIDE)]
        for _ in range(STATES):
            states.append(states[-1] * 0.9)
        return torch.stack(states)[-1].mean().item()

    return step


def reached(speed, state, count):
    moments = [state]
    for _ in range(count):
        moments.append(moments[-1] + speed(moments[-1]) / count)
    return torch.stack(moments)


def bound_first():
    def step(_):
        trajectory = reached(torch.neg, torch.randn(SIDE, SIDE), STATES)
        end = trajectory[-1]
        return len(trajectory.shape), end.mean().item()

    return step


def end_and_way():
    """One caller reads the last state, and the other all of them."""

    def step(_):
        end = walked(torch.neg, torch.randn(SIDE, SIDE), STATES)[-1]
        return end.mean().item(), walked(torch.neg, end, STATES).std(0).mean().item()

    return step


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (last_state, "solved(…)[-1]"),
        (bound_first, "reached(…)[-1]"),
        (last_of_stacked, "torch.stack(states)[-1]"),
    ],
)
def test_one_of_many_that_are_stacked_is_to_be_kept_alone(program, text, tmp_path):
    path = tmp_path / "run.json"
    (found,) = [one for one in findings_of(program, path) if one.rule == "partly-read"]
    remedy = found.remedies[0]
    state = SIDE * SIDE * 4
    assert remedy.fix == "narrow_first"
    assert f"Only `{text}` of the 6.50 MiB is read, one of many" in remedy.why
    assert found.bytes == 2 * (STATES + 1) * state
    assert peak_of(path) // state == 2 * (STATES + 1)
    assert remedy.peak_after // state <= 4


def test_where_another_caller_reads_all_of_them_nothing_is_said(tmp_path):
    assert "partly-read" not in names(end_and_way, tmp_path / "run.json")
