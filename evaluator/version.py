"""The version of the package: that of its build, which took it from git (``hatch_build.py``)."""

from __future__ import annotations

from os import path

OF_SOURCES = "0.1.0.dev0"
"""Of sources that nothing was built of. The build falls back on it, too, where there is no git (pyproject.toml)."""


def _built() -> str:
    # A file of text and no module, because the hash of the code (``catalog.state``) is of all modules: so two builds of
    # the same code take each other's finished parts. ``importlib.metadata`` would tell what is installed, which need
    # not be what was imported, and takes 0.04 s of a processor beside the 0.10 of all of ``evaluator --help``.
    try:
        with open(path.join(path.dirname(__file__), "version.txt"), encoding="utf-8") as file:
            return file.read().strip()
    except FileNotFoundError:
        return OF_SOURCES


__version__ = _built()
