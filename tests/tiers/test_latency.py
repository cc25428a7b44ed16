"""The time to get a context: the formula on two devices, and the recursion over tiers against what it stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evaluator.catalog import load_storage
from evaluator.tiers import expected_s, fetch_s, held_shares

SIZES = np.array([2**power for power in range(18, 31)], dtype=float)  # 256 KB to 1 GB
LOOKUP_S = np.array([80e-9, 50e-6, 20e-3])
BANDWIDTH = np.array([150e9, 7e9, 2e9])


@pytest.mark.parametrize(("name", "latency_s", "bandwidth"), [("ddr4", 80e-9, 150e9), ("nvme", 50e-6, 7e9)])
def test_one_device_takes_its_latency_and_its_bytes(name, latency_s, bandwidth):
    device = load_storage(name)
    times = fetch_s(SIZES, np.array([device.latency_s]), np.array([device.bandwidth]))
    np.testing.assert_allclose(times[:, 0], latency_s + SIZES / bandwidth, rtol=1e-15)
    one = expected_s(SIZES, np.ones(1), np.array([device.latency_s]), np.array([device.bandwidth]))
    np.testing.assert_allclose(one, times[:, 0], rtol=1e-15)


def test_the_recursion_is_the_mean_over_where_a_context_is_found():
    hit = np.random.default_rng(0).random((7, 1, 3))
    parts = held_shares(hit)
    np.testing.assert_allclose(parts.sum(axis=-1), 1.0, rtol=1e-12)
    times = fetch_s(SIZES, LOOKUP_S, BANDWIDTH)
    missed_s = LOOKUP_S.sum() + 0.5
    mean = (parts[..., :3] * times).sum(axis=-1) + parts[..., 3] * missed_s
    np.testing.assert_allclose(expected_s(SIZES, hit, LOOKUP_S, BANDWIDTH, 0.5), mean, rtol=1e-12)


def test_a_miss_pays_for_its_lookup():
    assert expected_s(1e9, np.zeros(3), LOOKUP_S, BANDWIDTH, 1.0) == pytest.approx(1.0 + LOOKUP_S.sum())
    assert expected_s(1e9, np.array([0.0, 1.0, 0.0]), LOOKUP_S, BANDWIDTH) == pytest.approx(LOOKUP_S[:2].sum() + 1 / 7)


def test_the_gradient_is_that_of_differences():
    def cost(log):
        return expected_s(jnp.asarray(1e9), jnp.array([0.3, 0.6, 0.9]), LOOKUP_S, jnp.exp(log))

    log, slope = jnp.log(BANDWIDTH), []
    for tier in range(3):
        step = jnp.zeros(3).at[tier].set(1e-6)
        slope.append((cost(log + step) - cost(log - step)) / 2e-6)
    np.testing.assert_allclose(jax.grad(cost)(log), slope, rtol=1e-6)
