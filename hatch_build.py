"""What a wheel carries beside the packages: the pages that `memprof explain` shows."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Pages(BuildHookInterface):  # type: ignore[type-arg]
    """Puts the pages beside the code that reads them; an editable install reads the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called by hatchling before it builds."""
        if version == "standard":
            for kind in ("rules", "fixes"):
                build_data["force_include"][f"docs/{kind}"] = f"memprof/rules/{kind}_pages"
