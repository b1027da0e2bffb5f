"""Programs and tables of operations whose memory a card and a dry run are compared by."""
# ruff: noqa: B023 - an operation of a table is called before the next one is made

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["EVENTS", "TABLES"]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "dry_run" / "programs"
GPT_MEDIUM = ROOT / "shared" / "programs" / "gpt-medium"


# -- programs: what they take is compared event by event ------------------------------------------


def script(name: str) -> Callable[[], object]:
    def run() -> None:
        sys.path.insert(0, str(PROGRAMS))
        sys.argv = [f"{name}.py"]
        runpy.run_path(str(PROGRAMS / f"{name}.py"), run_name="__main__")

    return run


def gpt_medium(context: int, autocast: bool) -> Callable[[], object]:
    """The public program of `../shared/programs`; its own recording would end ours, so it has none."""

    def run() -> None:
        sys.path.insert(0, str(GPT_MEDIUM))
        sizes = "--d_model 1024 --d_ff 4096 --num_layers 24 --num_heads 16 --model_name medium"
        words = f"{sizes} --context_length {context} --pattern full-training-step --warmup-steps 2"
        sys.argv = ["nsys_profile.py", *words.split(), "--autocast", str(autocast).lower()]
        text = (GPT_MEDIUM / "nsys_profile.py").read_text()
        text = text.replace('["context_length"]', "['context_length']")
        exec(compile(text, "nsys_profile.py", "exec"), {"__name__": "__main__"})

    return run


