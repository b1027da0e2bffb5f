"""The fixes that memprof can advise, each with one line of what it means.

Each has a page in ``docs/fixes``, which `pages` reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["FIXES", "PATCHED"]

FIXES: Mapping[str, str] = MappingProxyType(
    {
        "item": "Keep the number, not the tensor: `.item()` (waits for the device).",
        "detach": "Cut the graph off what is kept: `.detach()` (does not wait).",
        "no_grad": "Run what needs no backward pass under `torch.no_grad()`.",
        "inference_mode": "Run pure inference under `torch.inference_mode()`.",
        "no_retain_graph": "Let `backward()` free the graph: no `retain_graph=True`.",
        "no_create_graph": "Take gradients without their graph: no `create_graph=True`.",
        "autograd_grad": "Use `torch.autograd.grad` where `backward(create_graph=True)` cycles.",
        "sparse_gradient": "Give an embedding `sparse=True`: a gradient for what was looked up.",
        "early_backward": "Call `backward()` on each loss instead of on their sum.",
        "freeze_params": "`requires_grad_(False)` for what no optimizer trains.",
        "trainable_tokens": "Train a few tokens' rows: `LoraConfig(trainable_token_indices=…)`.",
        "disable_adapter": "Run the model with adapters without them: `disable_adapter()`.",
        "del_ref": "Drop the last name that holds it: `del x`, or `self.x = None`.",
        "clear_container": "Empty the container when its contents have been used.",
        "own_container": "Make the container in `__init__`, or in the function: one for each.",
        "bound_cache": "Give the cache a largest size.",
        "bound_queue": "Give the queue a largest size, so that what fills it has to wait.",
        "weakref": "Refer to objects weakly, so that what refers to them does not keep them.",
        "plain_function": "Register a function that does not refer to the object.",
        "release": "Call the method by which an object lets go of what another one put in.",
        "reiterate": "Begin the loader anew for each round: no `itertools.cycle`.",
        "yield_items": "Make items as a loop asks for them: `yield`, and no list.",
        "reduce_predictions": "Keep of each batch's predictions what the metric needs.",
        "running_total": "Add up what is needed as results come, and keep none of them.",
        "reset_metric": "Call the metric's `reset()` after `compute()`.",
        "thresholds": "Have a curve of torchmetrics count between `thresholds`.",
        "break_cycle": "Break the reference cycle, so that counting references frees it.",
        "save_for_backward": "Keep tensors with `ctx.save_for_backward`, not as attributes of ctx.",
        "remove_hook": "Remove the hook by its handle when it has done its work.",
        "clear_traceback": "Keep the text of an exception, not its traceback.",
        "move_out_of_except": "Retry after the `except` block, when the exception is gone.",
        "cpu_offload": "Keep it in host memory: `.cpu()`.",
        "map_location_cpu": 'Load files to the host: `torch.load(…, map_location="cpu")`.',
        "clone_view": "Clone the small part, so that the whole storage can go.",
        "narrow_before_cast": "Take the part that is needed before casting to a wider type.",
        "topk": "Let `torch.topk` take the first few: nothing is sorted whole.",
        "narrow_first": "Take the part that is read before computing, not of the result.",
        "single_precision": "Compute in float32: no `double()`, and data in float32 too.",
        "per_sample_jacobian": "Compute the Jacobian of each sample by itself: `vmap(jacrev(f))`.",
        "profiler_schedule": "Give torch's profiler a schedule, so that it records a few steps.",
        "expand_index": "Show an index again: `expand`, and no `repeat`.",
        "in_place": "Compute in the memory of the old values: `x.sub_(mean).div_(std)`.",
        "remove_masks": 'Make pruning permanent: `prune.remove(module, "weight")`.',
        "run_once": "Run a model once on an input, and hand its result to all that read it.",
        "store_once": "Store what two entries share once, and read it by its place.",
        "cached_parametrization": "Compute parametrized weights once: `parametrize.cached()`.",
        "keep_bytes": "Keep bytes as `torch.uint8`, and divide a batch when it is used.",
        "thin_factors": "Ask a decomposition for thin factors: `full_matrices=False`.",
        "mixed_precision": "Compute activations in bfloat16 under autocast.",
        "checkpoint": "Recompute activations in the backward pass: activation checkpointing.",
        "class_indices": "Give the indices of classes, not a one-hot table.",
        "einsum": "Let a product of matrices, or `torch.einsum`, add up what it multiplies.",
        "sparse_adjacency": "Give a graph layer its edges as a sparse matrix: `ToSparseTensor`.",
        "route_rows": "Call each expert with the rows that are routed to it.",
        "transform_nodes": "Call a layer on nodes, before their features are gathered for edges.",
        "sparse_matrix": "Hold a matrix of edges as a sparse tensor: `torch.sparse_coo_tensor`.",
        "adjacency_per_graph": "Make one small adjacency matrix for each graph of a batch.",
        "sampled_pairs": "Score the edges and sampled pairs that are none, not all pairs of nodes.",
        "sparse_values": "Compute with the values of a sparse tensor, not with a dense one.",
        "cdist": "Let `torch.cdist` compute distances: it makes no differences.",
        "chunk": "Work through the large tensor in parts.",
        "divide_batch": "Have the library work on the parts of a batch one after the other.",
        "unfold": "Show overlapping windows by a view; copy those of a batch.",
        "multiply_by_kind": "Multiply all rows of one kind together, by their one matrix.",
        "multiply_by_vector": "Multiply by the values of a diagonal, not by a matrix of them.",
        "embedding_bag": "Let `nn.EmbeddingBag` add up rows as it looks them up.",
        "apply_factors": "Give the input to both factors, one after the other: `(x @ a.T) @ b.T`.",
        "upsample_last": "Enlarge features after the layer that makes them narrow.",
        "index_batches": "Take each batch by its part of the order: `x[perm[i : i + batch]]`.",
        "one_function": "Call the function of torch that computes it in one go.",
        "fused_loss": "Let the loss take the logits: `F.cross_entropy`, `F.log_softmax`.",
        "fused_attention": "Let `F.scaled_dot_product_attention` do it, which keeps no scores.",
        "pad_to_longest": "Pad each batch to its longest sequence, not to a fixed length.",
        "micro_batches": "Take smaller batches and add up their gradients before a step.",
        "smaller_batch": "Take a smaller batch where nothing learns: the results stay the same.",
        "foreach_false": "Let the optimizer go tensor by tensor: `foreach=False`, or `fused=True`.",
        "history_size": "Have L-BFGS keep a short history: `history_size=10`.",
        "set_to_none": "Drop gradients right after the step: `zero_grad(set_to_none=True)`.",
        "bucket_view": "Keep gradients in the reducer's buckets: `gradient_as_bucket_view=True`.",
        "drop_outputs": "Ask a model for no outputs that nothing reads.",
        "right_size": "Make the buffer as large as what is read from it.",
        "preallocate": "Allocate the final size once and fill it.",
        "reshape": "Give both operands the same shape.",
        "limit_workspace": "Limit the workspaces of cuDNN and cuBLAS.",
        "disable_autocast_cache": "Turn off autocast's weight cache: `cache_enabled=False`.",
        "empty_cache": "Give cached blocks back once, where something else needs them.",
        "drop_empty_cache": "Leave out `empty_cache()` in the loop.",
        "expandable_segments": "Use expandable segments: `expandable_segments:True`.",
        "max_split_size": "Keep large blocks whole: `max_split_size_mb`.",
        "static_shapes": "Pad to a few sizes.",
        "share_pool": "Let CUDA graphs share one memory pool.",
    }
)
"""Every term that ``Remedy.fix`` may be."""

PATCHED = frozenset(
    (
        *("bound_cache", "break_cycle", "bucket_view", "clear_traceback", "clone_view", "del_ref"),
        *("detach", "disable_autocast_cache", "drop_empty_cache", "foreach_false"),
        *("freeze_params", "history_size", "item"),
        *("map_location_cpu", "no_grad", "no_retain_graph", "save_for_backward", "set_to_none"),
        "weakref",
    )
)
"""Those that may come with a patch."""
