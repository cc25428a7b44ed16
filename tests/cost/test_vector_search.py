"""Search in an index of vectors: RAGO's published times, and what follows from the bytes."""

import jax
import numpy as np
import pytest

from evaluator.cost.vector_search import CODE_RATE, JOIN_S, VECTOR_RATE, Scan, VectorIndex, scan_time, search_time

HERMES = VectorIndex(4e6, 50, 5000, pq_bytes=96, centroid_bytes=768 * 4)
"""4 M centroids, 50 probes, 5,000 points per probe, of E5-base's 768 dimensions in fp32."""

# retrieval_sim/retrieval_perf.py: 64 billion vectors below a tree of 1 and 1e6 and 250e6 lists of which 1 and 1 % and
# 0.1 % are scanned, codes and then plain vectors of the best; and 100,000 vectors scanned plainly.
LARGE = (
    Scan(1e6 * 96, CODE_RATE), Scan(1e4 * 768, VECTOR_RATE), Scan(1e4 * 250 * 96, CODE_RATE),
    Scan(250e3 * 768, VECTOR_RATE), Scan(250e3 * 256 * 192, CODE_RATE), Scan(100 * 768, VECTOR_RATE),
)  # fmt: skip
SMALL = (Scan(1e5 * 1536, CODE_RATE), Scan(100 * 1536, VECTOR_RATE))
PUBLISHED_MS = {  # retrieval_sim/perf_results/retrieval_perf.csv, by batch size; the large index on 16 servers
    "large": {1: 45.08181333333333, 16: 45.08181333333333, 32: 64.36848, 64: 128.237568, 256: 512.950272},
    "small": {1: 8.548693333333334, 16: 8.548693333333334, 32: 12.303360000000001, 128: 49.201152, 256: 98.402304},
}


@pytest.mark.parametrize(("scans", "servers", "name"), [(LARGE, 16, "large"), (SMALL, 1, "small")])
def test_rago_published_times(scans, servers, name):
    """A CPU of 96 cores and 400 GB/s; every query on one core."""
    for queries, wanted_ms in PUBLISHED_MS[name].items():
        found_s = sum(scan_time(scan, float(queries), 96.0, 400e9, "across_queries") for scan in scans) / servers
        assert 1e3 * found_s == pytest.approx(wanted_ms, rel=1e-12)


def test_a_search_by_hand():
    """Of one query on all 72 cores: 12.3 GB of centroids and 24 MB of codes, bound by the cores' rates."""
    centroids_s, codes_s = 4e6 * 768 * 4 / (72 * 10e9), 50 * 5000 * 96 / (72 * 18e9)
    found_s = search_time(HERMES, 1.0, 72.0, 768e9, "within_query")
    assert found_s == pytest.approx(centroids_s + codes_s + 2 * 72 * JOIN_S, rel=1e-12)
    assert search_time(HERMES, 1.0, 1e6, 768e9, "across_queries") == pytest.approx(4e6 * 768 * 4 / 10e9 + 24e6 / 18e9)


def test_queries_share_the_bandwidth():
    queries = np.array([1.0, 2.0, 8.0, 64.0])
    read_s = queries * (4e6 * 768 * 4 + 24e6) / 307.2e9
    np.testing.assert_allclose(search_time(HERMES, queries, 56.0, 307.2e9), read_s, rtol=1e-3)


def test_the_best_spread_is_neither_worse():
    for scan in (*HERMES.scans[:2], *LARGE):
        for queries in (1.0, 7.0, 96.0, 200.0):
            both = [scan_time(scan, queries, 96.0, 400e9, spread) for spread in ("across_queries", "within_query")]
            assert scan_time(scan, queries, 96.0, 400e9) == min(both)


def test_a_batch_may_read_the_centroids_once():
    """Where memory binds: every query reads its own lists, and all the same centroids."""
    once = VectorIndex(4e6, 50, 5000, 96, 768 * 4, reuse_centroids=True)
    centroids, lists = 4e6 * 768 * 4, 24e6
    for queries in (1.0, 32.0):
        assert search_time(once, queries, 56.0, 1e6) == pytest.approx((centroids + queries * lists) / 1e6)
        assert search_time(HERMES, queries, 56.0, 1e6) == pytest.approx(queries * (centroids + lists) / 1e6)


def test_bytes_of_an_index():
    assert HERMES.points == 20e9
    assert HERMES.bytes == pytest.approx(20e9 * 96 + 4e6 * 3072)
    assert VectorIndex(10, 1, 5, 4, 8, rescored=2, vector_bytes=16).bytes == 10 * 8 + 50 * 20


def test_times_grow_with_the_batch_and_nothing_is_free():
    queries = np.arange(1.0, 300.0)
    for spread in ("best", "across_queries", "within_query"):
        found = search_time(HERMES, queries, 56.0, 307.2e9, spread)
        assert (found > 0).all() and (np.diff(found) >= 0).all()
        assert (np.diff(found / queries) <= 1e-15).all()  # and a query costs no more in a larger batch


def test_traced_and_differentiable():
    """Twice the bandwidth halves the time of what memory binds."""
    slope = jax.grad(lambda bandwidth: search_time(HERMES, 64.0, 56.0, bandwidth))(307.2e9)
    assert float(slope) * 307.2e9 == pytest.approx(-float(search_time(HERMES, 64.0, 56.0, 307.2e9)), rel=1e-3)
