"""Long and real-sized runs: ten thousand healthy steps, and a transformer with planted leaks."""

from __future__ import annotations

import collections
import copy
import io
import random

import pytest

import memprof
from memprof.rules.growth_findings import leaks
from memprof.views.examination import examine

torch = pytest.importorskip("torch", reason="these programs are torch's")

pytestmark = pytest.mark.slow


def healthy_training(path, steps, **options):
    """Changing batch and sequence lengths, validation, checkpoints, a replay buffer, histories."""
    torch.manual_seed(0)
    numbers = random.Random(0)
    model = torch.nn.ModuleDict(
        {
            "embed": torch.nn.Embedding(64, 16),
            "rnn": torch.nn.GRU(16, 16),
            "head": torch.nn.Linear(16, 64),
        }
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    recent, history = collections.deque(maxlen=50), []
    best, average = None, None

    def loss_of():
        tokens = torch.randint(64, (numbers.randrange(4, 24), numbers.randrange(1, 9)))
        hidden, _ = model["rnn"](model["embed"](tokens))
        logits = model["head"](hidden)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    with memprof.track(path, sources=["cpu"], **options) as tracker:
        for i in range(steps):
            loss = loss_of()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            recent.append(loss.detach())
            history.append(loss.item())
            if i % 250 == 249:
                with torch.no_grad():
                    outputs = [loss_of() for _ in range(8)]
                history.append(torch.stack(outputs).mean().item())
            if i % 1000 == 999:
                torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()}, io.BytesIO()
                )
                best = copy.deepcopy(model.state_dict())
            if i == 20:
                average = copy.deepcopy(model)
            tracker.step()
    assert best is not None
    assert average is not None
    return memprof.load(path)


def test_ten_thousand_healthy_steps_raise_no_alarm(tmp_path, caplog):
    run = healthy_training(tmp_path / "run.json", 10_000)
    assert int(run.devices[0].steps.last[-1]) == 9999
    assert [f.title for f in leaks(examine(run))] == []
    assert [m for m in caplog.messages if "memory grows by" in m] == []


transformers = pytest.importorskip(
    "transformers", reason="needs transformers: pip install transformers"
)

BATCH, LENGTH, WIDTH, VOCABULARY = 2, 16, 32, 128


def language_model():
    config = transformers.GPT2Config(
        n_layer=2, n_head=2, n_embd=WIDTH, vocab_size=VOCABULARY, n_positions=64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


class Leak:
    """One way of leaking, and the bytes a step that it must be found with."""

    def __init__(self, act, expected, gradients=True):
        self.act, self.expected, self.gradients = act, expected, gradients


def keep_logits(kept, out, model, i):
    kept.append(out.logits.detach())


def keep_losses(kept, out, model, i):
    kept.append(out.loss.detach())


def keep_by_key(kept, out, model, i):
    kept.append({i: torch.zeros(1000)})


def keep_slice(kept, out, model, i):
    kept.append(out.logits.detach().clone()[:, -1])


def keep_weights(kept, out, model, i):
    kept.append(copy.deepcopy(model.lm_head.state_dict()))


def keep_gradients(kept, out, model, i):
    kept.append(model.transformer.wpe.weight.grad.clone())


def keep_masks(kept, out, model, i):
    kept.append(torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril())


def keep_every_fifth(kept, out, model, i):
    if i % 5 == 0:
        kept.append(torch.zeros(5000))


def keep_joined(kept, out, model, i):
    joined = [*kept, out.logits.detach()]
    kept[:] = [torch.cat(joined)]


def keep_in_cycle(kept, out, model, i):
    ring = {"x": torch.zeros(2000)}
    ring["self"] = ring


LOGITS = BATCH * LENGTH * VOCABULARY * 4
PLANTED = {
    "logits": Leak(keep_logits, LOGITS),
    "losses": Leak(keep_losses, 4),
    "dict": Leak(keep_by_key, 4000),
    "slice": Leak(keep_slice, LOGITS),
    "weights": Leak(keep_weights, VOCABULARY * WIDTH * 4),
    "gradients": Leak(keep_gradients, 64 * WIDTH * 4),
    "masks": Leak(keep_masks, LENGTH * LENGTH),
    "every_fifth": Leak(keep_every_fifth, 4000),
    "joined": Leak(keep_joined, LOGITS),
    "cycle": Leak(keep_in_cycle, 8000),
}


def train_transformer(path, leak, steps):
    torch.manual_seed(0)
    model = language_model()
    optimizer = torch.optim.AdamW(model.parameters())
    kept = []
    with memprof.track(path, sources=["cpu"], allowance_s=60) as tracker:
        for i in range(steps):
            tokens = torch.randint(VOCABULARY, (BATCH, LENGTH))
            out = model(input_ids=tokens, labels=tokens)
            optimizer.zero_grad()
            out.loss.backward()
            optimizer.step()
            leak(kept, out, model, i)
            tracker.step()
    return memprof.load(path)


@pytest.mark.parametrize("name", PLANTED)
def test_a_leak_planted_in_a_transformer_is_found_by_step_30(name, tmp_path):
    leak = PLANTED[name]
    found = leaks(examine(train_transformer(tmp_path / "run.json", leak.act, 30)))
    assert found, "nothing was found"
    assert sum(f.bytes_per_step for f in found) == pytest.approx(leak.expected, rel=0.02)


def test_a_transformer_without_a_leak_raises_no_alarm(tmp_path):
    run = train_transformer(tmp_path / "run.json", lambda *args: None, 30)
    assert [f.title for f in leaks(examine(run))] == []
