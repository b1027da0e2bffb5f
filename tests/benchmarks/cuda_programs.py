"""Training programs in plain torch that the CUDA benchmark runs; nothing is measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Step = Callable[[], object]


@dataclass(frozen=True)
class Sizes:
    """How large the programs are: as wanted, or so small that a CPU runs them in a moment."""

    device: str
    gpt_layers: int = 12
    gpt_width: int = 768
    gpt_heads: int = 12
    gpt_context: int = 1024
    gpt_words: int = 50304
    resnet_batch: int = 128
    resnet_side: int = 224
    resnet_width: int = 64
    tiny_ops: int = 500
    live_blocks: int = 200_000


WANTED = Sizes("cuda")
DRY = Sizes("cpu", 2, 32, 2, 16, 97, 2, 32, 4, 20, 200)


class Block(nn.Module):
    """A layer of GPT-2, with torch's own attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """GPT-2 small at `WANTED`: 124 million parameters."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.words = nn.Embedding(s.gpt_words, s.gpt_width)
        self.places = nn.Embedding(s.gpt_context, s.gpt_width)
        blocks = [Block(s.gpt_width, s.gpt_heads) for _ in range(s.gpt_layers)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(s.gpt_width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.words(tokens) + self.places(places)))
        return F.linear(x, self.words.weight)


class Bottleneck(nn.Module):
    """A block of ResNet-50."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.conv1 = _convolution(inside, width, 1)
        self.conv2 = _convolution(width, width, 3, stride)
        self.conv3 = _convolution(width, outside, 1)
        changes = stride > 1 or inside != outside
        self.short = _convolution(inside, outside, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(self.conv1(x).relu()).relu()
        return (self.conv3(y) + self.short(x)).relu()


def _convolution(inside: int, outside: int, size: int, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inside, outside, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside))


def _resnet(s: Sizes) -> nn.Module:
    inside = s.resnet_width
    layers: list[nn.Module] = [_convolution(3, inside, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for number, count in enumerate((3, 4, 6, 3)):
        for place in range(count):
            width = s.resnet_width << number
            layers.append(Bottleneck(inside, width, 2 if number and not place else 1))
            inside = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 1000)]
    return nn.Sequential(*layers)


def gpt(s: Sizes) -> Step:
    """A training step of GPT-2 small in bf16, with a batch that fills a third of the card."""
    model = Gpt(s).to(s.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step_of(batch: int) -> Step:
        tokens = torch.randint(s.gpt_words, (batch, s.gpt_context), device=s.device)

        def step() -> None:
            loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    return step_of(_batch_for_a_third(step_of) if s.device == "cuda" else 2)


def _batch_for_a_third(step_of: Callable[[int], Step]) -> int:
    """By the slope between two small batches."""
    peaks = []
    for batch in (2, 2, 4):  # the first makes the optimizer's state and the workspaces
        torch.cuda.reset_peak_memory_stats()
        step_of(batch)()
        peaks.append(torch.cuda.max_memory_allocated())
    slope = max(1, (peaks[2] - peaks[1]) // 2)
    third = torch.cuda.get_device_properties(0).total_memory // 3
    torch.cuda.empty_cache()
    return max(1, (third - peaks[1]) // slope + 2)


def resnet(s: Sizes) -> Step:
    """A training step of ResNet-50 in bf16."""
    model = _resnet(s).to(s.device, torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    shape = (s.resnet_batch, 3, s.resnet_side, s.resnet_side)
    images = torch.randn(shape, device=s.device, dtype=torch.bfloat16)
    classes = torch.randint(1000, (s.resnet_batch,), device=s.device)

    def step() -> None:
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def tiny(s: Sizes) -> Step:
    """Tiny operators, each with a result of its own: all of the time is spent on launching them."""
    x = torch.ones(32, device=s.device)

    def step() -> None:
        y = x
        for _ in range(s.tiny_ops):
            y = y * 1.0001

    return step


def crowded(s: Sizes) -> Step:
    """A few operators beside very many blocks that stay: each look at the device sees them all."""
    kept = [torch.empty(64, device=s.device) for _ in range(s.live_blocks)]

    def step() -> torch.Tensor:
        return kept[0] * 2 + kept[-1]

    return step


def decoding(s: Sizes) -> Step:
    """A token of GPT-2 small in bf16 without gradients: hundreds of modules, and little work."""
    model = Gpt(s).to(s.device, torch.bfloat16).eval()
    tokens = torch.randint(s.gpt_words, (1, 1), device=s.device)

    def step() -> None:
        with torch.no_grad():
            model(tokens)

    return step
