"""Length tables: they sample what the traces hold, and their files are checked."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from evaluator.catalog import lengths_to_yaml, load_lengths, summarise_lengths
from evaluator.catalog.lengths import read_lengths
from evaluator.errors import InputError
from evaluator.yaml import loads_yaml

GOOD = """
name: small
source: 'made up'
licence: CC0
prompt_quantiles: [1, 10, 20, 40, 80]
output_levels: [0, 0.5, 1]
output_quantiles:
  - [1, 5, 9]
  - [2, 2, 30]
"""


@pytest.fixture(params=["conv", "code"])
def trace(request, data_folder):
    table = pd.read_csv(data_folder / f"azure_llm_trace_{request.param}_2023.csv")
    return load_lengths(f"azure-{request.param}-2023"), table.prompt_tokens.to_numpy(), table.output_tokens.to_numpy()


def test_samples_equal_the_trace(trace):
    table, prompts, outputs = trace
    samples = table.sample(np.random.default_rng(7), 100_000)
    for sampled, measured in zip(samples, (prompts, outputs), strict=True):
        assert sampled.mean() == pytest.approx(measured.mean(), rel=0.01)
        assert sampled.min() >= measured.min()
        assert sampled.max() <= measured.max()
        levels = [10, 50, 90, 99]
        np.testing.assert_allclose(np.percentile(sampled, levels), np.percentile(measured, levels), rtol=0.03, atol=3)
    assert spearmanr(*samples).statistic == pytest.approx(spearmanr(prompts, outputs).statistic, abs=0.03)


def test_the_mean_output_follows_the_prompt(trace):
    """Within the quarters of the prompt, so that the dependence is right where it is not monotonic."""
    table, prompts, outputs = trace
    prompt, output = table.sample(np.random.default_rng(11), 100_000)
    edges = np.quantile(prompts, [0, 0.25, 0.5, 0.75])
    for quarter in range(4):
        sampled = output[np.searchsorted(edges, prompt, side="right") == quarter + 1].mean()
        measured = outputs[np.searchsorted(edges, prompts, side="right") == quarter + 1].mean()
        assert sampled == pytest.approx(measured, rel=0.05)


def test_the_committed_tables_are_what_the_function_makes(trace):
    table, prompts, outputs = trace
    made = summarise_lengths(prompts, outputs, name=table.name, source=table.source, licence=table.licence)
    np.testing.assert_array_equal(made.prompt_quantiles, table.prompt_quantiles)
    np.testing.assert_array_equal(made.output_quantiles, table.output_quantiles)


def test_same_seed_same_lengths_whatever_the_count():
    table = load_lengths("azure-conv-2023")
    few, many = table.sample(np.random.default_rng(3), 10), table.sample(np.random.default_rng(3), 1000)
    for short, long in zip(few, many, strict=True):
        assert short.dtype == np.int64
        np.testing.assert_array_equal(short, long[:10])


def test_repeated_lengths_stay():
    prompts = np.r_[np.full(500, 181), np.arange(1, 501) * 10]
    table = summarise_lengths(prompts, prompts * 2, name="x", source="s", licence="l", bins=20)
    prompt, output = table.sample(np.random.default_rng(0), 20_000)
    assert np.mean(prompt == 181) == pytest.approx(0.5, abs=0.02)
    assert np.mean(output[prompt == 181] == 362) > 0.9  # the bins at the edges of the run hold neighbours too


def test_reads_back_as_written():
    table = summarise_lengths(np.arange(1, 200), np.arange(1, 200), name="it's", source="a: b", licence="l", bins=4)
    again = read_lengths(loads_yaml(lengths_to_yaml(table)), "text")
    assert (again.name, again.source) == ("it's", "a: b")
    np.testing.assert_array_equal(again.output_quantiles, table.output_quantiles)
    np.testing.assert_array_equal(again.prompt_quantiles, table.prompt_quantiles)
    np.testing.assert_array_equal(again.output_levels, table.output_levels)


REFUSED = {
    "small.yaml: licence: missing": ("licence: CC0\n", ""),
    "small.yaml: prompt_quantiles: must be finite, at least 1 and not decreasing": ("[1, 10,", "[0, 10,"),
    "small.yaml: prompt_quantiles: must be finite.*": ("20, 40", "40, 20"),
    "small.yaml: prompt_quantiles: expected a list of at least 2 numbers": ("[1, 10,", "[one, 10,"),
    "small.yaml: prompt_quantiles: needs a whole number of steps for each of 2 bins, plus 1": (", 80]", "]"),
    "small.yaml: output_levels: must run from 0 to 1": ("0.5, 1]", "0.5, 0.9]"),
    "small.yaml: output_levels: must be finite, at least 0 and increasing": ("[0, 0.5, 1]", "[0, 0, 1]"),
    "small.yaml: output_quantiles: each row needs 2 values": ("[0, 0.5, 1]", "[0, 1]"),
    "small.yaml: output_quantiles: the rows differ in length": ("[1, 5, 9]", "[1, 9]"),
    r"small.yaml: output_quantiles\[1\]: must be finite": ("[2, 2, 30]", "[2, .nan, 30]"),
}


@pytest.mark.parametrize(("message", "change"), REFUSED.items())
def test_bad_length_files_are_refused(message, change):
    assert change[0] in GOOD
    with pytest.raises(InputError, match=message):
        read_lengths(loads_yaml(GOOD.replace(*change)), "small.yaml")


def test_unusable_requests_are_refused():
    named = {"name": "x", "source": "s", "licence": "l"}
    with pytest.raises(InputError, match="two equally long lists of at least 64 requests"):
        summarise_lengths([1, 2], [3, 4], **named)
    with pytest.raises(InputError, match="must have at least 1 token"):
        summarise_lengths(np.ones(100), np.zeros(100), **named)
