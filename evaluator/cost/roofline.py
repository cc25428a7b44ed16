"""The time of an operator from its two sides."""

from __future__ import annotations

from evaluator.cost.arrays import Batched, array_namespace


def roofline(flop_s: Batched, byte_s: Batched, knee: Batched) -> Batched:
    """Time of an operator from its two sides, seconds: the larger (knee 0) up to their sum (knee 1).

    A smooth maximum, homogeneous of degree one: where both sides are equal it is (1 + knee) times either, as the
    p-norm of the adapted roofline is 2^(1/p) times (p = 2: knee 0.414). Chosen over the p-norm because it costs one
    square root, is traced in its sharpness and reaches the classic maximum exactly.
    """
    xp = array_namespace(flop_s, byte_s, knee)
    gap = flop_s - byte_s
    # The tiny term keeps the derivative finite at the knee and at no work; it is 1e-30 s.
    return 0.5 * (flop_s + byte_s + xp.sqrt(gap * gap + 4.0 * knee * knee * flop_s * byte_s + 1e-60))
