"""Padding and stacking leave every lane's time as it is."""

import numpy as np
import pytest

from evaluator.cost import (
    BatchStatistics,
    Parallel,
    RowCounts,
    common_counts,
    fold,
    iteration_time,
    operators,
    pad_rows,
    row_counts,
    stack,
)
from evaluator.cost.batch import decode_batch, prefill_batch, together
from evaluator.cost.precision import Precision
from tests.cost.fixtures import ALL_MODELS, H100, LLAMA_8B, QWEN3_235B, calibration


def folded(model):
    return fold(operators(model, Precision(), Parallel()), H100, calibration())


BATCH = together(prefill_batch(2.0, 500, 128), decode_batch(10.0, 1000.0, 128))


def test_stacked_lanes_are_the_single_ones():
    lanes = [folded(model) for model in ALL_MODELS]
    stacked = stack(lanes)
    assert stacked.token_rows.flop.shape == (12, len(ALL_MODELS))
    assert stacked.token_s.shape == (len(ALL_MODELS),)
    times = iteration_time(stacked, BATCH)
    assert times == pytest.approx([float(iteration_time(lane, BATCH)) for lane in lanes], rel=1e-13)
    per_lane = BatchStatistics(*(np.full(len(ALL_MODELS), value) for value in BATCH))
    np.testing.assert_array_equal(iteration_time(stacked, per_lane), times)


def test_padding_costs_nothing():
    lane = folded(QWEN3_235B)
    padded = pad_rows(lane, RowCounts(8, 2, 4, 2, 2))
    assert row_counts(padded) == RowCounts(8, 2, 4, 2, 2)
    assert iteration_time(padded, BATCH) == pytest.approx(iteration_time(lane, BATCH), rel=1e-15)
    with pytest.raises(ValueError, match="cannot pad"):
        pad_rows(lane, RowCounts(1, 1, 2, 1, 0))


def test_dense_lanes_have_no_expert_rows():
    assert common_counts([folded(LLAMA_8B)]) == RowCounts(4, 1, 0, 1, 0)
    assert common_counts([folded(LLAMA_8B), folded(QWEN3_235B)]).expert_rows == 2


def test_given_counts_are_kept():
    counts = RowCounts(12, 1, 2, 1, 1)
    assert row_counts(stack([folded(LLAMA_8B)] * 3, counts)) == counts