def gpt2() -> None:
    """GPT-2 small of transformers, bf16 autocast, clipping, fused AdamW."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        text = torch.randint(50257, (4, 512)).cuda()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(input_ids=text, labels=text).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def checkpointed_llama() -> None:
    """A Llama with gradient checkpointing, in bf16, with Adafactor."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=8,
        num_attention_heads=16,
        num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).to(device="cuda", dtype=torch.bfloat16)
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.Adafactor(model.parameters())
    for _ in range(3):
        text = torch.randint(32000, (4, 1024)).cuda()
        model(input_ids=text, labels=text, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def bert() -> None:
    """A BERT that classifies padded batches of several lengths, fp32, AdamW and gradient scaling."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_labels=4)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (64, 200, 128, 333):
        text = torch.randint(30000, (8, length))
        mask = (torch.arange(length) < torch.randint(length // 2, length, (8, 1))).long()
        labels = torch.randint(4, (8,))
        model(text.cuda(), attention_mask=mask.cuda(), labels=labels.cuda()).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        model(text.cuda(), attention_mask=mask.cuda())


def whisper() -> None:
    """Whisper tiny: convolutions over time, an encoder and a decoder."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration(WhisperConfig()).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        sound, text = torch.rand(2, 80, 3000).cuda(), torch.randint(50000, (2, 64)).cuda()
        model(input_features=sound, labels=text).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def vision(name: str, *, half: bool = False, last: bool = False) -> Callable[[], object]:
    """A network of torchvision, three steps with SGD, and one evaluation."""

    def run() -> None:
        import torch
        import torchvision

        layout = torch.channels_last if last else torch.contiguous_format
        model = getattr(torchvision.models, name)(weights=None).cuda().to(memory_format=layout)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        for _ in range(3):
            images = torch.rand(16, 3, 224, 224).cuda().to(memory_format=layout)
            labels = torch.randint(1000, (16,)).cuda()
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=half):
                made = model(images)
                loss = torch.nn.functional.cross_entropy(made, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(images)

    return run


def segmentation() -> None:
    """DeepLab: dilated convolutions and interpolation."""
    import torch
    import torchvision

    model = torchvision.models.segmentation.deeplabv3_resnet50(
        weights=None, weights_backbone=None, num_classes=21
    ).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        images = torch.rand(4, 3, 256, 256).cuda()
        labels = torch.randint(21, (4, 256, 256)).cuda()
        torch.nn.functional.cross_entropy(model(images)["out"], labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def volumes() -> None:
    """Convolutions in three dimensions, transposed ones and group norm."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv3d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.SiLU(),
        nn.Conv3d(16, 32, 3, stride=2, padding=1),
        nn.BatchNorm3d(32),
        nn.ReLU(),
        nn.ConvTranspose3d(32, 16, 2, stride=2),
        nn.Conv3d(16, 1, 1),
    ).cuda()
    optimizer = torch.optim.RMSprop(model.parameters())
    for _ in range(3):
        x = torch.rand(2, 1, 48, 48, 48).cuda()
        nn.functional.l1_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()


def graph_network() -> None:
    """Two layers of GCN and of attention over a graph that was copied in."""
    import torch
    from torch_geometric.nn import GATConv, GCNConv

    torch.manual_seed(0)
    first, second = GCNConv(64, 128).cuda(), GATConv(128, 32, heads=4).cuda()
    parameters = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.Adam(parameters)
    nodes, edges = torch.rand(5000, 64).cuda(), torch.randint(5000, (2, 40_000)).cuda()
    for _ in range(3):
        second(first(nodes, edges).relu(), edges).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def actor_critic() -> None:
    """Rollouts without gradients, a buffer on the card, and epochs over parts of it."""
    import torch
    from torch import nn

    body = nn.Sequential(nn.Linear(24, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh()).cuda()
    actor, critic = nn.Linear(256, 6).cuda(), nn.Linear(256, 1).cuda()
    parameters = [p for m in (body, actor, critic) for p in m.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-4, foreach=False)
    for _ in range(2):
        states = torch.zeros(128, 64, 24, device="cuda")
        values = torch.zeros(128, 64, device="cuda")
        with torch.no_grad():
            for step in range(128):
                states[step] = torch.rand(64, 24).cuda()
                values[step] = critic(body(states[step])).squeeze(-1)
        for part in torch.randperm(128 * 64).cuda().split(1024):
            hidden = body(states.flatten(0, 1)[part])
            chances = torch.distributions.Categorical(
                logits=actor(hidden),
                validate_args=False,
            )
            loss = -chances.entropy().mean() + (critic(hidden).squeeze(-1) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


EVENTS: dict[str, tuple[Callable[[], object], str]] = {
    **{
        name: (script(name), "")
        for name in (
            *("mnist", "resnet", "unet", "gan", "vit", "lstm"),
            *("graphs", "compiled"),
        )
    },
    "gpt2": (gpt2, ""),
    "gpt2-expandable": (gpt2, "expandable_segments:True"),
    "checkpointed-llama": (checkpointed_llama, ""),
    "bert": (bert, ""),
    "whisper": (whisper, ""),
    "resnet18": (vision("resnet18"), ""),
    "resnet50-bf16-last": (vision("resnet50", half=True, last=True), ""),
    "efficientnet": (vision("efficientnet_b0"), ""),
    "convnext-bf16": (vision("convnext_tiny", half=True), ""),
    "swin": (vision("swin_t"), ""),
    "vgg16-bf16": (vision("vgg16", half=True), ""),
    "segmentation": (segmentation, ""),
    "volumes": (volumes, ""),
    "graph-network": (graph_network, ""),
    "actor-critic": (actor_critic, ""),
    "gpt-medium-512": (gpt_medium(512, autocast=True), ""),
    "gpt-medium-128": (gpt_medium(128, autocast=False), ""),
}


# -- tables: the bytes that single operations take ------------------------------------------------


def operators() -> Iterator[tuple[str, Callable[[], object]]]:
    """torch's own list of operators, with the first two inputs of each, forward and backward."""
    sys.path.insert(0, str(PROGRAMS))
    import torch
    from operator_samples import dtype_of, on_card, op_db, outcome, samples_of

    for operator in op_db:
        name = ".".join(filter(None, (operator.name, operator.variant_test_name)))
        torch.manual_seed(0)
        try:
            samples = list(samples_of(operator, dtype_of(operator, None), 2))
        except Exception:  # noqa: BLE001 - the inputs could not be made on the CPU
            continue
        for number, sample in enumerate(samples):
            yield f"{name} {number}", lambda: outcome(operator, sample, on_card)[1]


def convolutions() -> Iterator[tuple[str, Callable[[], object]]]:
    """Convolutions of usual nets, forward and backward."""
    import torch
    from torch import nn

    kinds = {
        "stem": (nn.Conv2d(3, 64, 7, 2, 3), (16, 3, 224, 224)),
        "3x3 64": (nn.Conv2d(64, 64, 3, 1, 1), (16, 64, 56, 56)),
        "3x3 256": (nn.Conv2d(256, 256, 3, 1, 1), (16, 256, 14, 14)),
        "3x3 512 stride": (nn.Conv2d(512, 512, 3, 2, 1), (16, 512, 14, 14)),
        "1x1": (nn.Conv2d(256, 1024, 1), (16, 256, 14, 14)),
        "depthwise": (nn.Conv2d(96, 96, 7, 1, 3, groups=96), (16, 96, 56, 56)),
        "groups": (nn.Conv2d(128, 128, 3, 1, 1, groups=32), (16, 128, 28, 28)),
        "patches": (nn.Conv2d(3, 768, 16, 16), (16, 3, 224, 224)),
        "dilated": (nn.Conv2d(512, 256, 3, 1, 12, dilation=12), (4, 512, 32, 32)),
        "transposed": (nn.ConvTranspose2d(128, 64, 4, 2, 1), (16, 128, 32, 32)),
        "1d": (nn.Conv1d(80, 384, 3, 1, 1), (4, 80, 3000)),
        "3d": (nn.Conv3d(16, 32, 3, 2, 1), (2, 16, 48, 48, 48)),
        "one image": (nn.Conv2d(64, 128, 3, 1, 1), (1, 64, 112, 112)),
    }
    for name, (layer, shape) in kinds.items():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for last in (False, True) if len(shape) == 4 else (False,):
                layout = torch.channels_last if last else torch.contiguous_format

                def run() -> None:
                    made = layer.to(device="cuda", dtype=dtype).to(memory_format=layout)
                    x = torch.ones(shape, device="cuda", dtype=dtype)
                    x = x.to(memory_format=layout).requires_grad_()
                    made(x).sum().backward()
                    made.zero_grad()

                yield f"{name} {str(dtype)[6:]}{' channels_last' if last else ''}", run


def libraries() -> Iterator[tuple[str, Callable[[], object]]]:
    """What cuSOLVER, cuFFT, cuSPARSE and cuDNN's recurrent nets take, by size."""
    import torch
    from torch import fft, linalg, nn

    def spd(*shape: int) -> torch.Tensor:
        return torch.eye(shape[-1], device="cuda").expand(*shape[:-1], -1, -1).contiguous() * 2

    def square(n: int, *batch: int) -> torch.Tensor:
        torch.manual_seed(0)
        return torch.rand(*batch, n, n).cuda() + n * torch.eye(n, device="cuda")

    for n in (32, 100, 512, 2048):
        for batch in ((), (8,)) if n < 2048 else ((),):
            size = f"{n}{' x8' if batch else ''}"
            for name in ("cholesky", "inv", "det", "qr", "svd", "svdvals", "eigh", "eigvalsh"):
                if n == 2048 and name in ("svd", "svdvals"):
                    continue
                yield f"{name} {size}", lambda: getattr(linalg, name)(square(n, *batch))
            yield f"solve {size}", lambda: linalg.solve(square(n, *batch), square(n, *batch))
            yield f"lu_factor {size}", lambda: linalg.lu_factor(square(n, *batch))
            if n <= 512:
                yield f"eig {size}", lambda: linalg.eig(square(n, *batch))
    for n in (64, 1000, 1024, 1009, 65536):
        for rows in (1, 64):
            yield f"fft {n} x{rows}", lambda: fft.fft(torch.ones(rows, n, device="cuda") + 0j)
            yield f"rfft {n} x{rows}", lambda: fft.rfft(torch.ones(rows, n, device="cuda"))
            yield (
                f"irfft {n} x{rows}",
                lambda: fft.irfft(torch.ones(rows, n // 2 + 1, device="cuda") + 0j),
            )
    for n in (64, 224, 256, 509):
        yield f"fft2 {n} x8", lambda: fft.fft2(torch.ones(8, n, n, device="cuda") + 0j)
        yield f"rfft2 {n} x8", lambda: fft.rfft2(torch.ones(8, n, n, device="cuda"))
        yield f"irfft2 {n} x8", lambda: fft.irfft2(torch.ones(8, n, n // 2 + 1, device="cuda") + 0j)
    for rows in (1000, 10_000):
        indices = torch.stack([torch.arange(rows), torch.arange(rows).flip(0)])

        def sparse() -> torch.Tensor:
            return torch.sparse_coo_tensor(
                indices.cuda(),
                torch.ones(rows).cuda(),
                (rows, rows),
                is_coalesced=True,
            )

        yield f"sparse coo {rows}", sparse
        yield f"sparse mm {rows}", lambda: sparse() @ torch.ones(rows, 64, device="cuda")
        yield (
            f"sparse csr mm {rows}",
            lambda: sparse().to_sparse_csr() @ torch.ones(rows, 64, device="cuda"),
        )
    for kind in ("RNN", "GRU", "LSTM"):
        for inputs, hidden, layers, length, batch in (
            *((64, 64, 1, 20, 4), (64, 128, 1, 20, 16), (256, 256, 2, 35, 20)),
            *((512, 512, 2, 100, 32), (80, 300, 3, 50, 8), (64, 64, 1, 1, 4), (64, 64, 1, 200, 4)),
            *((64, 64, 1, 20, 64), (200, 200, 2, 35, 20), (1024, 1024, 1, 50, 64)),
            *((128, 512, 4, 25, 16), (64, 256, 1, 20, 16), (64, 64, 2, 20, 4)),
        ):
            for options in ({}, {"bidirectional": True}, {"dropout": 0.1}):
                if layers == 1 and "dropout" in options:
                    continue

                def recurrent(training: bool) -> None:
                    net = (
                        getattr(nn, kind)(inputs, hidden, layers, **options).cuda().train(training)
                    )
                    x = torch.ones(length, batch, inputs, device="cuda")
                    with torch.set_grad_enabled(training):
                        made = net(x)[0]
                    if training:
                        made.sum().backward()

                size = f"{inputs} {hidden} {layers} {length} {batch}"
                told = f"{kind} {size} {' '.join(options)}".strip()
                yield f"{told} training", lambda: recurrent(True)
                yield f"{told} inference", lambda: recurrent(False)
    for shape in (
        *((16, 64, 56, 56), (8, 256, 28, 28), (32, 64, 112, 112), (16, 256, 56, 56)),
        *((32, 512, 28, 28), (32, 2048, 7, 7), (4, 24, 33, 17), (64, 128, 7, 7), (2, 1024, 14, 14)),
    ):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for last in (False, True):
                layout = torch.channels_last if last else torch.contiguous_format

                def normed() -> None:
                    norm = nn.BatchNorm2d(shape[1]).cuda()
                    x = torch.ones(shape, device="cuda", dtype=dtype)
                    x = x.to(memory_format=layout).requires_grad_()
                    norm(x).sum().backward()

                name = f"batch norm {shape} {str(dtype)[6:]}"
                yield f"{name}{' channels_last' if last else ''}", normed


TABLES = {"operators": operators, "convolutions": convolutions, "libraries": libraries}
