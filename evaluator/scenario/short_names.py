"""Key paths by the short names that people write: ``tensor_parallel``, ``batching.policy``, ``ttft_p90``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from evaluator.keys import Figures, Place, Reader, Section, Table, Variant, did_you_mean, listed, split_path
from evaluator.scenario.objectives import METRICS
from evaluator.scenario.pools import deployment_reader
from evaluator.scenario.workload import workload_reader

SECTIONS = ("workload", "deployment", "pipeline", "slo")
_OBJECTIVE = re.compile(rf"({'|'.join(METRICS)})[._](mean|p[0-9]+(?:\.[0-9]+)?)")


@lru_cache(maxsize=1)
def key_readers() -> dict[str, Reader]:
    """How the value of every key is read, by its path; those below names of the user's own are not among them."""
    sections = {"workload": workload_reader, "deployment": deployment_reader}
    return {path: reader for name, section in sections.items() for path, reader in _below(name, section.table)}


def _below(path: str, table: Table) -> Iterator[tuple[str, Reader]]:
    for key, entry in table.items():
        if isinstance(entry.read, Section):
            yield from _below(f"{path}.{key}", entry.read.table)
        elif isinstance(entry.read, Variant):
            yield from _below(f"{path}.{key}", entry.read.keys)
        else:
            yield f"{path}.{key}", entry.read
            if isinstance(entry.read, Figures):
                # Figures of a device stand beside its name: ``hardware`` is a key itself, and so is
                # ``hardware.memory_bytes``.
                yield from ((f"{path}.{key}.{below}", reader) for below, reader in entry.read.keys.items())


def key_path(name: Any, place: Place) -> str:
    """The key path that ``name`` stands for: itself, or the only key whose path ends so. Errors: InputError."""
    written = str(name)
    if split_path(written)[0] in SECTIONS:
        return written
    # Objectives are not among the readers: any percentile is one, so that there is no list of them to search.
    objective = _OBJECTIVE.fullmatch(written)
    if objective:
        return f"slo.{objective[1]}.{objective[2]}"
    return resolve(written, key_readers(), place)


def resolve(name: str, paths: Iterable[str], place: Place) -> str:
    """The only one of ``paths`` that is ``name`` or ends with it, its keys joined by dots or by underscores.

    Errors: InputError where there is none, or several.
    """
    paths = list(paths)
    # The whole path before its ends: ``a.b`` may end another path, too.
    if name in paths:
        return name
    meant = [path for path in paths if is_end(name, path)]
    if len(meant) == 1:
        return meant[0]
    if meant:
        raise place.error(f"{name} may be any of {listed(meant)}; write the whole key")
    last_keys = dict.fromkeys(split_path(path)[-1] for path in paths)
    raise place.error(f"{name} is no key of a scenario{did_you_mean(name, [*last_keys, *paths])}")


def is_end(name: str, path: str) -> bool:
    """Whether ``name`` is the end of a key path, or all of it, its keys joined by dots or by underscores."""
    return name in _ends(path)


@lru_cache(maxsize=4096)
def _ends(path: str) -> frozenset[str]:
    keys = split_path(path)
    ends = [keys[-count:] for count in range(1, len(keys) + 1)]
    # With underscores as well, which is how a column of a table or a keyword argument of Python can be called.
    return frozenset(sign.join(end) for end in ends for sign in "._")
