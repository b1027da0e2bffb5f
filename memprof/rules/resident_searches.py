"""Searches in the job for who holds what is large and does not grow, as its recording ended."""

from __future__ import annotations

from memprof.records import Finding
from memprof.views.examination import DeviceExamination, Examination

__all__ = ["resident_searches"]


def resident_searches(
    examination: Examination, device: DeviceExamination, least_share: float
) -> list[Finding]:
    """Those of a device that came upon a holder of at least such a share of its peak."""
    least = least_share * device.peak_allocated
    return [
        one
        for one in examination.run.findings
        if one.finding == "holders"
        and one.device == device.name
        and one.details.get("reason") == "resident"
        and one.holders
        and one.bytes >= least
    ]
