"""Which designs change places within the errors, by hand and as the tables say it."""

import json
import re
from statistics import NormalDist

import numpy as np
import pytest
import xarray as xr

from evaluator.report import ranked_table, search_table
from evaluator.report.places import IN_COMMON, ahead_of_first, chance_in_words, in_words
from tests.results.build import RATE, sweep

CDF = NormalDist().cdf


def designs(headroom, error=0.1, cost=None, sets=None, met=None, **attrs):
    """Designs that a sweep ranks by cost, each with one objective."""
    headroom = np.asarray(headroom, dtype=float)[:, None]
    size = headroom.shape[0]
    of_objective = {
        "objective_ratio": 1.0 / headroom,
        "objective_ratio_stderr": np.zeros((size, 1)),
        "objective_mean_error": np.broadcast_to(np.asarray(error, dtype=float)[..., None], (size, 1)).copy(),
        "objective_headroom": headroom,
        "objective_growth": np.ones((size, 1)),
    }
    of_objective["objective_model_error"] = of_objective["objective_mean_error"]
    columns = {
        "status": np.full(size, "ok"),
        "saturated": np.zeros(size, dtype=bool),
        "slo_met": headroom[:, 0] >= 1.0 if met is None else np.asarray(met),
        "usd_per_mtok": np.arange(1.0, size + 1.0) if cost is None else np.asarray(cost, dtype=float),
        "calibration_set": np.full(size, "a") if sets is None else np.asarray(sets),
        "output_tok_per_s_model_error": np.zeros(size),
    }
    return xr.Dataset(
        {name: (("config", "objective"), values) for name, values in of_objective.items()}
        | {name: (("config",), values) for name, values in columns.items()},
        attrs={"objectives": json.dumps([{"metric": "ttft", "statistic": "p90", "bound_s": 1.0}]), **attrs},
    )


def ahead(ds):
    return ahead_of_first(ds, np.arange(ds.sizes["config"]))


def test_a_dearer_design_is_ahead_where_it_alone_meets_its_objectives():
    """Errors of different sets are independent: it is ahead with its chance times that of the first to miss."""
    found = ahead(designs([1.02, 1.15], sets=["a", "b"]))
    first, second = (CDF(np.log(headroom) / np.log(1.1)) for headroom in (1.02, 1.15))
    assert found[0] == 0.0 and found[1] == pytest.approx((1.0 - first) * second, abs=0.02)


def test_what_designs_have_in_common_changes_no_places():
    """Of one set and model half of the variance is common to both: of two alike the second is ahead less often."""
    of_one, of_two = (ahead(designs([1.02, 1.02], sets=sets))[1] for sets in (["a", "a"], ["a", "b"]))
    half = CDF(np.log(1.02) / np.log(1.1))
    assert of_two == pytest.approx((1.0 - half) * half, abs=0.02) and of_one < 0.8 * of_two
    rng = np.random.default_rng(3)
    common, alone = rng.standard_normal(400_000), rng.standard_normal((2, 400_000))
    slower = IN_COMMON**0.5 * common + (1.0 - IN_COMMON) ** 0.5 * alone
    met = np.log(1.1) * slower <= np.log(1.02)
    assert of_one == pytest.approx((~met[0] & met[1]).mean(), abs=0.02)


def test_a_design_that_is_sure_of_its_objectives_stays_first():
    assert ahead(designs([2.0, 3.0, 4.0])).max() < 0.01
    assert in_words(ahead(designs([2.0, 3.0]))) == (
        "within the errors no other of these is ahead of #1 with a chance of 16 % or more"
    )


def test_a_cost_that_follows_from_the_service_is_off_as_it_is():
    """Two saturated designs or closed loops: 5 % dearer by an error of 10 %, which they have half in common."""
    ds = designs([9.0, 9.0], cost=[1.0, 1.05]).assign(output_tok_per_s_model_error=("config", [0.1, 0.1]))
    apart = np.log(1.1) * (2.0 * (1.0 - IN_COMMON)) ** 0.5
    assert ahead(ds)[1] == pytest.approx(CDF(-np.log(1.05) / apart), abs=0.02)


