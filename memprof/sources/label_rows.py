"""Columns of step, phase and module by the row of a label, for work on whole traces."""

from __future__ import annotations

from memprof.sources.protocol import Interner
from memprof.trace import Column, Label

__all__ = ["LabelRows"]


class LabelRows:
    """Steps and phases of label rows, kept up with an interner that grows."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._labels: list[Label] = []

    def of(self, row: int) -> Label:
        """The label in a row."""
        if row >= len(self._labels):
            self._labels += self._interner.labels(len(self._labels))
        return self._labels[row]

    def steps(self, rows: Column) -> Column:
        """The step of each label, `NOT_RECORDED` where it has none."""
        step_column: Column = self._interner.label_numbers()[rows, 0]
        return step_column

    def phases(self, rows: Column) -> Column:
        """The `Phase` of each label."""
        phase_column: Column = self._interner.label_numbers()[rows, 1]
        return phase_column

    def modules(self, rows: Column) -> Column:
        """The module of each label, as a position in `module_names`; 0: none."""
        module_column: Column = self._interner.label_numbers()[rows, 2]
        return module_column

    def module_names(self) -> list[str]:
        """The modules that `modules` tells of."""
        return self._interner.module_names()

    def in_module(self, row: int, module: str) -> int:
        """Row of the label that differs in its module only."""
        label = self.of(row)
        if label.module == module:
            return row
        return self._interner.label(label.step, label.phase, module, label.annotation)
