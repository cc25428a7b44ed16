"""Key paths by the short names that people write: ``tensor_parallel``, ``batching.policy``, ``ttft_p90``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from evaluator.scenario.fields import Place, Reader, Table, did_you_mean, listed
from evaluator.scenario.figures import Figures
from evaluator.scenario.keys import DEPLOYMENT, METRICS
from evaluator.scenario.tables import Section, Variant
from evaluator.scenario.tree import split_path
from evaluator.scenario.workload_keys import workload_table

SECTIONS = ("workload", "deployment", "pipeline", "slo")
_OBJECTIVE = re.compile(rf"({'|'.join(METRICS)})[._](mean|p[0-9]+(?:\.[0-9]+)?)")


@lru_cache(maxsize=1)
def key_readers() -> dict[str, Reader]:
    """How the value of every key is read, by its path; those below names of the user's own are not among them."""
    tables: dict[str, Table] = {"workload": workload_table(Path()), "deployment": DEPLOYMENT}
    return {path: reader for section, table in tables.items() for path, reader in _below(section, table)}


def _below(path: str, table: Table) -> Iterator[tuple[str, Reader]]:
    for key, field in table.items():
        if isinstance(field.read, Section):
            yield from _below(f"{path}.{key}", field.read.table)
        elif isinstance(field.read, Variant):
            yield from _below(f"{path}.{key}", field.read.keys)
        else:
            yield f"{path}.{key}", field.read
            if isinstance(field.read, Figures):
                yield from ((f"{path}.{key}.{below}", reader) for below, reader in field.read.keys.items())


def key_path(name: Any, place: Place) -> str:
    """The key path that ``name`` stands for: itself, or the only key whose path ends so. Errors: InputError."""
    written = str(name)
    if split_path(written)[0] in SECTIONS:
        return written
    objective = _OBJECTIVE.fullmatch(written)
    if objective:
        return f"slo.{objective[1]}.{objective[2]}"
    return resolve(written, key_readers(), place)


def resolve(name: str, paths: Iterable[str], place: Place) -> str:
    """The only one of ``paths`` that is ``name`` or ends with it, its keys joined by dots or by underscores.

    Errors: InputError where there is none, or several.
    """
    paths = list(paths)
    if name in paths:
        return name
    found = [path for path in paths if is_end(name, path)]
    if len(found) == 1:
        return found[0]
    if found:
        raise place.error(f"{name} may be any of {listed(found)}; write the whole key")
    known = dict.fromkeys(split_path(path)[-1] for path in paths)
    raise place.error(f"{name} is no key of a scenario{did_you_mean(name, [*known, *paths])}")


def is_end(name: str, path: str) -> bool:
    """Whether ``name`` is the end of a key path, or all of it, its keys joined by dots or by underscores."""
    return name in _ends(path)


@lru_cache(maxsize=4096)
def _ends(path: str) -> frozenset[str]:
    keys = split_path(path)
    ends = [keys[-count:] for count in range(1, len(keys) + 1)]
    return frozenset(sign.join(end) for end in ends for sign in "._")
