"""Parts by the name that scenario files use: those of the package, and those that a user's program adds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar


class PartRecord(Protocol):
    """A record of a part."""

    @property
    def name(self) -> str:
        """Its name in scenario files."""


Part = TypeVar("Part", bound=PartRecord)


# A registry and no list in the module, because parts of a user's own come at run time: a notebook registers a
# policy, and the next scenario names it. Whoever asks gets the record and never compares names, so that all
# that is known of a part stands in it. Workers are other processes and do not know what was registered here:
# with such parts all is computed in threads (``own``, ``execution.schedule``).
class Registry(dict[str, Part]):
    """The records of one kind of parts, in the order in which they were added; ``what`` says of which kind."""

    def __init__(self, what: str, parts: Iterable[Part]) -> None:
        super().__init__((part.name, part) for part in parts)
        self._what = what
        # What is registered later is a user's own.
        self._of_the_package = frozenset(self)

    def register(self, part: Part) -> None:
        """Make a part of one's own known to scenarios; it replaces one of the same name, as a notebook's cell needs it.

        Errors: ValueError for the name of a part of the package, and for what no scenario can write.
        """
        # The name is written in YAML, in tables and in names of coordinates.
        if not isinstance(part.name, str) or not part.name or not part.name.isprintable():
            raise ValueError(f"a {self._what} needs a name of one line, not {part.name!r}")
        # Our own cannot be replaced: results are told apart by the names of their parts, and two runs of one
        # scenario would differ without a word.
        if part.name in self._of_the_package:
            raise ValueError(f"there is a {self._what} {part.name} already; give yours another name")
        self[part.name] = part

    @property
    def own(self) -> tuple[str, ...]:
        """The names of those that were added, which other processes do not know."""
        return tuple(name for name in self if name not in self._of_the_package)
