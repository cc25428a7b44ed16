"""Expected errors of the variables: of servers that keep up, and where a queue decides."""

import numpy as np
import pytest

from evaluator.metrics import quantile_levels, summarise
from evaluator.metrics.model_error import MODEL_ERRORS
from tests.metrics.build import changed, fifo, outcomes

LEVELS = quantile_levels(())
TTFT, ITL, E2E = 0.04, 0.05, 0.04


def found(**changes):
    return summarise(outcomes(**changes), LEVELS)


def test_servers_that_keep_up_have_the_errors_of_the_table():
    values = found()
    for name, error in (("ttft_s", TTFT), ("tpot_s", ITL), ("itl_s", ITL), ("e2e_s", E2E), ("throughput_rps", 0.0)):
        np.testing.assert_array_equal(values[f"{name}_model_error"], error)
    assert all(values[f"{name}_model_error"].shape == (3,) for name in MODEL_ERRORS)


def test_an_e2e_of_few_tokens_is_as_unsure_as_its_ttft():
    """First token after half of the unit service: half of E2E, and with a last token at once all of it."""
    base = outcomes(model_error=np.tile([0.2, ITL, E2E], (3, 3, 1)))
    values = summarise(changed(base, last_token_s=base.times.first_token_s), LEVELS)
    np.testing.assert_array_equal(values["e2e_s_model_error"], 0.2)
    values = summarise(base, LEVELS)
    share = values["ttft_s_mean"] / values["e2e_s_mean"]
    np.testing.assert_allclose(values["e2e_s_model_error"], share * 0.2)
    single = changed(base, output_tokens=np.ones_like(base.tokens.output_tokens))
    assert np.isnan(summarise(single, LEVELS)["tpot_s_model_error"]).all()


def test_what_clients_who_wait_get_is_as_sure_as_the_service():
    values = found(open_loop=np.zeros(3, dtype=bool))
    np.testing.assert_array_equal(values["throughput_rps_model_error"], E2E)
    np.testing.assert_array_equal(values["output_tok_per_s_model_error"], E2E)


def test_rows_that_cannot_run_have_none_and_say_what_they_would_rest_on():
    values = found(status=np.array(["ok", "infeasible: no", "ok"]))
    assert np.isnan(values["e2e_s_model_error"]).tolist() == [False, True, False]
    assert values["model_error_basis"].tolist() == ["a data sheet"] * 3


@pytest.mark.parametrize("load", [1.3, 2.0, 4.0])
def test_an_error_of_the_service_grows_in_the_waits_of_an_overload(load):
    """The same arrivals served 1 % slower: by how much the mean latency grows is what the error is multiplied by."""
    base = outcomes(configs=1, seeds=4, requests=4000, load=load)
    step = 1.01

    def served(service_s):
        start = fifo(base.times.arrival_s, np.full_like(base.times.arrival_s, service_s))
        return changed(base, scheduled_s=start, first_token_s=start + service_s / 2, last_token_s=start + service_s)

    one, slower = (summarise(served(service_s), LEVELS) for service_s in (1.0, step))
    assert one["saturated"].all()
    for name in ("ttft_s", "e2e_s"):
        grown = np.log(slower[f"{name}_mean"] / one[f"{name}_mean"]) / np.log(step)
        np.testing.assert_allclose(one[f"{name}_model_error"] / E2E, grown, rtol=0.05)
    np.testing.assert_array_equal(one["throughput_rps_model_error"], E2E)
    np.testing.assert_array_equal(one["tpot_s_model_error"], ITL)
