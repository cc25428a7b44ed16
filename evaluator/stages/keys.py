"""The scenario keys of a stage, said where its parameters are: in the fields of their dataclass."""

from __future__ import annotations

from dataclasses import MISSING, field, fields
from typing import Any

from evaluator.scenario.fields import (
    REQUIRED,
    Field,
    Place,
    Reader,
    Table,
    choice,
    count,
    flag,
    known,
    many,
    number,
    quantity,
    shown,
    text,
)
from evaluator.scenario.figures import model_reader as model_name
from evaluator.scenario.tables import section

__all__ = [
    "Field",
    "Place",
    "Reader",
    "Table",
    "choice",
    "count",
    "flag",
    "key",
    "known",
    "many",
    "model_name",
    "number",
    "quantity",
    "section",
    "shown",
    "table_of",
    "text",
]

_READ, _SAYS = "read", "says"


def key(read: Reader, default: Any = MISSING, says: str = "") -> Any:
    """A field of a stage's parameters that is a key of the scenario: ``quantity("s", least=0)`` reads 20ms as 0.02.

    Without a ``default`` the key must be there. ``says`` is its description in the JSON Schema.
    """
    return field(default=default, metadata={_READ: read, _SAYS: says})


def table_of(parameters: type) -> Table:
    """The keys of a dataclass of parameters. ValueError for a field that is none."""
    found = {}
    for each in fields(parameters):
        if _READ not in each.metadata:
            raise ValueError(f"{parameters.__name__}.{each.name} says not how it is read; use key(...)")
        default = REQUIRED if each.default is MISSING else each.default
        found[each.name] = Field(each.metadata[_READ], default, each.metadata[_SAYS])
    return found
