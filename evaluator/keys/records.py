"""Records that say their keys: a key, its reader, its default and its sentence stand on the field that it fills.

    @dataclass(frozen=True)
    class Tool:
        seconds: float = key(quantity("s", least=0), says="What a call takes, or its mean.")
        servers: int | None = key(count(), None, "Calls at a time; any number where absent.")

``table_of`` makes of such a dataclass the table by which a section of a file is read (``sections.section``). The JSON
Schema, the typed forms for Python and the names of coordinates follow from the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from functools import cache
from typing import Any

from evaluator.catalog.what_if import WhatIf
from evaluator.keys.readers import REQUIRED, Key, Reader, Table

_KEY, _KINDS = "key", "kinds"


def key(
    read: Reader, default: Any = MISSING, says: str = "", *, absent: Any = MISSING, kinds: tuple[str, ...] = ()
) -> Any:
    """A field of a record that is a key of the scenario: ``quantity("s", least=0)`` reads 20ms as 0.02.

    ``default`` is that of the record; without one the key must be there. ``absent`` is what the field holds where a
    file does not say the key, if that is another value (``REQUIRED``: a file must say it): None for what follows from
    other keys. ``says`` is its description in the JSON Schema. ``kinds``: of a record whose first field tells several
    kinds apart, those that have the key.
    """
    # Two defaults: a record made in Python has its field's default, a file without the key may mean something else,
    # such as None for "what the engine does", which ``engine_defaults`` then fills in.
    without_key = (REQUIRED if default is MISSING else default) if absent is MISSING else absent
    metadata = {_KEY: Key(read, without_key, says), _KINDS: kinds}
    if isinstance(default, dict):  # which dataclasses refuse, lest records share it
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def no_key(default: Any = MISSING) -> Any:
    """A field of a record that no key fills."""
    metadata = {_KEY: None}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@cache  # asked again each time that such a section is read
def table_of(record: type, kind: str | None = None) -> Table:
    """The keys of a record, those that must be there first; of one of several kinds those that ``kind`` has.

    Errors: ValueError for a field that does not say how it is read.
    """
    table = {}
    # A field without ``key`` or ``no_key`` is refused, since a record that takes it silently would have a field that
    # no file can set and no schema shows.
    for name, metadata in ((entry.name, entry.metadata) for entry in fields(record)):
        if _KEY not in metadata:
            raise ValueError(f"{record.__name__}.{name} says not how it is read; use key(...)")
        if metadata[_KEY] is not None and (kind is None or kind in metadata[_KINDS]):
            table[name] = metadata[_KEY]
    # Python has fields without a default first, but a subclass may add a key that must be there behind others.
    return dict(sorted(table.items(), key=lambda entry: entry[1].default is not REQUIRED))


def written(value: Any) -> Any:
    """A value that was read as the tree it could have been read from, in SI units.

    A record that is written otherwise than as a section of its keys has a method ``written`` of its own.
    """
    # First: such a record is a dataclass, too, whose fields are no keys of the file (``process`` chooses those
    # of arrivals).
    if hasattr(value, "written"):
        return value.written()
    if isinstance(value, WhatIf):
        return value.parameters
    if isinstance(value, tuple):
        return [written(entry) for entry in value]
    if isinstance(value, Mapping):
        # None for an empty mapping: the key is then as absent as it was, and reading it again gives the same.
        return {name: written(entry) for name, entry in value.items()} or None
    if hasattr(value, "__dataclass_fields__"):
        record: Any = type(value)
        return {name: written(getattr(value, name)) for name in table_of(record)}
    return value
