"""A JSON object read key by key: lenient where a value's meaning is clear, refused by name where it is not."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from evaluator.errors import InputError

_FLAGS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


class ConfigEntry:
    """A JSON object; ``where`` stands before the key in errors, and null is as good as absent."""

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, Mapping):
            raise InputError(f"{where or 'an experiment'} must be an object, got {value!r}")
        self.value = value
        self.where = f"{where}." if where else ""

    def number(self, key: str, default: float | None = None, least: float = 0.0) -> float:
        """A finite number of at least ``least``, also as text."""
        given = self.value.get(key)
        if given is None and default is not None:
            return default
        number = as_number(given)
        # NaN, which JSON of Python may have, fails the comparison too.
        if number is None or not least <= number < math.inf:
            raise InputError(f"{self.where}{key} must be a number of at least {least:g}, got {given!r}")
        return number

    def count(self, key: str, default: int | None = None, least: int = 1) -> int:
        """A whole number."""
        number = self.number(key, None if default is None else float(default), float(least))
        if number != int(number):
            raise InputError(f"{self.where}{key} must be an integer, got {number:g}")
        return int(number)

    def said(self, key: str) -> int | None:
        """A whole number; None where there is none."""
        return None if self.value.get(key) is None else self.count(key)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        given = self.value.get(key)
        if given is None and default is not None:
            return default
        if not isinstance(given, str) or not given.strip():
            raise InputError(f"{self.where}{key} must be a text, got {given!r}")
        return given.strip()

    def flag(self, key: str, default: bool) -> bool:
        """A boolean, also as 0, 1, "true" or "no"."""
        given = self.value.get(key)
        if given is None:
            return default
        # "1.0" is what pandas makes of true in a column that has gaps.
        value = _FLAGS.get(str(given).strip().lower().removesuffix(".0"))
        if value is None:
            raise InputError(f"{self.where}{key} must be true or false, got {given!r}")
        return value

    def inner(self, key: str) -> ConfigEntry:
        """The object under a key."""
        return ConfigEntry(self.value.get(key), f"{self.where}{key}")

    def inners(self, key: str) -> list[ConfigEntry]:
        """The objects of a list under a key; one at least."""
        given = self.value.get(key)
        if not isinstance(given, Sequence) or isinstance(given, str) or not given:
            raise InputError(f"{self.where}{key} must be a list of objects, got {given!r}")
        return [ConfigEntry(entry, f"{self.where}{key}[{index}]") for index, entry in enumerate(given)]

    def others(self, read: Iterable[str]) -> list[str]:
        """Keys beside those that are ``read`` that say something."""
        # null, 0, false and empty texts ask for nothing, so that no note is due.
        return [f"{self.where}{key}" for key, value in self.value.items() if key not in read and value]


def as_number(given: Any) -> float | None:
    """A number, also one written as text; None where it is neither."""
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        return None
    try:
        return float(given)
    except (ValueError, OverflowError):
        return None
