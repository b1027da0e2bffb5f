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


def recurrent() -> dict[str, object]:
    """A recurrent net is refused with a reason, and runs without cuDNN."""
    x = torch.rand(5, 2, 16, device="cuda")
    refused = ""
    try:
        torch.nn.LSTM(16, 8).cuda()(x)
    except RuntimeError as error:
        refused = str(error)
    torch.backends.cudnn.enabled = False
    try:
        shape = list(torch.nn.LSTM(16, 8).cuda()(x)[0].shape)
    finally:
        torch.backends.cudnn.enabled = True
    return {"refused": refused, "shape": shape}


if __name__ == "__main__":
    claims = (card, memory, workspaces, operators, pinned, values, streams, recurrent)
    wanted = sys.argv[1:]
    json.dump(
        {claim.__name__: claim() for claim in claims if not wanted or claim.__name__ in wanted},
        sys.stdout,
    )
