"""whole-vocabulary: a vocabulary is trained whole beside adapters, for tokens added to it."""

from __future__ import annotations

import inspect
import os

import pytest

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase
from tests.rules.recorded import findings_of

MIB = 1 << 20
LAYERS = {"embed_tokens": 16 * MIB, "lm_head": 16 * MIB, "score": MIB}
WHOLE = ".modules_to_save.default"
"""As PEFT calls the copy of a layer that it was told to train whole."""


def adapted(model, tokenizer, config_of, adapters_for):
    """Never called: lines of it are those of the traces."""
    model.resize_token_embeddings(len(tokenizer))
    config = config_of(
        r=8,
        modules_to_save=["embed_tokens", "lm_head", "score"],
    )
    return adapters_for(model, config)


def train(model, optimizer, batches):
    """Never called either."""
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def frame_of(function, code, filename=__file__):
    lines, first = inspect.getsourcelines(function)
    return (
        Frame(function.__name__, str(filename), first + [one.strip() for one in lines].index(code)),
    )


def training(below=WHOLE, *, trained=True, filename=__file__):
    """A job whose adapted model has copies of layers, and trains them or not."""
    made = frame_of(adapted, "return adapters_for(model, config)", filename)
    backward = frame_of(train, "model(**batch).loss.backward()", filename)
    stepped = frame_of(train, "optimizer.step()", filename)
    trace = TraceBuilder(device="cpu")
    parts = {name: (f"Peft.{name}{below}", nbytes) for name, nbytes in LAYERS.items()}
    for name, (module, nbytes) in parts.items():
        trace.label(module=module)
        trace.alloc(nbytes, name, stack=made, category=Category.PARAMETER)
    trained_parts = parts if trained else {}
    for step in range(16):
        trace.label(step=step, phase=Phase.FORWARD, module="Peft")
        trace.alloc(MIB, "hidden", stack=backward, category=Category.ACTIVATION)
        trace.free("hidden")
        for name, (module, nbytes) in trained_parts.items():
            trace.label(step=step, phase=Phase.BACKWARD, module=module)
            trace.alloc(nbytes, f"{name}.grad", stack=backward, category=Category.GRADIENT)
        for name, (module, nbytes) in trained_parts.items():
            trace.label(step=step, phase=Phase.OPTIMIZER, module=module)
            if step == 0:
                kind = Category.OPTIMIZER_STATE
                trace.alloc(2 * nbytes, f"{name}.moments", stack=stepped, category=kind)
            trace.free(f"{name}.grad")
    return trace


def fires():
    return training()


def looks_alike():
    """Copies that nothing trains."""
    return training(trained=False)


def other_layers():
    """Layers of the model itself."""
    return training(".default")


