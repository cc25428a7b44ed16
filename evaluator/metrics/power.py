"""The power of a device by what it does: 1 - (1 - busy) exp(-bytes MBU - flops MFU) of its TDP.

MFU and MBU are here of all that kernels execute: where they fill experts up with rows of no token (``IdealTimes``),
these count, as they do not in the MFU that a result states.

The more a device does, the less each further byte or FLOP adds: it comes near its TDP, which clocks keep it from
exceeding. Both laws are fitted by ``python -m tests.benchmarks.power``.

* A100: the 200 runs of Splitwise (Patel et al., ISCA 2024, arXiv:2311.18677; perf_model.csv of splitwise-sim) that have
  the mean power of an A100 SXM: Llama-2-70B on 2, 4 and 8 and BLOOM-176B on 8 of them, batches of 1 to 16, prompts of
  128 to 4,096 tokens. The mean absolute error is 1.9 % of the TDP. Decoding of one sequence takes 43 to 74 % of the
  TDP, the less the more devices share the model; prefill of long prompts takes all of it.
* H100: 162 batches of chat that were held full (ML.ENERGY, vLLM 0.11.1, ml-energy/leaderboard @ 0cd52da): 8 to 1,024
  sequences of 15 models on 1 to 8 H100 SXM, which take 33 to 99 % of the TDP. The mean absolute error is 7.1 % of the
  power, of models left out 7.8 %; in 16 bits 7.4 %, in fp8 6.1 %.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class PowerLaw(NamedTuple):
    """``busy`` is the part of the TDP that anything running takes; the others say how fast the rest follows."""

    busy: float
    bytes: float  # for all of the memory's bandwidth
    flops: float  # for all of the dense 16-bit FLOP/s


A100 = PowerLaw(busy=0.1825, bytes=1.721, flops=2.509)
H100 = PowerLaw(busy=0.235, bytes=1.231, flops=5.048)
LAWS = {"ampere": A100, "ampere-ga102": A100}
"""Laws by architecture. Of other ones, newer or of other makers, nothing is measured: they have the H100's."""


def power_law(architecture: str) -> PowerLaw:
    """That of a device of this architecture (``Hardware.architecture``)."""
    return LAWS.get(architecture, H100)


def as_formula(law: PowerLaw) -> str:
    """The part of the TDP in words."""
    return f"1 - {1 - law.busy:.4g} exp(-{law.bytes} MBU - {law.flops} MFU)"


def busy_power(
    power_w: np.ndarray, idle_power_w: np.ndarray, law: np.ndarray, mfu: np.ndarray, mbu: np.ndarray
) -> np.ndarray:
    """Watts of a device that works at a mean MFU and MBU; NaN where any of them is not known.

    ``law`` has the figures of a ``PowerLaw`` as its last axis, the others are of one shape with what is before it.
    ``power_w`` is the TDP, the most a device takes; it takes no less than ``idle_power_w``.
    """
    busy, moved, computed = np.moveaxis(np.asarray(law), -1, 0)
    return np.maximum(power_w * (1.0 - (1.0 - busy) * np.exp(-moved * mbu - computed * mfu)), idle_power_w)
