"""What a program finds on a simulated card, as JSON; run below `memprof dry-run --no-record`."""

from __future__ import annotations

import json
import resource
import sys
import threading

import torch

MIB = 1 << 20


def card() -> dict[str, object]:
    """The card as torch sees it."""
    told = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    return {
        "name": told.name,
        "total": told.total_memory,
        "capability": list(torch.cuda.get_device_capability()),
        "multiprocessors": told.multi_processor_count,
        "count": torch.cuda.device_count(),
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False)
        if torch.__version__ >= "2.5"
        else None,
        "free": free,
        "total_by_driver": total,
    }


def memory() -> dict[str, object]:
    """All that is free can be had, and not a page more; nothing of the host is touched."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    free, _ = torch.cuda.mem_get_info()
    pages = free // (2 * MIB)
    refused = False
    try:
        torch.empty(pages + 1, 2 * MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        refused = True
    whole = torch.zeros(pages, 2 * MIB, dtype=torch.uint8, device="cuda")
    left, _ = torch.cuda.mem_get_info()
    del whole
    torch.cuda.empty_cache()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "refused": refused,
        "left": left,
        "all_back": torch.cuda.mem_get_info()[0] == free,
        "host_mib": (after - before) // 1024,
    }


def workspaces() -> dict[str, object]:
    """What cuBLAS takes in one thread, and in two."""
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    a = torch.ones(64, 64, device="cuda")
    own = torch.cuda.memory_allocated() - before

    def multiply() -> None:
        a @ a

    multiply()
    one = torch.cuda.memory_allocated() - before - own
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    two = torch.cuda.memory_allocated() - before - own
    return {"one_thread": one, "two_threads": two}


def operators() -> dict[str, object]:
    """What needs figures of the card to run at all."""
    x = torch.rand(100, 5000, device="cuda")
    attention = torch.rand(2, 4, 128, 64, device="cuda", dtype=torch.float16)
    images = torch.rand(2, 3, 32, 32, device="cuda", requires_grad=True)
    convolution = torch.nn.Conv2d(3, 8, 3).cuda()
    norm = torch.nn.BatchNorm2d(8).cuda()
    norm(convolution(images)).sum().backward()
    square = torch.rand(8, 8, device="cuda")
    return {
        "svd": list(torch.linalg.svd(square).S.shape),
        "inverse": list(torch.linalg.inv_ex(square).inverse.shape),
        "qr": list(torch.linalg.qr(square).R.shape),
        "fft": list(torch.fft.fft(square).shape),
        "sparse": list(torch.sparse.mm(torch.eye(8).to_sparse_csr().cuda(), square).shape),
        "convolution": list(images.grad.shape),
        "attention": list(torch.nn.functional.scaled_dot_product_attention(*[attention] * 3).shape),
        "topk": list(x.topk(7).values.shape),
        "sort": list(x.sort().values.shape),
        "nonzero": list(x.nonzero().shape),
        "unique": list(x.unique().shape),
        "mask": list(x[x > 0.5].shape),
        "median": list(x.median(0).values.shape),
    }


def pinned() -> dict[str, object]:
    """Pinned memory is known by its address, also inside a block and after it is given back."""
    plain = torch.zeros(1000)
    held = torch.zeros(1000).pin_memory()
    inside = held[10:]
    return {"plain": plain.is_pinned(), "pinned": held.is_pinned(), "inside": inside.is_pinned()}


def values() -> dict[str, object]:
    """What was copied in comes back; what a kernel would have made are zeros, never leftovers."""
    copied = torch.tensor([5, 6, 7], device="cuda")
    part = copied[1].item()
    again = copied.clone()
    cloned = again.tolist()
    made = (copied + 1).tolist()
    whole = copied.tolist()
    part_after_kernels = copied[2].item()
    del again
    del copied
    leftover = torch.empty(3, dtype=torch.int64, device="cuda")  # at the address of `copied`
    return {
        "part": part,
        "clone": cloned,
        "whole": whole,
        "part_after_kernels": part_after_kernels,
        "made": made,
        "first_of_leftover": leftover[0].item(),
        "zeros": torch.zeros(4, device="cuda").tolist(),
    }


def streams() -> dict[str, object]:
    """Events happen in order, and at once."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    first.record()
    with torch.cuda.stream(stream):
        torch.ones(3, device="cuda")
        second.record()
    return {
        "happened": first.query() and second.query() and stream.query(),
        "in_order": first.elapsed_time(second) >= 0,
    }


