"""The prompt chunks of an iteration, as the sums that its time depends on."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from evaluator.stations.engine.common.arrays import Float


class PromptSums(NamedTuple):
    """The ``prefill`` fields of ``BatchStatistics``, in their order."""

    tokens: Float  # prompt tokens computed
    sequences: Float  # prompts with a chunk in this iteration
    area: Float  # tokens attended to, summed over the tokens computed
    window_area: Float  # the same in windowed layers
    context: Float  # KV tokens read
    window_context: Float  # the same in windowed layers

    @classmethod
    def empty(cls) -> PromptSums:
        """No prompt yet."""
        return cls(*(jnp.zeros((), jnp.float64),) * len(cls._fields))

    def add_chunk(self, start: Float, tokens: Float, window: Float | None) -> PromptSums:
        """With positions ``start + 1 .. start + tokens`` of one more prompt; without tokens nothing changes.

        ``window`` is the attention window in tokens, None for a model without windowed layers.
        """
        end, computes = start + tokens, tokens > 0
        sums = self._replace(
            tokens=self.tokens + tokens,
            sequences=self.sequences + computes,
            area=self.area + _area(end) - _area(start),
            context=self.context + jnp.where(computes, end, 0.0),
        )
        if window is None:
            return sums
        context = jnp.where(computes, jnp.minimum(end, tokens + window - 1.0), 0.0)
        return sums._replace(
            window_area=self.window_area + _window_area(end, window) - _window_area(start, window),
            window_context=self.window_context + context,
        )


def _area(n: Float) -> Float:
    """Tokens attended to by positions 1 .. n, summed."""
    return 0.5 * n * (n + 1.0)


def _window_area(n: Float, window: Float) -> Float:
    """The same where no position attends to more than ``window`` tokens."""
    inside = jnp.minimum(n, window)
    return _area(inside) + (n - inside) * window
