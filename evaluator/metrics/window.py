"""The measured requests of a chunk: which values count, as the warm-up does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """``common`` are the measured requests where they are the same for all configurations and seeds, so that the others
    are cut off; else ``mask`` (config, seed, request) says it, and the values of the others are NaN, which statistics
    leave out.

    ``later`` (config, seed, common request) are those of the common ones that do count, where some do not: runs whose
    transient goes beyond the warm-up.
    """

    common: np.ndarray | slice | None
    mask: np.ndarray
    later: np.ndarray | None = None

    @staticmethod
    def of(measured: np.ndarray, first: np.ndarray | None = None) -> Window:
        """The window of a mask, (request,) or of a shape that broadcasts to (config, seed, request).

        ``first`` (config, seed): numbers of the requests with which the statistics start, where that is later.
        Errors: ValueError without any measured request.
        """
        count = measured.sum(axis=-1)
        # A statistic of nothing would be NaN without a word.
        if not np.all(count):
            raise ValueError("no measured request: the warm-up must be shorter than the run")
        if measured.ndim > 1 and measured.size != measured.shape[-1]:
            return Window(None, measured)
        mask = measured.reshape(-1)
        start, size = int(np.argmax(mask)), int(mask.sum())
        common = slice(start, start + size) if mask[start : start + size].all() else mask  # a slice copies nothing
        later = None if first is None else np.arange(mask.size)[common] >= first[..., None]
        return Window(common, mask, later)

    @property
    def start(self) -> int:
        """The first measured request of any configuration."""
        return int(np.argmax(self.mask.reshape(-1, self.mask.shape[-1]).any(axis=0)))

    @property
    def end(self) -> int:
        """The number behind the last measured request of any configuration."""
        measured = np.atleast_1d(self.mask.reshape(-1, self.mask.shape[-1]).any(axis=0))
        return measured.size - int(np.argmax(measured[::-1]))

    @property
    def count(self) -> np.ndarray:
        """How many are measured, float64, (config, seed) or one number."""
        return (self.mask if self.later is None else self.later).sum(axis=-1, dtype=np.float64)

    def counted(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which requests count, boolean of this shape (config, seed, request)."""
        if self.common is None:
            return np.broadcast_to(self.mask, shape)
        counted = np.zeros(shape, dtype=bool)
        counted[..., self.common] = True if self.later is None else self.later
        return counted

    def cut(self, values: np.ndarray) -> np.ndarray:
        """The values (config, seed, request) that count: without the others, or with NaN in their places."""
        return self._cut(values, np.nan)

    def blank(self, values: np.ndarray) -> np.ndarray:
        """Values made of such that were cut, with NaN again in the places of those that do not count."""
        counted = self.mask if self.common is None else self.later
        return values if counted is None else np.where(counted, values, np.nan)

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum over the measured requests, float64."""
        return self._cut(np.asarray(values), 0).sum(axis=-1, dtype=np.float64)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Maximum over the measured requests."""
        return self._cut(values, -np.inf).max(axis=-1)

    def least(self, values: np.ndarray) -> np.ndarray:
        """Minimum over the measured requests."""
        return self._cut(values, np.inf).min(axis=-1)

    def _cut(self, values: np.ndarray, other: float) -> np.ndarray:
        if self.common is None:
            return np.where(self.mask, values, other)
        inside = values[..., self.common]
        return inside if self.later is None else np.where(self.later, inside, other)
