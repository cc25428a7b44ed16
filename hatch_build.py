"""What a build of the package makes: its version, and the types of a scenario's keys, which follow from the records."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MadeFiles(BuildHookInterface):
    """Writes ``typed.pyi`` and ``version.txt`` into a wheel; of an installation for development, into the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the files before the rest is packed."""
        sys.path.insert(0, self.root)
        try:
            from evaluator.scenario.python_types import python_types
        finally:
            sys.path.remove(self.root)
        texts = {"typed.pyi": python_types(), "version.txt": f"{self.metadata.version}\n"}
        if version != "editable":
            self.folder = tempfile.TemporaryDirectory()
        folder = Path(self.root, "evaluator") if version == "editable" else Path(self.folder.name)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            if version != "editable":
                build_data["force_include"][str(folder / name)] = f"evaluator/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel has now."""
        if version != "editable":
            self.folder.cleanup()
