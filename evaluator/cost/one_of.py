"""Costs of several forms in one place: which of them counts is known in the run alone.

Pools on one clock may be of devices whose iterations are a roofline, a roofline behind a host that runs ahead, or a fit
to measurements. A compiled loop has one form of cost, while which replica has its turn is a number. So the loop has a
cost of every form, those that are not of the pool at hand with another pool's numbers in them, computes all and keeps
one. A form more costs what its operators cost; a branch instead would cost more under ``vmap``, which takes both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.iteration import BatchStatistics, alike_steps, decode_growth, iteration_time

if TYPE_CHECKING:
    from evaluator.cost.iteration import IterationCost


class OneOf(NamedTuple):
    """An ``IterationCost`` that is one of several; ``which``: the number of the one that counts."""

    forms: tuple[IterationCost, ...]
    which: Batched  # int32

    def chosen(self, values: Sequence[Batched]) -> Batched:
        """The value of the form that counts, of one value for each form."""
        # Values that are not chosen may be of a batch that their form was never fitted to: any number, never an error.
        counted, xp = values[0], array_namespace(self.which, *values)
        for number, value in enumerate(values[1:], 1):
            counted = xp.where(self.which == number, value, counted)
        return counted

    @property
    def log_expert_missed(self) -> Batched:
        """0 in a form without experts, of which then none are touched."""
        return self.chosen([form.log_expert_missed for form in self.forms])

    @property
    def expert_skew(self) -> Batched:
        """As of the one that counts."""
        return self.chosen([form.expert_skew for form in self.forms])

    @property
    def queries(self) -> Batched:
        """Tokens of a decoding sequence in an iteration: those that it verifies, or one."""
        return self.chosen([getattr(form, "queries", 1.0) for form in self.forms])

    def time(self, batch: BatchStatistics) -> Batched:
        """Seconds of one iteration."""
        return self.chosen([iteration_time(form, batch) for form in self.forms])

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer, seconds."""
        return self.chosen([decode_growth(form, batch, window_growing) for form in self.forms])

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds."""
        return self.chosen([alike_steps(form, batch) for form in self.forms])