ADAPTERS = {"layers.0.q_proj.lora_A.default": MIB // 4, "layers.0.q_proj.lora_B.default": MIB // 4}


def unfrozen(*layers, below=(), filename=__file__):
    """A job that trains adapters, and layers of the model that have none."""
    backward = frame_of(train, "model(**batch).loss.backward()", filename)
    stepped = frame_of(train, "optimizer.step()", filename)
    trace = TraceBuilder(device="cpu")
    for name, nbytes in LAYERS.items():
        trace.label(module=f"Peft.{name}")
        trace.existing(nbytes, name, category=Category.PARAMETER)
    trained = {one: LAYERS[one] for one in layers} | ADAPTERS | dict(below)
    for step in range(16):
        trace.label(step=step, phase=Phase.FORWARD, module="Peft")
        trace.alloc(MIB, "hidden", stack=backward, category=Category.ACTIVATION)
        trace.free("hidden")
        for name, nbytes in trained.items():
            trace.label(step=step, phase=Phase.BACKWARD, module=f"Peft.{name}")
            trace.alloc(nbytes, f"{name}.grad", stack=backward, category=Category.GRADIENT)
        for name, nbytes in trained.items():
            trace.label(step=step, phase=Phase.OPTIMIZER, module=f"Peft.{name}")
            if step == 0:
                kind = Category.OPTIMIZER_STATE
                trace.alloc(2 * nbytes, f"{name}.moments", stack=stepped, category=kind)
            trace.free(f"{name}.grad")
    return trace


def unfreeze(model):
    """Never called: its line is one that a finding shows."""
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name or "lm_head" in name:
            parameter.requires_grad = True


def rules_in(found):
    return [one.rule for one in found]


def test_the_rows_of_the_tokens_that_were_added_are_enough(tmp_path):
    found = findings_of(fires, tmp_path / "run.json")
    (one,) = [each for each in found if each.rule == "whole-vocabulary"]
    assert not one.minor
    assert one.bytes == 2 * 4 * 16 * MIB  # the head of a few classes is not meant
    (remedy,) = one.remedies
    assert remedy.fix == "trainable_tokens"
    assert remedy.code.strip() == 'modules_to_save=["embed_tokens", "lm_head", "score"],'
    assert remedy.saves_bytes == one.bytes


@pytest.mark.parametrize("program", [looks_alike, other_layers])
def test_what_is_not_trained_below_adapters_is_not_meant(program, tmp_path):
    assert "whole-vocabulary" not in rules_in(findings_of(program, tmp_path / "run.json"))


@pytest.mark.parametrize(("adds", "is_meant"), [(True, True), (False, False)])
def test_without_new_tokens_a_head_is_trained_on_purpose(adds, is_meant, tmp_path):
    lines, _ = inspect.getsourcelines(inspect.getmodule(adapted))
    text = "".join(lines)
    source = tmp_path / "train.py"
    source.write_text(text if adds else text.replace("resize_token_embeddings", "to_device"))
    os.utime(source, (1, 1))
    trace = training(filename=source)
    found = findings(load(write_run(tmp_path / "run.json", trace.build())))
    assert ("whole-vocabulary" in rules_in(found)) is is_meant


def test_a_vocabulary_that_is_unfrozen_beside_adapters_is_trained_whole_too(tmp_path):
    found = findings_of(lambda: unfrozen("embed_tokens", "lm_head"), tmp_path / "run.json")
    (one,) = [each for each in found if each.rule == "whole-vocabulary"]
    assert not one.minor
    assert one.bytes == 2 * 3 * 16 * MIB  # the weights are needed
    (remedy,) = one.remedies
    assert remedy.fix == "trainable_tokens"
    assert remedy.code.strip() == "parameter.requires_grad = True"
    assert remedy.saves_bytes == one.bytes - MIB // 2  # then a forward pass has the peak


@pytest.mark.parametrize(
    "program",
    [
        lambda: unfrozen("score"),
        lambda: unfrozen("embed_tokens", below={"layers.0.q_proj.base_layer": MIB}),
        unfrozen,
    ],
)
def test_a_small_head_or_a_whole_model_that_is_unfrozen_is_not_meant(program, tmp_path):
    assert "whole-vocabulary" not in rules_in(findings_of(program, tmp_path / "run.json"))


def test_layers_that_an_attribute_names_are_told_by_its_statement(tmp_path):
    lines, _ = inspect.getsourcelines(inspect.getmodule(adapted))
    told = '        modules_to_save=["embed_tokens", "lm_head", "score"],\n    )\n'
    text = "".join(lines)
    assert text.count(told) == 1
    source = tmp_path / "train.py"
    source.write_text(text.replace(told, "    )\n    config.modules_to_save = model.vocabulary\n"))
    os.utime(source, (1, 1))
    found = findings(load(write_run(tmp_path / "run.json", training(filename=source).build())))
    (one,) = [each for each in found if each.rule == "whole-vocabulary"]
    assert one.remedies[0].code.strip() == "config.modules_to_save = model.vocabulary"
