"""Sections of keys: how a mapping is read by its table, and how a record is made of one that was read before.

``Section`` and ``Named`` say what lies below them, so that a sweep reads only the key that it sets, however deep it
lies, and builds the records around it from values that all its points share. ``Variant`` is read as a whole: which
keys it takes depends on one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from evaluator.errors import InputError
from evaluator.keys.readers import (
    REQUIRED,
    Key,
    Place,
    Reader,
    Schema,
    Table,
    choice,
    did_you_mean,
    listed,
    schema_of,
    shown,
)
from evaluator.keys.records import table_of
from evaluator.records import with_fields

Check = Callable[[Any, Place], Any]
"""Gets what was built and its place, and raises InputError where keys do not go together. It may return the record
with what follows from other keys filled in."""


@dataclass(frozen=True)
class Section(Reader):
    """A mapping with the keys of ``table``; what is built of it has an attribute for each of them."""

    table: Table
    build: Callable[..., Any]
    check: Check | None = None

    def rebuilt(self, base: Any, parts: Mapping[str, Any], place: Place) -> Any:
        """What ``base`` is with other ``parts``, by key. Errors: InputError of ``check``."""
        # Parts that are not set are the very objects of ``base``, by whose identity plans of many points are shared.
        if type(base) is self.build and not hasattr(self.build, "__post_init__"):
            return _checked(with_fields(base, **parts), self.check, place)
        # ``build`` may be a function that makes another record of the same keys.
        values = {key: parts[key] if key in parts else getattr(base, key) for key in self.table}
        return _checked(self.build(**values), self.check, place)

    def names(self, base: Any) -> Iterable[str]:
        """The keys below."""
        return self.table

    def below(self, base: Any, name: str) -> tuple[Reader, Any]:
        """How a key is read, and its value in ``base``."""
        return self.table[name].read, getattr(base, name)


@dataclass(frozen=True)
class Named(Reader):
    """A mapping from names of the user's own to sections of one kind (pools). A name with null is as good as absent."""

    entry: Reader
    check: Check | None = None

    def rebuilt(self, base: Mapping[str, Any], parts: Mapping[str, Any], place: Place) -> Mapping[str, Any]:
        """What ``base`` is with other ``parts``, by name. Errors: InputError of ``check``."""
        whole = {name: value for name, value in {**base, **parts}.items() if value is not None}
        return _checked(whole, self.check, place)

    def names(self, base: Mapping[str, Any]) -> Iterable[str]:
        """The names in ``base``."""
        return base

    def below(self, base: Mapping[str, Any], name: str) -> tuple[Reader, Any]:
        """How a section is read, and the one of this name in ``base``."""
        return self.entry, base[name]


@dataclass(frozen=True)
class Variant(Reader):
    """A mapping one of whose keys chooses the table of the others. ``keys`` are those of all tables."""

    keys: Table


def _checked(built: Any, check: Check | None, place: Place) -> Any:
    completed = None if check is None else check(built, place)
    return built if completed is None else completed


def section(record: type, check: Check | None = None) -> Section:
    """A mapping with the keys of ``record``, a dataclass that says them (``records.key``), as such a record."""
    return section_of(table_of(record), record, check)


def section_of(table: Table, build: Callable[..., Any], check: Check | None = None) -> Section:
    """A mapping with the keys of ``table``, given to ``build`` as keyword arguments."""

    def read(value: Any, place: Place) -> Any:
        return _checked(build(**read_section(value, table, place)), check, place)

    return Section(read, lambda: section_schema(table), table, build, check)


def optional(table: Table) -> Table:
    """The same keys, None where they are absent; sections are there, unchecked and with nothing but None in them."""
    keys = {}
    for name, entry in table.items():
        if isinstance(entry.read, Section):
            # Without its check, whose rules need values: a section of one pool is complete only with what is
            # said beside the pools.
            below = section_of(optional(entry.read.table), entry.read.build)
            # The record of nothing is made once, when the table is: ``absent`` sections of all pools are one object.
            nothing = below.build(**{key: inner.default for key, inner in below.table.items()})
            keys[name] = Key(below, nothing, entry.says)
        else:
            keys[name] = Key(entry.read, None, entry.says)
    return keys


def absent(record: type) -> Any:
    """The record of a section of which a file says nothing."""
    return record(**{name: entry.default for name, entry in table_of(record).items()})


def whole(reader: Section) -> Variant:
    """The same section, read as a whole also where a sweep sets one of its keys: for keys that mean something only
    beside others, and for those that other sections are checked against."""
    return Variant(reader.read, reader.schema, reader.table)


