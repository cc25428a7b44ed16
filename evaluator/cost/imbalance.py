"""How uneven the load of the devices is that hold whole experts: an iteration waits for the one with most visits.

The popularity of experts is gamma-distributed with mean 1 and variance ``skew``, as in ``iteration.experts_touched``.
Which experts a device holds has nothing to do with their popularity, unless a balancer puts them there.
"""

from __future__ import annotations

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
    (EPLB, github.com/deepseek-ai/EPLB; vLLM ``enable_eplb``). What is left is the largest copy, should it exceed what
    a device has on average; see ``_largest_copy``.
    """
    if placed.redundant:
        return _balanced_share(placed, float(skew))
    xp = array_namespace(skew)
    ninth = skew * placed.parts / placed.experts / 9.0
    deviation = xp.sqrt(ninth + 1e-30)
    first, second, third = _largest_normal(placed.parts)
    mean = 1.0 - ninth
    cube = mean**3 + 3.0 * mean**2 * deviation * first + 3.0 * mean * ninth * second + ninth * deviation * third
    return xp.where(skew > 0.0, cube, 1.0)


@cache
def _largest_normal(count: int) -> tuple[float, float, float]:
    """First three moments of the largest of ``count`` standard normal variables, by quadrature of its density."""
    at = np.linspace(-12.0, 12.0, 48001)
    density = np.exp(-0.5 * at * at) / np.sqrt(2.0 * np.pi)
    step = at[1] - at[0]
    below = np.clip((np.cumsum(density) - 0.5 * density) * step, 0.0, 1.0)
    weight = count * below ** (count - 1) * density * step
    weight /= weight.sum()
    first, second, third = (float(np.sum(weight * at**power)) for power in (1, 2, 3))
    return first, second, third


def _balanced_share(placed: Placed, skew: float) -> float:
    """Of the device that holds the largest copy: a packing of many copies is even but for this one."""
    if skew <= 0.0:
        return 1.0
    return max(1.0, _largest_copy(placed.experts, placed.redundant, skew) * placed.parts / placed.experts)


@cache
def _largest_copy(experts: int, redundant: int, skew: float) -> float:
    """Load of the largest copy, in units of the mean expert's, when each copy goes to the one with the largest share.

    An expert of load w needs ceil(w / t) copies for none of them to exceed t. The least t for which these are at most
    ``redundant`` more than the experts is found by bisection over the loads that are expected (the quantiles of the
    gamma distribution in the middles of equal steps).
    """
    from scipy.stats import gamma

    loads = gamma.ppf((np.arange(experts) + 0.5) / experts, 1.0 / skew, scale=skew)
    loads *= experts / loads.sum()
    low, high = 0.0, float(loads.max())
    for _ in range(60):
        middle = 0.5 * (low + high)
        if np.ceil(loads / max(middle, 1e-12)).sum() <= experts + redundant:
            high = middle
        else:
            low = middle
    return high
