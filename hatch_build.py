"""What a wheel carries beside the packages: the pages about fixes, for `memprof explain`."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Pages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts ``docs/fixes`` beside the code that reads it; an editable install reads the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        if version == "standard":
            build_data["force_include"]["docs/fixes"] = "memprof/advice/fixes"
