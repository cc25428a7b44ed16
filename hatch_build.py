"""What a build of the package makes: the types of a scenario's keys, which follow from the records that hold them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "evaluator/typed.pyi"


class TypesOfKeys(BuildHookInterface):
    """Writes ``evaluator/typed.pyi`` into a wheel; where a checkout is installed for development, into the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file before the rest is packed."""
        sys.path.insert(0, self.root)
        try:
            from evaluator.scenario.python_types import python_types
        finally:
            sys.path.remove(self.root)
        if version == "editable":
            Path(self.root, FILE).write_text(python_types(), encoding="utf-8")
            return
        self.folder = tempfile.TemporaryDirectory()
        made = Path(self.folder.name, "typed.pyi")
        made.write_text(python_types(), encoding="utf-8")
        build_data["force_include"][str(made)] = FILE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel has now."""
        if version != "editable":
            self.folder.cleanup()
