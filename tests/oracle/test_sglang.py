"""The reference does what SGLang's scheduler was recorded to do (``make oracle-sglang`` records it)."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

import pytest

from evaluator.reference import simulate
from tests.oracle import sglang_ours
from tests.oracle.cases import Log, first_difference, from_data
from tests.oracle.ours import ticks_of
from tests.oracle.sglang_cases import FEATURES, SglangCase, random_case
from tests.thorough import tried

RECORDINGS = sorted((Path(__file__).parent / "recordings").glob("sglang-*.json.xz"))


@cache
def recorded(path: Path) -> list[tuple[SglangCase, Log]]:
    """The cases of a recording, with SGLang's log of each."""
    data = json.loads(lzma.decompress(path.read_bytes()))
    assert data["engine"] == "sglang 0.5.23"
    return [from_data(each, SglangCase) for each in data["cases"]]


def test_there_is_a_recording_of_every_feature():
    assert {case.feature for path in RECORDINGS for case, _ in recorded(path)} == set(FEATURES)
    assert sum(path.stat().st_size for path in RECORDINGS) < 300_000


def test_recordings_are_of_engines_in_want_of_kv_too():
    cases = [
        (case, sum(len(step.preempted) for step in log.steps)) for path in RECORDINGS for case, log in recorded(path)
    ]
    assert sum(retracted for _, retracted in cases) > 30
    assert sum(retracted for case, retracted in cases if case.overlap) > 5


def test_cases_are_drawn_from_their_seed():
    assert random_case("mixed chunks", 3) == random_case("mixed chunks", 3) != random_case("mixed chunks", 4)


def test_leaps_over_decodes_give_the_same_times():
    """The ratio decays with every decode, and whoever waits may be admitted between two: those are no leap."""
    for path in RECORDINGS:
        case, log = recorded(path)[0]
        requests = sglang_ours.requests_of(case)
        simulate(sglang_ours.COST, "token_ratio", sglang_ours.limits_of(case), requests)
        assert tuple(ticks_of(request.last_token_s) for request in requests) == log.last_ticks, case.feature


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.xz"))
def test_the_reference_does_what_sglang_did(path):
    """Who takes part with how many tokens, retractions, free pages and times of every iteration."""
    cases = recorded(path)  # of one feature, whose seeds differ
    for case, log in cases[: max(tried(len(cases), 0.5), 4)]:
        difference = first_difference(log, sglang_ours.serve(case), "SGLang")
        assert difference is None, f"{case.feature}, seed {case.seed}: {difference}"
