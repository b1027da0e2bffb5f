"""unread-buffer: a large buffer of a module that nothing in the program reads."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.rules.recorded import findings_of, names


class Biased(nn.Module):
    """An earlier version added the distances; this one adds a bias for each."""

    def __init__(self):
        super().__init__()
        distances = torch.arange(256).float()[:, None] - torch.arange(256)
        self.register_buffer("distances", distances)
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x)


class Gathering(nn.Module):
    """The whole table is read, by an index."""

    def __init__(self):
        super().__init__()
        self.register_buffer("frequencies", torch.randn(256, 256))
        self.linear = nn.Linear(256, 64)

    def forward(self, x):
        return self.linear(self.frequencies[x])


def trained(model, x):
    model(x).square().mean().backward()
    model.zero_grad()


def fires():
    model = Biased()
    return lambda number: trained(model, torch.randn(64, 64))


def looks_alike():
    model = Gathering()
    return lambda number: trained(model, torch.randint(256, (64,)))


def test_it_is_as_large_as_the_table_and_named(tmp_path):
    (unread,) = [
        one for one in findings_of(fires, tmp_path / "run.json") if one.rule == "unread-buffer"
    ]
    assert unread.bytes == 256 * 256 * 4
    # The name by itself, as a text, would be a place that may read it.
    assert unread.title.endswith("are a buffer of `Biased` that nothing reads, `distances`")
    assert [remedy.fix for remedy in unread.remedies] == ["del_ref", "right_size"]


class InLoop(nn.Module):
    """A loop registers three tables, of which `forward` reads the first two."""

    def __init__(self):
        super().__init__()
        at = torch.arange(256).float()[:, None] * torch.randn(64)
        for name, table in {"cosines": at.cos(), "sines": at.sin(), "apart": at @ at.T}.items():
            self.register_buffer(name, table)
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x * self.cosines[:64] + self.sines[:64])


class LargestInLoop(nn.Module):
    """The largest is read, and a small one of the three is not."""

    def __init__(self):
        super().__init__()
        at = torch.arange(256).float()[:, None] * torch.randn(64)
        for name, table in {"lengths": at.abs(), "all_pairs": at @ at.T, "shift": at + 1}.items():
            self.register_buffer(name, table)
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x + self.all_pairs[:64, :64] + self.shift[:64])


def add_distances(module, longest):
    distances = torch.arange(longest).float()[:, None] - torch.arange(longest)
    module.register_buffer("far_spans", distances, persistent=False)


class ByHelper(nn.Module):
    """A function registers the table of whatever module it is given."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        add_distances(self, 256)

    def forward(self, x):
        return self.linear(x)


class ByName(nn.Module):
    """The table comes from a function, and is registered by keywords."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer(tensor=table_of(256), name="whole_table")

    def forward(self, x):
        return self.linear(x)


class FilledLater(nn.Module):
    """A buffer that is registered empty, and made by a method."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("later_grid", None, persistent=False)
        self.build(256)

    def build(self, longest):
        at = torch.arange(longest).float()
        self.later_grid = at[:, None] * at

    def forward(self, x):
        return self.linear(x)


def table_of(longest):
    at = torch.arange(longest).float()
    return at[:, None].cos() * at.sin()


class Base(nn.Module):
    def forward(self, x):
        return self.linear(x)


class ByClass(Base):
    """A buffer by its class, of which a part is copied; the base class is here to be read."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        waves = torch.randn(256, 64).cos().repeat(1, 4)
        self.all_waves = nn.Buffer(waves)
        self.few_waves = nn.Buffer(waves[:64, :64].clone())

    def forward(self, x):
        return super().forward(x + self.few_waves)


class Reading(nn.Module):
    def forward(self, x):
        return self.linear(x + self.of_subclass[:64, :64])


class ReadByBase(Reading):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        self.register_buffer("of_subclass", torch.randn(256, 256))


class ViewRead(nn.Module):
    """What is read is a view, which keeps all of it."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)
        rows = torch.randn(256, 256)
        self.register_buffer("all_rows", rows)
        self.register_buffer("few_rows", rows[:64, :64])

    def forward(self, x):
        return self.linear(x + self.few_rows)


def of_a_loop():
    model = InLoop()
    return lambda number: trained(model, torch.randn(64, 64))


def of_a_loop_that_is_read():
    model = LargestInLoop()
    return lambda number: trained(model, torch.randn(64, 64))


@pytest.mark.parametrize(
    ("kind", "last_word"),  # the name as a text would be a place that may read it
    [(ByHelper, "spans"), (ByName, "table"), (ByClass, "waves"), (FilledLater, "grid")],
)
def test_it_is_told_however_it_is_registered(kind, last_word, tmp_path):
    def program():
        model = kind()
        return lambda number: trained(model, torch.randn(64, 64))

    (unread,) = [
        one for one in findings_of(program, tmp_path / "run.json") if one.rule == "unread-buffer"
    ]
    assert unread.bytes == 256 * 256 * 4
    assert unread.title.startswith("256 KiB")
    assert unread.title.endswith(f"_{last_word}`")
    assert [remedy.fix for remedy in unread.remedies] == ["del_ref", "right_size"]


@pytest.mark.parametrize("kind", [ReadByBase, ViewRead])
def test_what_a_base_class_or_a_view_reads_is_read(kind, tmp_path):
    def program():
        model = kind()
        return lambda number: trained(model, torch.randn(64, 64))

    assert "unread-buffer" not in names(program, tmp_path / "run.json")


def test_of_tables_that_a_loop_registers_the_one_that_nothing_reads_is_told(tmp_path):
    (unread,) = [
        one for one in findings_of(of_a_loop, tmp_path / "run.json") if one.rule == "unread-buffer"
    ]
    assert unread.bytes == 256 * 256 * 4
    assert unread.title.endswith("are a buffer of `InLoop` that nothing reads, `apart`")
    assert "unread-buffer" not in names(of_a_loop_that_is_read, tmp_path / "read.json")
