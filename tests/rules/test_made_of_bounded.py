"""What is made anew of a queue that fills is no leak; what is made of itself beside one is."""

from __future__ import annotations

import collections

import torch

from memprof.rules.finding import Kind
from tests.rules.recorded import findings_of

BATCH, WIDTH, BATCHES = 64, 128, 40
HELD: dict[str, torch.Tensor] = {}


class Contrast:
    def __init__(self):
        self.queue = collections.deque(maxlen=BATCHES)
        self.memory = torch.zeros(0, WIDTH)

    def logits(self, keys):
        return torch.cat([keys @ past.T for past in self.queue] + [keys @ keys.T], dim=-1)

    def longer(self, keys):
        """Reads the queue, and makes an attribute of itself."""
        self.memory = torch.cat((self.memory, keys if len(self.queue) else keys + 1))
        return self.memory


def keeping(method):
    """A job that keeps what a method makes of new keys, and puts these into the queue."""
    contrast = Contrast()

    def step(_number):
        keys = torch.randn(BATCH, WIDTH)
        HELD["made"] = method(contrast, keys)
        contrast.queue.append(keys)

    return step


def with_logits():
    return keeping(Contrast.logits)


def with_memory():
    return keeping(Contrast.longer)


def leaks_of(program, path):
    HELD.clear()
    found = findings_of(program, path, steps=24)
    HELD.clear()
    return [one for one in found if one.kind == Kind.LEAK]


def test_logits_over_a_queue_that_fills_are_no_leak(tmp_path):
    assert leaks_of(with_logits, tmp_path / "run.json") == []


def test_a_tensor_that_is_made_of_itself_is_a_leak_beside_a_queue(tmp_path):
    (found,) = leaks_of(with_memory, tmp_path / "run.json")
    assert found.bytes_per_step == BATCH * WIDTH * 4
    assert found.site.code.startswith("self.memory = torch.cat((self.memory, ")
