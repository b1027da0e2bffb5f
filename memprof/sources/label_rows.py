"""Columns of step, phase and module by the row of a label, for work on whole traces."""

from __future__ import annotations

import numpy as np

from memprof.sources.protocol import Interner
from memprof.trace import NOT_RECORDED, Column, Label

__all__ = ["LabelRows"]


class LabelRows:
    """Steps and phases of label rows, kept up with an interner that grows."""

    def __init__(self, interner: Interner) -> None:
        self._interner = interner
        self._labels: list[Label] = []
        self._columns: Column = np.zeros((0, 2), np.int64)

    def of(self, row: int) -> Label:
        """The label in a row."""
        if row >= len(self._labels):
            self._keep_up()
        return self._labels[row]

    def steps(self, rows: Column) -> Column:
        """The step of each label, `NOT_RECORDED` where it has none."""
        self._keep_up()
        step_column: Column = self._columns[rows, 0]
        return step_column

    def phases(self, rows: Column) -> Column:
        """The `Phase` of each label."""
        self._keep_up()
        phase_column: Column = self._columns[rows, 1]
        return phase_column

    def in_module(self, row: int, module: str) -> int:
        """Row of the label that differs in its module only."""
        label = self.of(row)
        if label.module == module:
            return row
        return self._interner.label(label.step, label.phase, module, label.annotation)

    def _keep_up(self) -> None:
        new = self._interner.labels(len(self._labels))
        if new:
            self._labels += new
            rows = np.array([(max(one.step, NOT_RECORDED), one.phase) for one in new], np.int64)
            self._columns = np.concatenate([self._columns, rows])
