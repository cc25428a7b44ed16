"""The power of a device by what it does: a part of its TDP that grows with the bytes it moves and the FLOPs it does.

Fitted to the 200 runs of Splitwise (Patel et al., ISCA 2024, arXiv:2311.18677; perf_model.csv of splitwise-sim) that
have the mean power of an A100 SXM: Llama-2-70B on 2, 4 and 8 and BLOOM-176B on 8 of them, batches of 1 to 16, prompts
of 128 to 4,096 tokens. The mean absolute error is 2.1 % of the TDP. Decoding of one sequence takes 43 to 74 % of the
TDP, the less the more devices share the model; prefill of long prompts takes all of it.
"""

from __future__ import annotations

import numpy as np

BUSY, BYTES, FLOPS = 0.294, 0.701, 1.032
"""Of the TDP: while anything runs, for all of the memory's bandwidth, and for all of the dense 16-bit FLOP/s."""


def busy_power(power_w: np.ndarray, idle_power_w: np.ndarray, mfu: np.ndarray, mbu: np.ndarray) -> np.ndarray:
    """Watts of a device that works at a mean MFU and MBU; arrays of one shape, NaN where any of them is not known.

    ``power_w`` is the TDP, the most it takes; it takes no less than ``idle_power_w``. What was fitted to an A100 is
    taken for every device, relative to its TDP.
    """
    return np.maximum(power_w * np.minimum(BUSY + BYTES * mbu + FLOPS * mfu, 1.0), idle_power_w)
