"""What replicas take that differ in nothing but how fast their devices are: of one of them, or of many at once.

A sweep over figures of a device has as many replicas as designs, and the same operators in all of them. Folding them
(``cost.fold``) is arithmetic on some forty short arrays, whose overhead in Python is the same for one device as for a
hundred. So a replica folds its own costs only when it is asked for them, and the engine, which runs many lanes at once,
asks for those of all its lanes together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from weakref import WeakValueDictionary

from evaluator.catalog.calibration import Calibration
from evaluator.catalog.hardware import Hardware
from evaluator.catalog.model import Model
from evaluator.cost.coefficients import mesh, reach
from evaluator.cost.feed_forward_apart import Apart, ping_pong, sides
from evaluator.cost.fitted import iteration_cost, iteration_costs
from evaluator.cost.host import with_layers
from evaluator.cost.iteration import IterationCost
from evaluator.cost.kernel import Operator
from evaluator.cost.lanes import stack
from evaluator.cost.operators import operators
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.cost.rates import has_fp4
from evaluator.cost.speculative import speculative_cost
from evaluator.cost.utilisation import IdealTime, IdealTimes, ideal_times_of
from evaluator.replica.drafts import Drafter


@dataclass(frozen=True, eq=False)
class Costing:
    """A model under a calibration, split over devices like ``hardware``: as many on each link, fp4 where it has it."""

    model: Model
    calibration: Calibration
    precision: Precision
    parallel: Parallel
    hardware: Hardware
    drafts: Drafter | None = None
    apart: Apart | None = None

    @cached_property
    def typical(self) -> tuple[IterationCost, ...]:
        """The costs on ``hardware``, for their structure: other devices give the same rows with other numbers."""
        return self.costs(self.hardware)

    def costs(self, hardware: Hardware) -> tuple[IterationCost, ...]:
        """The iteration costs of the pipeline ranks on such a device."""
        return tuple(self.cost(hardware, pipeline_rank) for pipeline_rank in self._ranks)

    def cost(self, hardware: Hardware, pipeline_rank: int | None = None) -> IterationCost:
        """The iteration cost of a pipeline rank, of the last one with the time of what drafts; None: of all layers."""
        by = self.drafts
        if self.apart is not None:
            return ping_pong(self.model, hardware, self.calibration, self.precision, self.parallel, self.apart)
        if by is None:
            split = self.model, hardware, self.calibration, self.precision, self.parallel
            return iteration_cost(*split, pipeline_rank)
        drafted = by.operators if self._is_last(pipeline_rank) else None
        tokens, vocabulary = by.drafting.tokens, self.model.vocabulary
        cost = speculative_cost(self.operators(pipeline_rank), drafted, tokens, vocabulary, hardware, self.calibration)
        # ``iteration_cost`` does this for plain costs. Only the model waits for the host: drafts are launched in one
        # go.
        launched = with_layers(cost.target, self.model, self.calibration, self.parallel, pipeline_rank)
        return cost._replace(target=launched)

    def operators(self, pipeline_rank: int | None = None) -> tuple[Operator, ...]:
        """Operators of a pipeline rank (None: of all layers); the last rank has those for what drafts as well."""
        rank_operators = operators(self.model, self.precision, self.parallel, pipeline_rank)
        return (
            (*rank_operators, *self.drafts.joins)
            if self.drafts is not None and self._is_last(pipeline_rank)
            else rank_operators
        )

    def _is_last(self, pipeline_rank: int | None) -> bool:
        return pipeline_rank in (None, self.parallel.pipeline - 1)

    def costs_on(self, devices: Sequence[Hardware]) -> tuple[IterationCost, ...]:
        """The costs on many such devices, with a trailing axis ``device`` in every field."""
        if self.drafts is not None or self.apart is not None:
            # Several folds, of the model and of what drafts, have no form for many devices: each device is folded by
            # itself.
            ranks = zip(*(self.costs(device) for device in devices), strict=True)
            return tuple(stack(costs) for costs in ranks)
        split = self.model, devices, self.calibration, self.precision, self.parallel
        return tuple(iteration_costs(*split, pipeline_rank) for pipeline_rank in self._ranks)

    def ideals_on(self, devices: Sequence[Hardware]) -> list[IdealTimes]:
        """For each device its work in seconds at its peaks, summed over the pipeline ranks."""
        # Of the model alone: drafts are work that nobody asked for, which MFU and MBU are not to count.
        asked = self._ideals(replace(self.model, filled_rows=0.0) if self.model.filled_rows else self.model, devices)
        executed = self._ideals(self.model, devices) if self.model.filled_rows else asked
        return [IdealTimes(*of_asked, *of_kernels) for of_asked, of_kernels in zip(asked, executed, strict=True)]

    def _ideals(self, model: Model, devices: Sequence[Hardware]) -> list[tuple[IdealTime, IdealTime]]:
        if self.apart is not None:
            return _of_both(self, model, self.apart, devices)
        ideals = ideal_times_of(operators(model, self.precision, self.parallel), devices, model.filled_rows)
        if self.parallel.prefill == 1:
            return ideals
        # Operators are by the token of every rank that splits prompts: a device computes one of so many.
        return [
            (_of_rank(flops, self.parallel.prefill), _of_rank(moved, self.parallel.prefill)) for flops, moved in ideals
        ]

    @property
    def _ranks(self) -> Sequence[int | None]:
        # A single rank has all layers, which ``operators`` knows as None.
        return range(self.parallel.pipeline) if self.parallel.pipeline > 1 else (None,)


_OF_WEIGHTS = ("iteration_s", "experts_touched_s")
"""Terms of an iteration that go by its weights, which each device reads of its own, however the tokens are shared."""


def _of_rank(ideal: IdealTime, ranks: int) -> IdealTime:
    """The times of one device where so many ranks share the tokens of an iteration, and each reads the weights."""
    return ideal._replace(**{name: value / ranks for name, value in ideal._asdict().items() if name not in _OF_WEIGHTS})


def _of_both(of: Costing, model: Model, apart: Apart, devices: Sequence[Hardware]) -> list[tuple[IdealTime, IdealTime]]:
    """Of a device in the mean over those for attention and those for feed-forwards, which share the tokens."""
    attention, feed_forward, ends = sides(model, of.precision, of.parallel, apart)
    all_devices = apart.ranks * of.parallel.tensor + apart.devices

    def mean(attention_s: IdealTime, feed_forward_s: IdealTime) -> IdealTime:
        # A token is computed by the devices of one rank and by one device for feed-forwards, in whole; weights are read
        # by all of them.
        return IdealTime(
            *(
                (of_attention * apart.ranks * of.parallel.tensor + of_feed_forward * apart.devices) / all_devices
                if name in _OF_WEIGHTS
                else (of_attention * of.parallel.tensor + of_feed_forward) / all_devices
                for name, of_attention, of_feed_forward in zip(
                    IdealTime._fields, attention_s, feed_forward_s, strict=True
                )
            )
        )

    of_attention = ideal_times_of((*attention, *ends), devices)
    pairs = zip(of_attention, ideal_times_of(feed_forward, devices, model.filled_rows), strict=True)
    # First the times at peak FLOPs, then those at peak bandwidth.
    return [
        (mean(attention_s[0], feed_forward_s[0]), mean(attention_s[1], feed_forward_s[1]))
        for attention_s, feed_forward_s in pairs
    ]


def costing(
    model: Model,
    calibration: Calibration,
    precision: Precision,
    parallel: Parallel,
    hardware: Hardware,
    drafts: Drafter | None = None,
    apart: Apart | None = None,
) -> Costing:
    """The costing of a replica on such a device; one object for as long as any replica has it.

    Model and calibration are known by their identity (``id``), which stays theirs while the costing holds them.
    """
    drafting = None if drafts is None else drafts.drafting
    # All of a device that decides which operators there are: which links collectives cross, and what fp4
    # products fall back to.
    built_for = reach(hardware), mesh(hardware), has_fp4(hardware)
    # A model hashes by all of its layers, which would take longer than most of what is found here.
    key = (id(model), id(calibration), precision, parallel, *built_for, drafting, apart)
    # Weakly held: of a sweep with a thousand models the costings go with their designs.
    alive = _COSTINGS.get(key)
    if alive is None:
        alive = _COSTINGS[key] = Costing(model, calibration, precision, parallel, hardware, drafts, apart)
    return alive


_COSTINGS: WeakValueDictionary[Hashable, Costing] = WeakValueDictionary()
