"""Timing programs: warm, repeated until the clock resolves them, with their spread."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Effort:
    """How long to measure.

    A sample lasts ``sample_s`` or more; samples are taken until there are ``samples`` and they last ``total_s``
    together, or a few that last five times as long. Calls expected to take more than ``longest_s`` are left out.
    """

    sample_s: float
    samples: int
    total_s: float
    longest_s: float
    fastest: bool = False  # whether the fastest sample counts, not the median

    def shared(self) -> Effort:
        """The same on a processor that other programs use too: they only ever add time, and leave short gaps."""
        return replace(self, sample_s=self.sample_s / 10, samples=4 * self.samples, fastest=True)


THOROUGH = Effort(sample_s=0.02, samples=9, total_s=0.3, longest_s=0.5)
HASTY = Effort(sample_s=0.005, samples=5, total_s=0.03, longest_s=0.1)
FEW = 3


@dataclass(frozen=True)
class Timing:
    """Seconds of one program: median over samples (or the fastest), and the median absolute deviation from it."""

    time_s: float
    spread_s: float
    samples: int
    programs: int  # in a sample


def time_programs(
    run: Callable[[int], object], effort: Effort, clock: Callable[[], float] = time.perf_counter
) -> Timing:
    """Time one program where ``run(count)`` runs ``count`` of them one after another and waits for the last.

    The first run, which loads the program, is thrown away. Then counts grow until a sample is long enough; these runs
    warm the device and are thrown away too.
    """

    def sample(count: int) -> float:
        start = clock()
        run(count)
        return clock() - start

    # The first run loads the program onto the device.
    run(1)
    count, taken = 1, sample(1)
    while taken < effort.sample_s:
        # At most tenfold a step: one slow sample by chance must not make the next a minute long.
        count = max(count + 1, math.ceil(count * min(10.0, 1.2 * effort.sample_s / max(taken, 1e-9))))
        taken = sample(count)
    times: list[float] = []
    # Samples of long calls are few, but then they take long enough together.
    while not (_enough(times, effort.samples, effort.total_s) or _enough(times, FEW, 5 * effort.total_s)):
        times.append(sample(count))
    seconds = float(np.min(times) if effort.fastest else np.median(times))
    return Timing(seconds / count, float(np.median(np.abs(np.array(times) - seconds))) / count, len(times), count)


def _enough(times: list[float], samples: int, total_s: float) -> bool:
    return len(times) >= samples and sum(times) >= total_s