def test_where_none_meets_the_objectives_one_may_after_all():
    ds = designs([0.97, 0.95, 0.6], met=[False] * 3, sets=["a", "b", "c"])
    found = ahead(ds)
    assert found[1] > 0.15 and found[2] < 0.001


def test_an_error_that_is_not_known_is_no_certainty():
    found = ahead(designs([1.02, 1.1, 1.2], error=[0.1, np.nan, 0.1]))
    assert np.isnan(found).tolist() == [False, True, False]
    assert in_words(ahead(designs([1.02, 1.1], error=[np.nan, 0.1]))).startswith("whether designs change places is not")
    assert in_words(np.array([0.0])) == ""


def test_places_in_words():
    often = ": each is ahead of it with a chance of 16 % or more"
    for chances, places in (
        ([0, 0.2], "#2"),
        ([0, 0.2, 0.1, 0.3, 0.3, 0.4], "#2 and #4 to #6"),
        ([0, 0.2, 0.2, 0, 0, 0.2, 0.2, 0], "#2, #3, #6 and #7"),
    ):
        assert in_words(np.array(chances, dtype=float)) == f"within the errors #1 changes places with {places}{often}"


def test_goodputs_within_their_errors_change_places():
    """5 % less goodput, with an error of 10 % in each that is half in common, and 2 % of chance in each."""
    ds = designs([1.0, 1.0, 0.9], search=json.dumps({"rate_rps": None}), ranked_by="goodput")
    rates = np.array([10.0, 9.5, 0.0])
    columns = {"goodput_rps": rates, "goodput_rps_model_error": [0.1, 0.1, np.nan], "goodput_rps_stderr": 0.02 * rates}
    ds = ds.assign({name: ("config", np.array(values)) for name, values in columns.items()})
    apart = np.hypot(np.log(1.1) * (2.0 * (1.0 - IN_COMMON)) ** 0.5, 0.02 * 2**0.5)
    assert ahead(ds)[1] == pytest.approx(CDF(-np.log(1 / 0.95) / apart), abs=0.02) and ahead(ds)[2] == 0.0
    given = ds.assign_attrs(search=json.dumps({"rate_rps": 3.0}))  # ranked by what they take: verdicts alone count
    assert ahead(given)[1] == pytest.approx(ahead(designs([1.0, 1.0, 0.9]))[1])


def test_the_table_says_how_sure_the_verdict_is():
    old = sweep(RATE)
    assert "  yes\n" in ranked_table(old) and "within the errors" not in ranked_table(old)  # of a version before
    size = old.sizes["config"]
    more = designs(np.full(size, 1.02))
    ds = old.assign({name: more[name] for name in more if name.startswith("objective_")})
    chances = np.linspace(0.5, 0.999, size)
    chances[1] = np.nan
    ds = ds.assign(slo_chance=("config", chances), objective_confidence=more["objective_ratio"] * np.nan)
    text = ranked_table(ds)
    assert "within the errors #1 changes places with " in text
    assert re.search(r"  yes +50% ", text) and re.search(r"  yes +\? ", text) and re.search(r"  no  >99%", text)
    asked = ds.assign(objective_confidence=ds["objective_confidence"].fillna(0.9))
    assert "meet the SLO with a chance of 0.9, " in ranked_table(asked) and "chance of 0.9" not in text
    assert [chance_in_words(chance) for chance in (0.001, 0.53, 0.994, 0.996, 1.0)] == [
        "<1%",
        "53%",
        "99%",
        ">99%",
        ">99%",
    ]


def test_the_table_of_a_search_says_how_sure_the_objectives_are(search_result):
    text = search_table(search_result)
    assert "there the objectives hold with a chance of 75% to 79%" in text and "; slo.confidence asks for more" in text
    assert "within the errors" in text
    asked = search_result["objective_confidence"].fillna(0.9)
    partly = asked.where(asked["config"] > 0)
    text, some = (search_table(search_result.assign(objective_confidence=each)) for each in (asked, partly))
    assert "75% to 79%; asked for 0.9\n" in text and "75% to 79%; some ask for 0.9\n" in some


@pytest.fixture(scope="module")
def search_result():
    import evaluator
    from tests.search.build import axes, scenario

    return evaluator.optimize(scenario(sweep=axes(deployment__tensor_parallel=[1, 2])), bracket=0.1)
