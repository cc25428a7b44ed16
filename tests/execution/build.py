"""Interruptions of a run, for tests of what is kept of it."""

from __future__ import annotations


class Interrupting:
    """Ctrl-C after the first chunk."""

    def __init__(self, after: int = 1) -> None:
        self.left = after
        self.kept = 0
        self.notes: list[str] = []

    def expect(self, units: int) -> None:
        pass

    def note(self, text: str) -> None:
        self.notes.append(text)

    def keep(self, units: int) -> None:
        self.kept += units

    def advance(self, units: int = 1) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