def named(entry: Reader, check: Check | None = None) -> Named:
    """A mapping, not empty, from names that the user gives to sections that ``entry`` reads; a dict."""

    def read(value: Any, place: Place) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not value:
            raise place.error(f"expected sections by name, got {shown(value)}")
        for name in value:
            # Names become parts of coordinates and of environment variables (``REPLICAS_POOL``), in which no
            # other signs may stand.
            if not isinstance(name, str) or not name.isidentifier():
                raise place.key(name).error("a name is made of letters, digits and _, and begins with no digit")
        given = {name: entry(below, place.key(name)) for name, below in value.items() if below is not None}
        return _checked(given, check, place)

    def schema() -> Schema:
        below = {"anyOf": [schema_of(entry), {"type": "null"}]}
        return {"type": "object", "additionalProperties": below, "minProperties": 1}

    return Named(read, schema, entry, check)


def variant(discriminator: str, tables: Mapping[str, Table], build: Callable[..., Any], says: str = "") -> Variant:
    """A mapping whose key ``discriminator`` chooses the table of its other keys; keys of other tables are refused."""

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, Mapping):
            example = f"{{{discriminator}: {next(iter(tables))}, ...}}"
            raise place.error(f"expected a section such as {example}, got {shown(value)}")
        if value.get(discriminator) is None:
            raise place.key(discriminator).error(f"is required: one of {listed(tables)}")
        name = choice(*tables)(value[discriminator], place.key(discriminator))
        # null takes a key away, so that one of another kind may stand there as null.
        rest = {key: entry for key, entry in value.items() if key != discriminator and entry is not None}
        for key in rest:
            # A key of another kind is a slip of its own: of an unknown one the closest name would be told.
            owners = [owner for owner, table in tables.items() if key in table]
            if owners and name not in owners:
                raise place.key(key).error(
                    f"not a key of {discriminator} {name} (its keys: {listed(tables[name])}); "
                    f"it belongs to {listed(owners)}"
                )
        return build(name, read_section(rest, tables[name], place), place)

    def schema() -> Schema:
        return {"oneOf": [_variant_schema(discriminator, name, table, says) for name, table in tables.items()]}

    every = {key: field for table in tables.values() for key, field in table.items()}
    return Variant(read, schema, {discriminator: Key(choice(*tables), says=says), **every})


def _variant_schema(discriminator: str, name: str, table: Table, says: str) -> Schema:
    below = section_schema(table)
    # ``const`` of one key in each alternative is what editors choose the alternative by.
    first = {discriminator: {"const": name, "description": says}}
    return {**below, "properties": {**first, **below["properties"]}, "required": [discriminator]}


def read_section(value: Any, table: Table, place: Place) -> dict[str, Any]:
    """The values of a mapping by its table; null is as good as absent.

    Errors: InputError for anything but a mapping, an unknown key (with the closest known one) or a missing one.
    """
    if not isinstance(value, Mapping):
        raise place.error(f"expected a section with the keys {listed(table)}, got {shown(value)}")
    # Unknown keys before any value: a slip in a name often makes another key wrong or missing, and is the one
    # to be told.
    for key in value:
        if key not in table:
            raise unknown_key(key, table, place)
    return {key: read_key(value.get(key), key, table, place) for key in table}


def read_key(value: Any, key: str, table: Table, place: Place) -> Any:
    """The value of one key of the section at ``place``: read, or its default where it is null."""
    entry = table[key]
    if value is not None:
        return entry.read(value, place.key(key))
    if entry.default is REQUIRED:
        raise place.key(key).error(f"is required; keys of {place.path or 'a scenario'}: {listed(table)}")
    return entry.default


def unknown_key(name: object, table: Iterable[str], place: Place) -> InputError:
    """The exception for a key that is not in the table."""
    meant = _below(name, table) or did_you_mean(name, table)
    return place.key(name).error(f"unknown key{meant}; allowed here: {listed(table)}")


def _below(name: object, table: Iterable[str]) -> str:
    """Of a message about an unknown key: the sections of the table that have it, one level below."""
    entries = table.items() if isinstance(table, Mapping) else ()
    owners = [key for key, entry in entries if isinstance(entry.read, Section) and name in entry.read.table]
    return f" (did you mean {' or '.join(f'{key}.{name}' for key in owners)}?)" if owners else ""


def key_schema(entry: Key) -> Schema:
    """The JSON Schema of a key, with its description; null stands for the default where there is one."""
    schema = schema_of(entry.read)
    if entry.default is not REQUIRED:
        schema = {"anyOf": [schema, {"type": "null"}]}
    return {"description": entry.says, **schema} if entry.says else schema


def section_schema(table: Table, needed: Iterable[str] | None = None) -> dict[str, Any]:
    """The JSON Schema of a mapping with the keys of ``table``; those that are ``needed`` must be there.

    Without them all may be left out, since a sweep may set what must be there.
    """
    properties = {name: key_schema(entry) for name, entry in table.items()}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema if needed is None else {**schema, "required": list(needed)}


def required(table: Table) -> list[str]:
    """The keys that must be there."""
    return [name for name, entry in table.items() if entry.default is REQUIRED]
