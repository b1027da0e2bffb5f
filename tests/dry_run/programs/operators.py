"""Operators one by one; prints those that fail, as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

failed: dict[str, str] = {}
DEVICE = "cuda"


def attempt(name: str, run: Callable[[], object]) -> None:
    """Run it, and go backward from what it gives if that is possible."""
    try:
        made = run()
        made = made[0] if isinstance(made, tuple) else made
        if isinstance(made, torch.Tensor) and made.requires_grad:
            made.sum().backward()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is an answer
        failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]


def floats(*shape: int, **options: object) -> torch.Tensor:
    return torch.rand(*shape, device=DEVICE, requires_grad=True, **options)


def plain(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, device=DEVICE)


def images(layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    return torch.rand(4, 8, 16, 16, device=DEVICE).to(memory_format=layout).requires_grad_()


def packed() -> torch.Tensor:
    rows = nn.utils.rnn.pack_padded_sequence(floats(5, 2, 16), [5, 3])
    return nn.GRU(16, 32).cuda()(rows)[0].data


def evaluated() -> torch.Tensor:
    with torch.no_grad():
        return nn.LSTM(16, 32).cuda().eval()(plain(5, 2, 16))[0]


def attention(backend: str) -> torch.Tensor:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(getattr(SDPBackend, backend)):
        q = floats(2, 8, 256, 64, dtype=torch.float16)
        return functional.scaled_dot_product_attention(q, q, q, is_causal=True)


def scaled() -> torch.Tensor:
    a = torch.zeros(32, 32, device=DEVICE).to(torch.float8_e4m3fn)
    one = torch.ones((), device=DEVICE)
    return torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def graphed() -> torch.Tensor:
    x = plain(8, 8)
    x @ x
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x.relu() + 1
    graph.replay()
    return y


def pinned_copy() -> torch.Tensor:
    return torch.ones(100).pin_memory().to(DEVICE, non_blocking=True)


whole = torch.arange(1, 101, device=DEVICE)
special = torch.special
loss = functional.ctc_loss
last = torch.channels_last
attempts: dict[str, Callable[[], object]] = {
    "matmul": lambda: floats(64, 64) @ floats(64, 64),
    "bmm": lambda: torch.bmm(floats(3, 8, 8), floats(3, 8, 8)),
    "linear fp16": lambda: nn.Linear(16, 16).cuda().half()(floats(4, 16, dtype=torch.float16)),
    "layer norm": lambda: nn.LayerNorm(16).cuda()(floats(4, 16)),
    "embedding": lambda: nn.Embedding(100, 16).cuda()(whole[:50]),
    "cross entropy": lambda: functional.cross_entropy(floats(100, 128), whole),
    "dropout": lambda: functional.dropout(floats(4, 16)),
    "sort": lambda: floats(100).sort(),
    "topk": lambda: floats(100, 50).topk(5),
    "unique": whole.unique,
    "nonzero": whole.nonzero,
    "mask": lambda: floats(100)[whole > 3],
    "multinomial": lambda: torch.multinomial(torch.ones(10, device=DEVICE), 3),
    "cumsum": lambda: floats(100).cumsum(0),
    "median": lambda: floats(100, 7).median(0),
    "histc": lambda: torch.histc(plain(100), 10, 0, 1),
    "bincount": lambda: torch.bincount(whole),
    "index_put": lambda: plain(100).index_put((whole - 1,), plain(100), accumulate=True),
    "scatter_add": lambda: plain(100).scatter_add(0, whole - 1, floats(100)),
    "svd": lambda: torch.linalg.svd(floats(8, 8)).S,
    "qr": lambda: torch.linalg.qr(floats(8, 8)),
    "eigh": lambda: torch.linalg.eigh(floats(8, 8)),
    "inv": lambda: torch.linalg.inv_ex(floats(8, 8)),
    "solve": lambda: torch.linalg.solve_ex(floats(8, 8), floats(8, 8)),
    "cholesky": lambda: torch.linalg.cholesky_ex(floats(8, 8)),
    "fft": lambda: torch.fft.rfft(floats(64)).abs(),
    "stft": lambda: torch.stft(
        plain(4096), 256, window=torch.ones(256, device=DEVICE), return_complex=True
    ).abs(),
    "sparse mm": lambda: torch.sparse.mm(torch.eye(8).to_sparse_csr().cuda(), floats(8, 8)),
    "conv1d": lambda: nn.Conv1d(8, 8, 3).cuda()(floats(4, 8, 50)),
    "conv2d": lambda: nn.Conv2d(8, 8, 3).cuda()(images()),
    "conv2d channels_last": lambda: nn.Conv2d(8, 8, 3).cuda().to(memory_format=last)(images(last)),
    "conv2d depthwise": lambda: nn.Conv2d(8, 8, 3, groups=8).cuda()(images()),
    "conv2d grouped": lambda: nn.Conv2d(8, 8, 3, groups=2).cuda()(images()),
    "conv2d dilated": lambda: nn.Conv2d(8, 8, 3, dilation=2).cuda()(images()),
    "conv2d double": lambda: nn.Conv2d(8, 8, 3).cuda().double()(images().double()),
    "conv3d": lambda: nn.Conv3d(4, 4, 3).cuda()(floats(2, 4, 9, 9, 9)),
    "conv_transpose2d": lambda: nn.ConvTranspose2d(8, 8, 2, 2).cuda()(images()),
    "conv and relu": lambda: torch.cudnn_convolution_relu(
        plain(2, 3, 8, 8), plain(4, 3, 3, 3), plain(4), (1, 1), (0, 0), (1, 1), 1
    ),
    "batch norm": lambda: nn.BatchNorm2d(8).cuda()(images()),
    "batch norm channels_last": lambda: nn.BatchNorm2d(8).cuda()(images(last)),
    "batch norm in evaluation": lambda: nn.BatchNorm2d(8).cuda().eval()(images()),
    "group norm": lambda: nn.GroupNorm(4, 8).cuda()(images()),
    "max pool": lambda: functional.max_pool2d(images(), 2),
    "adaptive pool": lambda: functional.adaptive_avg_pool2d(images(), 3),
    "interpolate": lambda: functional.interpolate(images(), scale_factor=2.0, mode="bilinear"),
    "grid_sample": lambda: functional.grid_sample(images(), plain(4, 8, 8, 2), align_corners=False),
    "affine_grid": lambda: functional.affine_grid(
        plain(2, 2, 3), (2, 3, 8, 8), align_corners=False
    ),
    "rnn": lambda: nn.RNN(16, 32, 2, nonlinearity="relu").cuda()(floats(5, 2, 16)),
    "gru": lambda: nn.GRU(16, 32, 2, bidirectional=True).cuda()(floats(5, 2, 16)),
    "lstm": lambda: nn.LSTM(16, 32, 2, batch_first=True).cuda()(floats(5, 2, 16)),
    "lstm with dropout": lambda: nn.LSTM(16, 32, 2, dropout=0.1).cuda()(floats(5, 2, 16)),
    "lstm with projection": lambda: nn.LSTM(16, 32, 2, proj_size=8).cuda()(floats(5, 2, 16)),
    "lstm in evaluation": evaluated,
    "packed sequence": packed,
    "attention, flash": lambda: attention("FLASH_ATTENTION"),
    "attention, efficient": lambda: attention("EFFICIENT_ATTENTION"),
    "attention, math": lambda: attention("MATH"),
    "attention, cuDNN": lambda: attention("CUDNN_ATTENTION"),
    "ctc loss": lambda: loss(
        plain(50, 2, 20).log_softmax(2),
        torch.randint(1, 20, (2, 10)),
        torch.tensor([50, 50], dtype=torch.int32),
        torch.tensor([10, 10], dtype=torch.int32),
    ),
    "fp8 matmul": scaled,
    "bessel": lambda: special.bessel_j0(plain(100)),
    "modified bessel": lambda: special.modified_bessel_k1(plain(100)),
    "airy": lambda: special.airy_ai(plain(100)),
    "chebyshev": lambda: special.chebyshev_polynomial_t(plain(100), plain(100)),
    "zeta": lambda: special.zeta(plain(100), plain(100)),
    "ndtri": lambda: special.ndtri(plain(100)),
    "lcm": lambda: torch.lcm(whole, whole),
    "gcd": lambda: torch.gcd(whole, whole),
    "complex product": lambda: torch.prod(torch.ones(5, dtype=torch.complex64, device=DEVICE)),
    "jiterator": lambda: torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T add(T a, T b) { return a + b; }"
    )(plain(10), plain(10)),
    "CUDA graph": graphed,
    "pinned copy": pinned_copy,
}
for name, run in attempts.items():
    attempt(name, run)
print("operators", json.dumps({"torch": torch.__version__, "ran": len(attempts), "failed": failed}))
