"""The measured requests of a chunk: which values count, as the warm-up does not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """``common`` are the measured requests where they are the same for all configurations and seeds, so that the others
    are cut off; else ``mask`` (config, seed, request) says it, and the values of the others are NaN, which statistics
    leave out.
    """

    common: np.ndarray | slice | None
    mask: np.ndarray

    @staticmethod
    def of(measured: np.ndarray) -> Window:
        """Of a mask (request,) or one that broadcasts to (config, seed, request). Errors: ValueError without any."""
        count = measured.sum(axis=-1)
        if not np.all(count):
            raise ValueError("no measured request: the warm-up must be shorter than the run")
        if measured.ndim > 1 and measured.size != measured.shape[-1]:
            return Window(None, measured)
        mask = measured.reshape(-1)
        start = mask.size - int(mask.sum())
        return Window(slice(start, None) if mask[start:].all() else mask, mask)  # a slice copies nothing

    @property
    def count(self) -> np.ndarray:
        """How many are measured, float64, (config, seed) or one number."""
        return self.mask.sum(axis=-1, dtype=np.float64)

    def cut(self, values: np.ndarray) -> np.ndarray:
        """The values (config, seed, request) that count: without the others, or with NaN in their places."""
        return np.where(self.mask, values, np.nan) if self.common is None else values[..., self.common]

    def total(self, values: np.ndarray) -> np.ndarray:
        """Sum over the measured requests, float64."""
        if self.common is None:
            return np.where(self.mask, values, 0).sum(axis=-1, dtype=np.float64)
        return np.asarray(values)[..., self.common].sum(axis=-1, dtype=np.float64)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Maximum over the measured requests."""
        cut = self.cut(values)
        return np.nanmax(cut, axis=-1) if self.common is None else cut.max(axis=-1)

    def least(self, values: np.ndarray) -> np.ndarray:
        """Minimum over the measured requests."""
        cut = self.cut(values)
        return np.nanmin(cut, axis=-1) if self.common is None else cut.min(axis=-1)
