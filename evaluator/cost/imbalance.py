"""How uneven the load of the devices is that hold whole experts: an iteration waits for the one with most visits.

The popularity of experts is gamma-distributed with mean 1 and variance ``skew``, as in ``iteration.experts_touched``.
Which experts a device holds has nothing to do with their popularity, unless a balancer puts them there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

import numpy as np

from evaluator.cost.arrays import Scalar, array_namespace
from evaluator.cost.kernel import Placed


def slowest_share(placed: Placed, skew: Scalar) -> Scalar:
    """Visits of the device that has most of them, in units of the mean over the devices; 1 where ``skew`` is 0.

    Without redundant experts: the expected largest of P sums of m = experts / P gamma variables. Their sum is a gamma
    variable again, of relative variance v = skew / m; its cube root is normal with mean 1 - v/9 and variance v/9
    (Wilson and Hilferty, PNAS 17, 1931), and the moments of the largest of P normal variables are numbers that are
    known. Sampling noise of few tokens is left out: so few are bound by the experts' weights.

    With redundant experts a balancer knows the popularity, copies the most popular ones and packs the copies evenly
    (EPLB, github.com/deepseek-ai/EPLB; vLLM ``enable_eplb``), see ``_balanced_share``.
    """
    if placed.redundant:
        return _balanced_share(placed, float(skew))
    xp = array_namespace(skew)
    ninth = skew * placed.parts / placed.experts / 9.0
    # 1e-30, because the slope of a root at 0 is infinite and would make gradients in ``skew`` NaN.
    deviation = xp.sqrt(ninth + 1e-30)
    first, second, third = _largest_normal(placed.parts)
    mean = 1.0 - ninth
    # The largest gamma variable is the cube of mean + deviation x the largest normal one: its expectation by moments.
    cube = mean**3 + 3.0 * mean**2 * deviation * first + 3.0 * mean * ninth * second + ninth * deviation * third
    return xp.where(skew > 0.0, cube, 1.0)


def busiest(layers: Iterable[Placed | None]) -> tuple[float, float]:
    """``touched_spread`` and ``touched_least`` of ``CostParameters``, of layers that differ in them the most.

    0 where no device waits for another's experts.
    """
    spread = least = 0.0
    for placed in filter(None, layers):
        held = (placed.experts + placed.redundant) / placed.parts
        spread = max(spread, _largest_normal(placed.parts)[0] / math.sqrt(held))
        least = max(least, 1.0 / held)
    return spread, least


@cache
def _largest_normal(count: int) -> tuple[float, float, float]:
    """First three moments of the largest of ``count`` standard normal variables, by quadrature of its density."""
    x = np.linspace(-12.0, 12.0, 48001)
    density = np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
    # The midpoint rule: of the step that x is in, half lies below it.
    step = x[1] - x[0]
    below = np.clip((np.cumsum(density) - 0.5 * density) * step, 0.0, 1.0)
    weight = count * below ** (count - 1) * density * step
    weight /= weight.sum()
    first, second, third = (float(np.sum(weight * x**power)) for power in (1, 2, 3))
    return first, second, third


@cache
def _balanced_share(placed: Placed, skew: float) -> float:
    """What the balancer makes of the loads that are expected: the quantiles in the middles of equal steps.

    Copy after copy goes to the expert whose copies have the largest load each; then the largest copy that is left goes
    to the emptiest device that has room for one more (``replicate_experts`` and ``balanced_packing`` of EPLB).
    """
    if skew <= 0.0:
        return 1.0
    # SciPy takes long to import, and only replicas with redundant experts ask for this.
    from scipy.stats import gamma

    loads = gamma.ppf((np.arange(placed.experts) + 0.5) / placed.experts, 1.0 / skew, scale=skew)
    copies = np.ones(placed.experts)
    for _ in range(placed.redundant):
        copies[np.argmax(loads / copies)] += 1.0
    pieces = np.sort(np.repeat(loads / copies, copies.astype(int)))[::-1]
    # EPLB gives every device equally many copies, as the engine's tensors of experts have equal sizes.
    room = np.full(placed.parts, len(pieces) // placed.parts)
    loads_held = np.zeros(placed.parts)
    for piece in pieces:
        # The emptiest of those that have a place left; a full one counts as infinitely loaded.
        device = np.argmin(np.where(room > 0, loads_held, np.inf))
        room[device] -= 1
        loads_held[device] += piece
    return float(loads_held.max() * placed.parts / loads.sum())
