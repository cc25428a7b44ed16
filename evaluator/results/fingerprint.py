"""What the numbers of a sweep depend on, as one hash, by which its finished parts are found again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.catalog.state import catalog_here, code_here
from evaluator.results.schema import SCHEMA_VERSION
from evaluator.scenario import Scenario
from evaluator.yaml import loads_yaml

_FILES = (".yaml", ".yml", ".json", ".csv", ".parquet", ".jsonl")
_BLOCK = 1 << 20


def fingerprint_of(scenario: Scenario, *parts: str) -> str:
    """SHA-256 over the scenario, the files it names, the catalog, the package's own sources and ``parts``, as hex.

    Neither where the scenario lies nor its comments matter, nor when any file was written: two machines find the same.
    """
    digest = hashlib.sha256()
    without_text = replace(scenario, text="", path=None)
    # A zero byte between the parts, so that no two lists of parts are the same text.
    # The sources, too: chunks that another version of the package computed may have other numbers in them.
    for part in (SCHEMA_VERSION, code_here(), catalog_here(), repr(without_text), *parts):
        digest.update(part.encode() + b"\0")
    for path in _named_files(scenario):
        digest.update(_content(path) + b"\0")
    return digest.hexdigest()


def _named_files(scenario: Scenario) -> Iterator[Path]:
    """The files that a scenario names anywhere: traces, tables of designs, hardware and calibrations of its own."""
    folder = Path(scenario.path).parent if scenario.path else Path.cwd()
    # Sorted: the order in a file does not matter, and that of a set changes from run to run.
    for text in sorted(set(_texts(loads_yaml(scenario.text, scenario.name) if scenario.text else {}))):
        # Any text that ends like a file's name and is one: a file too many costs a hash, one too few would let old
        # numbers pass for those of its new content.
        if text.endswith(_FILES):
            file = next((path for path in (folder / text, Path(text)) if path.is_file()), None)
            if file is not None:
                yield file


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


def _content(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()
