"""A host that runs ahead of the device: an iteration takes no less than it needs to dispatch one."""

from __future__ import annotations

from typing import NamedTuple

from evaluator.cost.arrays import Batched, array_namespace
from evaluator.cost.iteration import BatchStatistics, CostParameters, decode_growth, iteration_time


class Dispatched(NamedTuple):
    """The cost of the device, and the least that an iteration takes because the host must dispatch it.

    An ``IterationCost``. While the same sequences decode, their contexts grow, and with them the device's time. As long
    as that is below ``dispatch_s`` all iterations take the same; once above it, it stays above.
    """

    device: CostParameters
    dispatch_s: Batched  # s

    @property
    def log_expert_missed(self) -> Batched:
        """As of the device."""
        return self.device.log_expert_missed

    @property
    def expert_skew(self) -> Batched:
        """As of the device."""
        return self.device.expert_skew

    def time(self, batch: BatchStatistics) -> Batched:
        """The longer of what device and host take, seconds."""
        device_s = iteration_time(self.device, batch)
        return array_namespace(self.dispatch_s, device_s).maximum(device_s, self.dispatch_s)

    def growth(self, batch: BatchStatistics, window_growing: Batched) -> Batched:
        """By how much the next decode of the same sequences takes longer: by nothing while the host is slower."""
        spare_s = self.dispatch_s - iteration_time(self.device, batch)
        growth_s = decode_growth(self.device, batch, window_growing)
        return array_namespace(spare_s, growth_s).where(spare_s > 0.0, 0.0, growth_s)

    def steps(self, batch: BatchStatistics) -> Batched:
        """For how many decodes that holds: up to the last in which the device is not slower than the host.

        The device's growth is taken as if no context had reached its window, where it is largest. The number may
        therefore be too small, which is harmless: the engine ends its leap early and asks again.
        """
        spare_s = self.dispatch_s - iteration_time(self.device, batch)
        # 1e-30: a batch without decodes does not grow, and any number of steps is right.
        fastest_s = decode_growth(self.device, batch, batch.decodes)
        xp = array_namespace(spare_s, fastest_s)
        ahead = 1.0 + xp.floor(xp.minimum(spare_s / xp.maximum(fastest_s, 1e-30), 1e9))
        # Once the device is the slower it stays so, since contexts only grow: its own growth holds for good.
        return xp.where(spare_s > 0.0, ahead, float("inf"))
