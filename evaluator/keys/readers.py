"""Readers of single values: what a key may hold, and the message where it holds something else.

A reader takes the raw value and its ``Place`` and returns the value in SI units, or raises InputError; it knows, too,
what a JSON Schema says of such values. Readers are made by the small functions below and by those of ``sections``; a
new key is one line on the record that it fills (``records.key``).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from typing import Any, NamedTuple

from evaluator.errors import InputError
from evaluator.units import parse_quantity, pattern


@dataclass(frozen=True)
class Place:
    """Where a value stands: file, key path and, in a sweep, which value of which axis (``note``).

    ``notes`` are for single key paths: the column of a table in which they stand. ``folder`` is where the files that
    values name are looked for before the current directory.
    """

    file: str
    path: str = ""
    note: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None

    def key(self, name: object) -> Place:
        """The place of one key below this one."""
        path = f"{self.path}.{name}" if self.path else str(name)
        return Place(self.file, path, self.note, self.notes, self.folder)

    def item(self, index: int) -> Place:
        """The place of one entry of the list here."""
        return Place(self.file, f"{self.path}[{index}]", self.note, self.notes, self.folder)

    def noted(self, note: str) -> Place:
        """The top of the scenario, with a note of its own in messages."""
        return Place(self.file, note=note, folder=self.folder)

    def __str__(self) -> str:
        # The note of the key before that of the axis: a column of a table says more than the row's name.
        return (f"{self.file}: {self.path}" if self.path else self.file) + self.notes.get(self.path, self.note)

    def error(self, message: str) -> InputError:
        """The exception to raise for what is wrong here."""
        return InputError(f"{self}: {message}")


Schema = Mapping[str, Any]
"""A JSON Schema (draft 2020-12) as a plain mapping."""


@dataclass(frozen=True)
class Reader:
    """How a value is read. ``schema`` is what a JSON Schema says of it, or gives that when it is called."""

    read: Callable[[Any, Place], Any]
    schema: Schema | Callable[[], Schema]

    def __call__(self, value: Any, place: Place) -> Any:
        return self.read(value, place)

    @property
    def whole(self) -> bool:
        """Whether only integers can be read."""
        # From the schema, which every reader has anyway: a second word for the same could be forgotten.
        return not callable(self.schema) and self.schema.get("type") == "integer"


# A dot before a digit belongs to the name (slo.ttft.p99.9): no key starts with a digit.
_DOT = re.compile(r"\.(?![0-9])")


@lru_cache(maxsize=4096)
def split_path(path: str) -> tuple[str, ...]:
    """``a.b.p99.9`` -> (a, b, p99.9)."""
    return tuple(_DOT.split(path))


class _Required:
    def __repr__(self) -> str:
        return "required"


# An object of its own, since None is what many keys mean where they are absent; its ``repr`` is what messages show.
REQUIRED: Any = _Required()


def schema_of(read: Reader) -> Schema:
    """The JSON Schema of what a reader reads."""
    return read.schema() if callable(read.schema) else read.schema


class Key(NamedTuple):
    """One key: how it is read, its final value (already read) where it is absent, and what it ``says`` to a person."""

    read: Reader
    default: Any = REQUIRED
    says: str = ""


Table = Mapping[str, Key]
"""The keys of a section, in the order in which messages and the schema list them."""

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 120
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 12
_SHORT.maxlevel = 4


def shown(value: Any) -> str:
    """The value in a message: as Python writes it, cut where it is long."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not write integers of more than 4,300 digits
        return "a number of thousands of digits"


def did_you_mean(name: object, words: Iterable[str]) -> str:
    """' (did you mean X?)' or nothing."""
    # Cut: the time goes with the square of the length, and a value pasted in the place of a key may be long.
    close = difflib.get_close_matches(str(name)[:100], list(words), n=1, cutoff=0.6)
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

    plain = {"type": "number", **_bounds(above, least, None)}
    return Reader(read, {"anyOf": [plain, {"type": "string", "pattern": pattern(unit)}]})


def number(above: float | None = None, least: float | None = None, most: float | None = None) -> Reader:
    """A plain float without a unit, within the bounds."""

    def read(value: Any, place: Place) -> float:
        # ``Real`` and not ``int | float``: NumPy's numbers come from notebooks.
        if isinstance(value, bool) or not isinstance(value, Real):
            raise place.error(f"expected a number, got {shown(value)}")
        try:
            result = float(value)
        except OverflowError:  # an integer beyond all floats
            result = math.inf
        if not math.isfinite(result):
            raise place.error(f"{shown(value)} is not a finite number")
        return _bounded(result, value, place, above, least, most)

    return Reader(read, {"type": "number", **_bounds(above, least, most)})


