"""whole-vocabulary: a vocabulary is trained whole beside adapters, for tokens added to it."""

from __future__ import annotations

import pytest

from memprof.loading import load
from memprof.rules.ranked_findings import findings
from memprof.testing import TraceBuilder, write_run
from memprof.trace import Category, Frame, Phase

MIB = 1 << 20
PROGRAM = """\
def adapted(model, tokenizer):
    model.resize_token_embeddings(len(tokenizer))
    config = LoraConfig(
        r=8,
        modules_to_save=["embed_tokens", "lm_head", "score"],
    )
    return get_peft_model(model, config)
def train(model, optimizer, batches):
    for batch in batches:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
LAYERS = {"embed_tokens": 16 * MIB, "lm_head": 16 * MIB, "score": MIB}


@pytest.fixture
def findings_in(tmp_path):
    """What is found of a program that trains copies of layers beside adapters."""

    def of(text, below=".modules_to_save.default", *, trained=True):
        source = tmp_path / "train.py"
        source.write_text(text)
        make, backward, step_line = (
            (Frame(name, str(source), 1 + text.splitlines().index(code)),)
            for name, code in (
                ("adapted", "    return get_peft_model(model, config)"),
                ("train", "        model(**batch).loss.backward()"),
                ("train", "        optimizer.step()"),
            )
        )
        trace = TraceBuilder(device="cpu")
        parts = {name: (f"Peft.{name}{below}", nbytes) for name, nbytes in LAYERS.items()}
        for name, (module, nbytes) in parts.items():
            trace.label(module=module)
            trace.alloc(nbytes, name, stack=make, category=Category.PARAMETER)
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
                    trace.alloc(2 * nbytes, f"{name}.moments", stack=step_line, category=kind)
                trace.free(f"{name}.grad")
        return findings(load(write_run(tmp_path / "run.json", trace.build())))

    return of


def test_the_rows_of_the_tokens_that_were_added_are_enough(findings_in):
    (one,) = [each for each in findings_in(PROGRAM) if each.rule == "whole-vocabulary"]
    assert not one.minor
    assert one.bytes == 2 * 4 * 16 * MIB  # the head of a few classes is not meant
    (remedy,) = one.remedies
    assert (remedy.fix, remedy.line) == ("trainable_tokens", 5)
    assert remedy.code.strip() == 'modules_to_save=["embed_tokens", "lm_head", "score"],'
    assert remedy.saves_bytes == one.bytes


def test_without_new_tokens_a_head_is_trained_on_purpose(findings_in):
    text = PROGRAM.replace("resize_token_embeddings(len(tokenizer))", "train()")
    assert [each.rule for each in findings_in(text) if each.rule == "whole-vocabulary"] == []


@pytest.mark.parametrize(("below", "trained"), [(".default", True), (None, False)])
def test_what_is_not_trained_below_adapters_is_not_meant(findings_in, below, trained):
    found = findings_in(PROGRAM, *([below] if below else []), trained=trained)
    assert [each.rule for each in found if each.rule == "whole-vocabulary"] == []
