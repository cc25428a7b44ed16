"""Readers of single values and of sections: what a key may hold, and the message where it holds something else.

A reader takes the raw value and its ``Place`` and returns the value in SI units, or raises InputError. Readers are
made by the small functions below and put together in the tables of ``keys``; a new key is one line there.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from evaluator.errors import InputError
from evaluator.units import parse_quantity


@dataclass(frozen=True)
class Place:
    """Where a value stands: file, key path and, in a sweep, which value of which axis (``note``)."""

    file: str
    path: str = ""
    note: str = ""

    def key(self, name: object) -> Place:
        """The place of one key below this one."""
        return Place(self.file, f"{self.path}.{name}" if self.path else str(name), self.note)

    def item(self, index: int) -> Place:
        """The place of one entry of the list here."""
        return Place(self.file, f"{self.path}[{index}]", self.note)

    def __str__(self) -> str:
        return (f"{self.file}: {self.path}" if self.path else self.file) + self.note

    def error(self, message: str) -> InputError:
        """The exception to raise for what is wrong here."""
        return InputError(f"{self}: {message}")


Reader = Callable[[Any, Place], Any]


class _Required:
    def __repr__(self) -> str:
        return "required"


REQUIRED: Any = _Required()


class Field(NamedTuple):
    """One key: how it is read, and its final value (already read) where it is absent."""

    read: Reader
    default: Any = REQUIRED


Table = Mapping[str, Field]


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """' (did you mean X?)' or nothing."""
    close = difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def listed(names: Iterable[object]) -> str:
    """The names as a list in a sentence; 'none' where there are none."""
    return ", ".join(str(name) for name in names) or "none"


def quantity(unit: str, above: float | None = None, least: float | None = None) -> Reader:
    """A float in ``unit`` (a number or a string with a unit), greater than ``above`` or not below ``least``."""

    def read(value: Any, place: Place) -> float:
        if type(value) is float and math.isfinite(value):  # the common case of large sweeps
            return _bounded(value, value, place, above, least, None)
        return _bounded(parse_quantity(value, unit, str(place)), value, place, above, least, None)

    return read


def number(above: float | None = None, least: float | None = None, most: float | None = None) -> Reader:
    """A plain float without a unit, within the bounds."""

    def read(value: Any, place: Place) -> float:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise place.error(f"expected a number, got {value!r}")
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
        if not math.isfinite(result):
            raise place.error(f"{value!r} is not a finite number")
        return _bounded(result, value, place, above, least, most)

    return read


def count(least: int = 1, most: int = 10**9) -> Reader:
    """An integer within the bounds; a float without a fraction (4e6) is one too."""

    def read(value: Any, place: Place) -> int:
        whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise place.error(f"expected an integer, got {value!r}")
        result = int(value)
        if not least <= result <= most:
            raise place.error(f"must be an integer from {least} to {most}, got {value!r}")
        return result

    return read


def _bounded(
    result: float, value: Any, place: Place, above: float | None, least: float | None, most: float | None
) -> float:
    if above is not None and not result > above:
        raise place.error(f"must be greater than {above:g}, got {value!r}")
    if least is not None and not result >= least:
        raise place.error(f"must be at least {least:g}, got {value!r}")
    if most is not None and not result <= most:
        raise place.error(f"must be at most {most:g}, got {value!r}")
    return result


def text(value: Any, place: Place) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"expected a name, got {value!r}")
    return value


def file_name(value: Any, place: Place) -> str:
    """A string that results can be named after."""
    name = text(value, place)
    if any(sign in name for sign in "/\\\0\n"):
        raise place.error(f"names the files of the results, so it holds no slash or line end, got {name!r}")
    return name


def choice(*allowed: str, later: Iterable[str] = ()) -> Reader:
    """One of the words ``allowed``; those in ``later`` are refused as not implemented yet."""
    later = tuple(later)

    def read(value: Any, place: Place) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        if isinstance(value, str) and value in later:
            raise place.error(f"{value} is not implemented yet; use {' or '.join(allowed)}")
        raise place.error(f"{value!r} is not one of {listed(allowed)}{did_you_mean(value, allowed)}")

    return read


def many(read: Reader) -> Reader:
    """A list, not empty and without repetitions, of what ``read`` reads; a tuple."""

    def read_list(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise place.error(f"expected a list such as [0, 1, 2], got {value!r}")
        items = tuple(read(entry, place.item(index)) for index, entry in enumerate(value))
        if len(set(items)) < len(items):
            raise place.error(f"the same value is there twice: {value!r}")
        return items

    return read_list


def known(load: Callable[[str], Any]) -> Reader:
    """A name that ``load`` (of the catalog) accepts; its own message is given with the place."""

    def read(value: Any, place: Place) -> str:
        name = text(value, place)
        try:
            load(name)
        except InputError as error:
            raise place.error(str(error)) from None
        return name

    return read


def section(table: Table, build: Callable[..., Any], later: Iterable[str] = ()) -> Reader:
    """A mapping with the keys of ``table``, given to ``build`` as keyword arguments."""
    later = tuple(later)
    return lambda value, place: build(**read_section(value, table, place, later))


def read_section(value: Any, table: Table, place: Place, later: Iterable[str] = ()) -> dict[str, Any]:
    """The values of a mapping by its table; null is as good as absent. ``later`` are keys refused as not built yet.

    Errors: InputError for anything but a mapping, an unknown key (with the closest known one) or a missing one.
    """
    if not isinstance(value, Mapping):
        raise place.error(f"expected a section with the keys {listed(table)}, got {value!r}")
    for key in value:
        if key not in table:
            raise unknown_key(key, table, place, later)
    return {key: read_key(value.get(key), key, table, place) for key in table}


def read_key(value: Any, key: str, table: Table, place: Place) -> Any:
    """The value of one key of the section at ``place``: read, or its default where it is null."""
    entry = table[key]
    if value is not None:
        return entry.read(value, place.key(key))
    if entry.default is REQUIRED:
        raise place.key(key).error(f"is required; keys of {place.path or 'a scenario'}: {listed(table)}")
    return entry.default


def unknown_key(key: object, table: Iterable[str], place: Place, later: Iterable[str] = ()) -> InputError:
    """The exception for a key that is not in the table."""
    if key in tuple(later):
        return place.key(key).error(f"{key} is not implemented yet; keys that are: {listed(table)}")
    return place.key(key).error(f"unknown key{did_you_mean(key, table)}; allowed here: {listed(table)}")


def variant(discriminator: str, tables: Mapping[str, Table], build: Callable[..., Any]) -> Reader:
    """A mapping whose key ``discriminator`` chooses the table of its other keys; keys of other tables are refused."""

    def read(value: Any, place: Place) -> Any:
        if not isinstance(value, Mapping):
            example = f"{{{discriminator}: {next(iter(tables))}, ...}}"
            raise place.error(f"expected a section such as {example}, got {value!r}")
        if value.get(discriminator) is None:
            raise place.key(discriminator).error(f"is required: one of {listed(tables)}")
        name = choice(*tables)(value[discriminator], place.key(discriminator))
        rest = {key: entry for key, entry in value.items() if key != discriminator and entry is not None}
        for key in rest:
            owners = [owner for owner, table in tables.items() if key in table]
            if owners and name not in owners:
                raise place.key(key).error(
                    f"not a key of {discriminator} {name} (its keys: {listed(tables[name])}); "
                    f"it belongs to {listed(owners)}"
                )
        return build(name, read_section(rest, tables[name], place), place)

    return read


def resolve_file(name: str, folders: Iterable[Path], place: Place) -> str:
    """The absolute path of a file named in a scenario: looked for in ``folders``, in their order."""
    tried = list(dict.fromkeys(folder / Path(name).expanduser() for folder in folders))
    for path in tried:
        if path.is_file():
            return str(path.resolve())
    raise place.error(f"there is no such file: {name} (looked for {listed(tried)})")