def count(least: int = 1, most: int = 10**9, remedy: str = "") -> Reader:
    """An integer within the bounds; a float without a fraction (4e6) is one too. ``remedy``: what to do beyond them."""

    def read(value: Any, place: Place) -> int:
        # YAML reads 4e6 as a float, and people write counts so. True is an int in Python and none here.
        whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
        if isinstance(value, bool) or not whole:
            raise place.error(f"expected an integer, got {shown(value)}")
        result = int(value)
        if not least <= result <= most:
            advice = f"; {remedy}" if remedy and result > most else ""
            raise place.error(f"must be an integer from {least} to {most}, got {shown(value)}{advice}")
        return result

    return Reader(read, {"type": "integer", "minimum": least, "maximum": most})


def count_or(word: str) -> Reader:
    """A whole number from 1 on, or a word that stands for another."""
    whole = count()

    def read(value: Any, place: Place) -> int | str:
        if isinstance(value, str) and value != word:
            raise place.error(f"expected an integer or {word}, got {shown(value)}")
        return word if value == word else whole(value, place)

    return Reader(read, {"anyOf": [{"const": word}, whole.schema]})


def _bounds(above: float | None, least: float | None, most: float | None) -> dict[str, float]:
    given = {"exclusiveMinimum": above, "minimum": least, "maximum": most}
    return {name: bound for name, bound in given.items() if bound is not None}


def _bounded(
    result: float, value: Any, place: Place, above: float | None, least: float | None, most: float | None
) -> float:
    # ``not >`` rather than ``<=``: NaN compares false, and must not pass any bound.
    if above is not None and not result > above:
        raise place.error(f"must be greater than {above:g}, got {shown(value)}")
    if least is not None and not result >= least:
        raise place.error(f"must be at least {least:g}, got {shown(value)}")
    if most is not None and not result <= most:
        raise place.error(f"must be at most {most:g}, got {shown(value)}")
    return result


def _text(value: Any, place: Place) -> str:
    if not isinstance(value, str) or not value.strip():
        raise place.error(f"expected a name, got {shown(value)}")
    return value


def _file_name(value: Any, place: Place) -> str:
    name = _text(value, place)
    if "/" in name or "\\" in name or not name.isprintable():
        raise place.error(
            f"names the files of the results, so it holds no slash, line end or control character, got {shown(name)}"
        )
    return name


text = Reader(_text, {"type": "string", "pattern": r"\S"})
"""A string that is not empty."""

file_name = Reader(_file_name, {"type": "string", "pattern": r"^(?=.*\S)[^/\\\n]+$"})
"""A string that results can be named after."""


def _flag(value: Any, place: Place) -> bool:
    if not isinstance(value, bool):
        raise place.error(f"expected true or false, got {shown(value)}")
    return value


flag = Reader(_flag, {"type": "boolean"})
"""True or False."""


def choice(*allowed: str) -> Reader:
    """One of the words ``allowed``."""

    def read(value: Any, place: Place) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        raise place.error(f"{shown(value)} is not one of {listed(allowed)}{did_you_mean(value, allowed)}")

    return Reader(read, {"enum": list(allowed)})


def many(read: Reader) -> Reader:
    """A list, not empty and without repetitions, of what ``read`` reads; a tuple."""

    def read_list(value: Any, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or not value:
            raise place.error(f"expected a list such as [0, 1, 2], got {shown(value)}")
        items = tuple(read(entry, place.item(index)) for index, entry in enumerate(value))
        if len(set(items)) < len(items):
            raise place.error(f"the same value is there twice: {shown(value)}")
        return items

    return Reader(read_list, {"type": "array", "items": read.schema, "minItems": 1, "uniqueItems": True})


def known(load: Callable[[str], Any], names: Callable[[], list[str]]) -> Reader:
    """A name that ``load`` (of the catalog) accepts, with its own message at the place. ``names``: all of them."""

    def read(value: Any, place: Place) -> str:
        name = text(value, place)
        try:
            # Loaded and not only looked for: a file that is there may be wrong, and its message comes here
            # rather than in the plan.
            load(name)
        except InputError as error:
            raise place.error(str(error)) from None
        return name

    def schema() -> Schema:
        return {"anyOf": [{"enum": names()}, {"type": "string", "pattern": r"\.ya?ml$"}]}

    return Reader(read, schema)


def resolve_file(value: Any, place: Place) -> str:
    """The absolute path of a file that a scenario names: in its own folder, else in the current directory."""
    name = text(value, place)
    folders = (Path.cwd(),) if place.folder is None else (place.folder, Path.cwd())
    tried = list(dict.fromkeys(folder / Path(name).expanduser() for folder in folders))
    for path in tried:
        if path.is_file():
            # Absolute, because workers and shards run in other folders, and because the path is a part of the
            # sweep's fingerprint.
            return str(path.resolve())
    raise place.error(f"there is no such file: {name} (looked for {listed(tried)})")


file_there = Reader(resolve_file, text.schema)
"""The name of a file that is there, as its absolute path."""
