"""unfused-attention: attention written by hand keeps scores that a fused kernel never makes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of

LENGTH, WIDTH, HEADS = 512, 32, 2


def attend(q, k, v):
    scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH)
    weights = torch.softmax(scores, -1)
    return weights @ v


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x):
        return x + attend(*self.project(x).chunk(3, -1))


def fires():
    model = nn.Sequential(*(Attention() for _ in range(3)))

    def step(number):
        model(torch.randn(HEADS, LENGTH, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


class Router(nn.Module):
    """Probabilities of a table, which are what is wanted: no product follows."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(LENGTH, WIDTH))

    def forward(self, x):
        scores = x @ self.table.T
        return torch.softmax(scores, -1)


def looks_alike():
    model = Router()

    def step(number):
        model(torch.randn(HEADS * LENGTH, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_the_tables_of_all_layers_are_counted_at_the_function_that_makes_them(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")[0]
    table = HEADS * LENGTH * LENGTH * 4
    assert (found.rule, found.minor) == ("unfused-attention", False)
    assert found.match.function == "attend"
    assert found.bytes >= 3 * table  # the probabilities of each layer at the least
    remedy = found.remedies[0]
    assert remedy.typed.startswith("F.scaled_dot_product_attention(")
    assert remedy.saves_bytes >= 3 * table


class Inline(nn.Module):
    """The same in a module's own forward, with a softmax that is a module."""

    def __init__(self):
        super().__init__()
        self.project, self.softmax = nn.Linear(WIDTH, 3 * WIDTH), nn.Softmax(-1)

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        scores = torch.bmm(q, k.mT)
        return x + torch.bmm(self.softmax(scores), v)


def attends_inline():
    model = nn.Sequential(*(Inline() for _ in range(3)))

    def step(number):
        model(torch.randn(HEADS, LENGTH, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_it_may_stand_in_a_modules_forward(tmp_path):
    found = findings_of(attends_inline, tmp_path / "run.json")[0]
    assert (found.rule, found.match.function) == ("unfused-attention", "forward")


def of_signs(q, k, v, heads):
    scores = q @ k.transpose(-2, -1)
    sign = scores.sign()
    weights = torch.softmax(scores.abs(), -1) * sign
    return weights @ v


def of_capped(q, k, v, heads):
    scores = q @ k.transpose(-2, -1)
    scores = 30 * torch.tanh(scores / 30)
    return torch.softmax(scores, -1) @ v


def of_mixed_heads(q, k, v, heads):
    scores = heads((q @ k.transpose(-2, -1))[None])[0]
    return torch.softmax(scores, -1) @ v


def of_exponentials(q, k, v, heads):
    return torch.log1p((q @ k.transpose(-2, -1)).exp()) @ v


def with_a_running_maximum(q, k, v, heads):
    top, total, out = torch.full((HEADS, LENGTH, 1), -100.0), 0.0, 0.0
    for keys, values in zip(k.chunk(2, 1), v.chunk(2, 1), strict=True):
        scores = q @ keys.transpose(-2, -1)
        new = torch.maximum(top, scores.amax(-1, keepdim=True))
        weights = (scores - new).exp()
        total = total * (top - new).exp() + weights.sum(-1, keepdim=True)
        out = out * (top - new).exp() + weights @ values
        top = new
    return out / total


@pytest.mark.parametrize(
    "attention", [of_signs, of_capped, of_mixed_heads, of_exponentials, with_a_running_maximum]
)
def test_scores_that_no_fused_kernel_computes_are_not_to_be_fused(attention, tmp_path):
    def program():
        project, heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Conv2d(HEADS, HEADS, 1)

        def step(number):
            q, k, v = project(torch.randn(HEADS, LENGTH, WIDTH)).chunk(3, -1)
            attention(q, k, v, heads).square().mean().backward()
            project.zero_grad()

        return step

    rules = {one.rule for one in findings_of(program, tmp_path / "run.json")}
    assert "unfused-attention" not in rules


def generates():
    """A loop that computes scores over a vocabulary, and goes on with what a softmax says."""
    first, last = nn.Parameter(torch.randn(WIDTH, WIDTH)), nn.Parameter(torch.randn(WIDTH, 8192))

    def step(number):
        x = torch.randn(64, WIDTH)
        for _ in range(3):
            hidden = x @ first
            scores = hidden @ last
            picked = torch.softmax(scores, -1).argmax(-1)
            x = hidden[picked % 64]
        x.sum().item()

    return step


def classifies():
    """Modules whose products and softmax are called by one function are no attention."""
    body, head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8192)

    def step(number):
        x = torch.randn(2, 64, WIDTH)
        for _ in range(2):
            torch.softmax(head(body(x)), -1).square().mean().backward()
        body.zero_grad()
        head.zero_grad()

    return step


@pytest.mark.parametrize("program", [generates, classifies])
def test_scores_that_are_multiplied_to_nothing_are_what_is_wanted(program, tmp_path):
    rules = {one.rule for one in findings_of(program, tmp_path / "run.json")}
    assert "unfused-attention" not in rules


class Dropped(Inline):
    """The same with dropout of the probabilities, which no kernel of a CPU does in one."""

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        weights = nn.functional.dropout(self.softmax(torch.bmm(q, k.mT)), 0.1, self.training)
        return x + torch.bmm(weights, v)


def drops_out():
    model = nn.Sequential(*(Dropped() for _ in range(3)))

    def step(number):
        model(torch.randn(HEADS, LENGTH, WIDTH)).square().mean().backward()
        model.zero_grad()

    return step


def test_on_a_cpu_no_saving_is_promised_where_dropout_is_on(tmp_path):
    (found,) = [
        one
        for one in findings_of(drops_out, tmp_path / "run.json")
        if one.rule == "unfused-attention"
    ]
    assert found.minor
    assert found.remedies[0].peak_after == -1
    assert "On a card: on a CPU torch makes them all the same" in found.remedies[0].why


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        out, _ = self.attention(x, x, x)
        return x + out


class Pooled(Encoder):
    def forward(self, x):
        return x + self.attention(x, x, x)[0]


class Fused(Encoder):
    def forward(self, x):
        return x + self.attention(x, x, x, need_weights=False)[0]


class Shown(Encoder):
    def forward(self, x):
        out, weights = self.attention(x, x, x)
        return x + out * weights.mean()


def trains(layer):
    def program():
        model = nn.Sequential(*(layer() for _ in range(3)))

        def step(number):
            model(torch.randn(2, LENGTH, WIDTH)).square().mean().backward()
            model.zero_grad()

        return step

    return program


@pytest.mark.parametrize(
    ("layer", "code"),
    [
        (Encoder, "out, _ = self.attention(x, x, x)"),
        (Pooled, "return x + self.attention(x, x, x)[0]"),
    ],
)
def test_weights_that_torch_makes_for_nobody_are_not_to_be_made(layer, code, tmp_path):
    found = findings_of(trains(layer), tmp_path / "run.json", steps=6)[0]
    first = found.remedies[0]
    assert (found.rule, first.fix, first.code) == ("unfused-attention", "fused_attention", code)
    assert "need_weights=False" in first.why
    # the scores and weights of three layers, but for what one layer has in its backward pass
    assert found.bytes >= 3 * 2 * HEADS * LENGTH * LENGTH * 4
    assert not found.minor


@pytest.mark.parametrize("layer", [Fused, Shown])
def test_weights_that_are_read_or_not_made_are_none(layer, tmp_path):
    found = findings_of(trains(layer), tmp_path / "run.json", steps=6)
    assert not [one for one in found if one.rule == "unfused-attention"]


LIBRARY = """
from types import SimpleNamespace

import torch
from torch import nn


def eager_attention_forward(query, key, value):
    weights = torch.matmul(query, key.transpose(1, 2))
    weights = nn.functional.softmax(weights, dim=-1)
    return torch.matmul(weights, value), weights


class Model(nn.Module):
    _supports_sdpa = {fuses}

    def __init__(self, width, attn_implementation="sdpa"):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)

    def forward(self, x):
        values, weights = eager_attention_forward(*self.project(x).chunk(3, -1))
        return SimpleNamespace(hidden=x + values, attentions=weights)
"""
"""The shape of a model of transformers, whose files are known by where they lie."""


def encoding(folder, *, fuses):
    """A program that has such a model make scores, and reads none of them."""
    path = folder / "site-packages/transformers/models/modeling.py"
    path.parent.mkdir(parents=True)
    path.write_text(LIBRARY.format(fuses=fuses))
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)

    def program():
        model = names["Model"](
            WIDTH,
            attn_implementation="eager",
        )

        def step(number):
            model(torch.randn(HEADS, LENGTH, WIDTH)).hidden.square().mean().backward()
            model.zero_grad()

        return step

    return program


def test_a_library_is_told_to_use_a_fused_kernel_where_it_was_told_not_to(tmp_path):
    (found, *_) = findings_of(encoding(tmp_path, fuses=True), tmp_path / "run.json")
    first = found.remedies[0]
    assert "are scores of attention without a fused kernel" in found.title
    assert (found.rule, found.minor) == ("unfused-attention", False)
    assert first.typed == 'from_pretrained(…, attn_implementation="sdpa")'
    assert first.code == 'attn_implementation="eager",'


def test_a_library_that_cannot_is_not(tmp_path):
    found = findings_of(encoding(tmp_path, fuses=False), tmp_path / "run.json")
    assert "unfused-attention" not in [one.rule for one in found]


OF_A_LIBRARY = """
import math
import torch
from torch import nn

class Attend(nn.Module):
    def forward(self, q, k, v):
        scores = torch.einsum("bid,bjd->bij", q, k) / math.sqrt(q.shape[-1])
        weights = nn.functional.softmax(scores, -1)
        return torch.einsum("bij,bjd->bid", weights, v)
"""


def test_a_librarys_attention_is_not_the_programs_to_write_anew(tmp_path):
    path = tmp_path / "site-packages/layers/attend.py"
    path.parent.mkdir(parents=True)
    path.write_text(OF_A_LIBRARY)
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)

    class Layer(Attention):
        def __init__(self):
            super().__init__()
            self.attend = names["Attend"]()

        def forward(self, x):
            return x + self.attend(*self.project(x).chunk(3, -1))

    def program():
        model = nn.Sequential(*(Layer() for _ in range(3)))

        def step(number):
            model(torch.randn(HEADS, LENGTH, WIDTH)).square().mean().backward()
            model.zero_grad()

        return step

    every = findings_of(program, tmp_path / "run.json")
    (found,) = [one for one in every if one.rule == "unfused-attention"]
    assert found.minor


class Mapped(Inline):
    """Probabilities go through a layer that hooks read them at."""

    def __init__(self):
        super().__init__()
        self.map = nn.Identity()

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        return x + torch.bmm(self.map(self.softmax(torch.bmm(q, k.mT))), v)


def reads_maps():
    model, maps = nn.Sequential(*(Mapped() for _ in range(3))), []
    for layer in model:
        layer.map.register_forward_hook(lambda module, given, made: maps.append(made))

    def step(number):
        with torch.no_grad():
            model(torch.randn(HEADS, LENGTH, WIDTH))
        largest = max(one.amax().item() for one in maps)
        maps.clear()
        return largest

    return step


def test_probabilities_that_the_program_keeps_are_what_it_is_for(tmp_path):
    found = findings_of(reads_maps, tmp_path / "run.json")
    assert "unfused-attention" not in [one.rule for one in found]


def scores_words():
    """Likelihoods of words, of which one is then taken: a product follows, of something else."""
    words, hidden = torch.randn(LENGTH, WIDTH), torch.randn(HEADS * LENGTH, WIDTH)
    net = nn.Linear(WIDTH, WIDTH)

    def step(number):
        with torch.no_grad():
            likelihoods = nn.functional.log_softmax(net(hidden) @ words.T, -1)
            return (likelihoods[:, :1].T @ hidden).sum().item()

    return step


def test_likelihoods_are_no_attention(tmp_path):
    found = findings_of(scores_words, tmp_path / "run.json")
    assert "unfused-attention" not in [one.rule for one in found]


PROCESSORS = """
import torch
from torch import nn


class AttnProcessor:
    def __call__(self, attn, x):
        query, key, value = attn.project(x).chunk(3, -1)
        probabilities = attn.get_attention_scores(query, key)
        return torch.bmm(probabilities, value)


class AttnProcessor2_0:
    def __call__(self, attn, x):
        return nn.functional.scaled_dot_product_attention(*attn.project(x).chunk(3, -1))


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.processor = AttnProcessor2_0()

    def set_default_attn_processor(self):
        self.processor = AttnProcessor()

    def get_attention_scores(self, query, key):
        scores = torch.baddbmm(
            torch.empty(len(query), query.shape[1], key.shape[1]),
            query,
            key.transpose(-1, -2),
            beta=0,
        )
        return scores.softmax(dim=-1)

    def forward(self, x):
        return x + self.processor(self, x)
"""
"""The shape of attention of diffusers, whose file is known by where it lies."""


def denoising(folder):
    """A program that gives a model the processor of old."""
    path = folder / "site-packages/diffusers/models/attention_processor.py"
    path.parent.mkdir(parents=True)
    path.write_text(PROCESSORS)
    names = {}
    exec(compile(path.read_text(), str(path), "exec"), names)

    def program(*, is_old=True):
        unet = names["Attention"](WIDTH)
        if is_old:
            unet.set_default_attn_processor()

        def step(number):
            unet(torch.randn(HEADS, LENGTH, WIDTH)).square().mean().backward()
            unet.zero_grad()

        return step

    return program


def test_a_model_that_is_given_the_processor_of_old_is_to_keep_its_own(tmp_path):
    program = denoising(tmp_path)
    (found, *_) = findings_of(program, tmp_path / "run.json")
    first = found.remedies[0]
    assert (found.rule, found.minor, first.fix) == ("unfused-attention", False, "fused_attention")
    assert first.typed == "model.set_attn_processor(AttnProcessor2_0())"
    assert first.code == "unet.set_default_attn_processor()"
    others = findings_of(lambda: program(is_old=False), tmp_path / "other.json")
    assert "unfused-attention" not in [one.rule for one in others]