def requested() -> int:
    """Bytes that torch asked its allocator for, before rounding, and still holds."""
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def recurrent() -> dict[str, object]:
    """Weights of recurrent nets lie one after another; a net of pytorch#2895 and what it takes."""
    nets = {
        "lstm": torch.nn.LSTM(123, 320, 4),
        "gru": torch.nn.GRU(123, 320, 4),
        "rnn": torch.nn.RNN(16, 8, 2, bidirectional=True),
        "projected": torch.nn.LSTM(16, 32, 2, bidirectional=True, proj_size=8),
        "without bias": torch.nn.GRU(16, 32, bias=False),
        "packed": torch.nn.LSTM(16, 32, dropout=0.0),
    }
    answer: dict[str, object] = {}
    while nets:
        name, net = nets.popitem()
        parameters = sum(parameter.numel() for parameter in net.parameters())
        net.cuda()
        flat = {parameter.untyped_storage().data_ptr() for parameter in net.parameters()}
        (weights,) = {parameter.untyped_storage().nbytes() for parameter in net.parameters()}
        x = torch.rand(500, 50, net.input_size, device="cuda")
        if name == "packed":
            x = torch.nn.utils.rnn.pack_padded_sequence(x[:5, :2], [5, 3])
        held = requested()
        output, state = net(x)
        output = output.data if name == "packed" else output
        kept = requested() - held
        output.sum().backward()
        answer[name] = {
            "one_storage": len(flat) == 1,
            "weights": weights,
            "parameters": parameters * 4,
            "shape": list(output.shape),
            "kept": kept,
            "gradients": all(parameter.grad is not None for parameter in net.parameters()),
        }
        del net, x, output, state
    return answer


def convolutions() -> dict[str, object]:
    """The most that a convolution takes besides its output, forward and backward."""
    answer: dict[str, object] = {"version": torch.backends.cudnn.version()}
    for layout in (torch.contiguous_format, torch.channels_last):
        for dtype in (torch.float32, torch.bfloat16):
            net = torch.nn.Conv2d(64, 128, 3, padding=1, bias=False).cuda().to(dtype)
            net = net.to(memory_format=layout)
            x = torch.rand(8, 64, 56, 56, device="cuda", dtype=dtype).to(memory_format=layout)
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            y = net(x)
            took = torch.cuda.max_memory_allocated() - before
            answer[f"{layout} {dtype}"] = took - y.numel() * y.element_size()
            del net, x, y
    return answer


def recorded_convolutions() -> dict[str, object]:
    """Sizes that a small net takes one after another, forward and backward to its input."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(30, 16, 3, padding="same"),
        torch.nn.BatchNorm2d(16),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding="same"),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(32, 64, 3, padding="same"),
    )
    net = net.cuda().requires_grad_(False)
    x = torch.rand(1, 30, 256, 256, device="cuda", requires_grad=True)
    torch.cuda.memory._record_memory_history(stacks="python")
    net(x).sum().backward()
    (trace,) = (trace for trace in torch.cuda.memory._snapshot()["device_traces"] if trace)
    torch.cuda.memory._record_memory_history(None)
    return {"sizes": [event["size"] for event in trace if event["action"] == "alloc"]}


def chosen_by_time() -> dict[str, object]:
    """With ``benchmark`` the fastest plan is taken, which is the first where none runs."""
    net = torch.nn.Conv2d(64, 64, 3).cuda()
    x = torch.rand(8, 64, 32, 32, device="cuda")
    took = []
    for benchmark in (True, True, False):
        torch.backends.cudnn.benchmark = benchmark
        net(x)  # where plans are timed, each has its workspace
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        net(x)
        took.append(torch.cuda.max_memory_allocated() - before)
    return {"took": took}


def compiled_while_running() -> dict[str, object]:
    """Kernels that torch gives to NVRTC."""
    x = torch.rand(100, device="cuda")
    whole = torch.ones(100, dtype=torch.int32, device="cuda")
    special = torch.special
    add = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T add(T a, T b) { return a + b; }"
    )
    return {
        "bessel": list(special.bessel_j0(x).shape),
        "airy": list(special.airy_ai(x).shape),
        "chebyshev": list(special.chebyshev_polynomial_t(x, x).shape),
        "lcm": list(torch.lcm(whole, whole).shape),
        "complex": list(torch.prod(torch.ones(5, dtype=torch.complex64, device="cuda")).shape),
        "own": list(add(x, x).shape),
    }


def polling() -> dict[str, object]:
    """A program that waits until a value changes ends with an error; a training loop does not."""
    flag = torch.zeros(1, device="cuda")
    message = ""
    try:
        while not flag.item():
            pass
    except RuntimeError as error:
        message = str(error)
    readings = 0
    for _ in range(300):
        flag.copy_(torch.zeros(1))
        readings += flag.item() == 0
    return {"message": message, "readings": readings}


if __name__ == "__main__":
    claims = (
        *(card, memory, workspaces, operators, pinned, values, streams, recurrent),
        *(convolutions, recorded_convolutions, chosen_by_time, compiled_while_running, polling),
    )
    wanted = sys.argv[1:]
    json.dump(
        {claim.__name__: claim() for claim in claims if not wanted or claim.__name__ in wanted},
        sys.stdout,
    )
