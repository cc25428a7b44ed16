"""The other policies, worked out by hand. Every iteration takes one second, a block holds four tokens."""

import pytest

from evaluator.reference import Limits, Request
from tests.reference.build import SECOND, log_of, request


def work(log):
    """(chunks, decodes) of each iteration."""
    return [(iteration.chunks, iteration.decodes) for iteration in log]


def test_static_computes_a_batch_to_its_end():
    requests = [request(0, 0.0, 3, 2), request(1, 0.0, 3, 4), request(2, 0.5, 3, 1)]
    log = log_of(SECOND, "static", Limits(8, 64, 100, block_tokens=4), requests)
    assert work(log) == [(((0, 3), (1, 3)), ()), ((), (0, 1)), ((), (1,)), ((), (1,)), (((2, 3),), ())]


def test_orca_mixes_prompts_and_decodes_and_knows_no_token_budget():
    requests = [request(0, 0.0, 30, 3), request(1, 0.5, 40, 1), request(2, 0.5, 50, 1)]
    log = log_of(SECOND, "orca", Limits(2, 8, 100, block_tokens=4), requests)
    assert work(log) == [(((0, 30),), ()), (((1, 40),), (0,)), (((2, 50),), (0,))]


def test_orca_reserves_even_where_kv_is_given_on_demand():
    requests = [request(0, 0.0, 4, 5), request(1, 0.0, 4, 5)]
    log = log_of(SECOND, "orca", Limits(8, 64, 3, admission="on_demand", block_tokens=4), requests)
    assert [each.chunks for each in log if each.chunks] == [((0, 4),), ((1, 4),)]


def test_mixed_computes_whole_prompts_beside_decodes():
    requests = [request(0, 0.0, 6, 4), request(1, 0.5, 6, 1), request(2, 0.5, 2, 1)]
    log = log_of(SECOND, "mixed", Limits(8, 8, 100, block_tokens=4), requests)
    assert work(log) == [(((0, 6),), ()), (((1, 6),), (0,)), (((2, 2),), (0,)), ((), (0,))]


@pytest.mark.parametrize(("policy", "together"), [("chunked", True), ("sarathi", False)])
def test_sarathi_gives_a_prompt_its_whole_kv_on_admission(policy, together):
    requests = [request(0, 0.0, 4, 8), request(1, 0.0, 12, 1)]
    limits = Limits(8, 6, 3, admission="on_demand", block_tokens=4)
    log = log_of(SECOND, policy, limits, requests)
    assert (log[0].chunks == ((0, 4), (1, 2))) is together


class TestLightLlm:
    def limits(self, tokens=100, **more):
        return Limits(8, 64, tokens, block_tokens=1, **{"look_every": 3, **more})

    def test_waiting_requests_are_looked_at_now_and_then(self):
        requests = [request(0, 0.0, 3, 9), request(1, 0.5, 2, 2), request(2, 3.5, 2, 1)]
        log = log_of(SECOND, "lightllm", self.limits(), requests)
        assert work(log)[:9] == [
            (((0, 3),), ()),
            ((), (0,)),
            ((), (0,)),
            ((), (0,)),  # three decodes since the last look
            (((1, 2), (2, 2)), ()),
            ((), (0, 1)),
            ((), (0,)),
            ((), (0,)),
            ((), (0,)),
        ]

    def test_a_look_that_admits_nobody_counts(self):
        requests = [request(0, 0.0, 3, 9), request(1, 4.5, 2, 1)]
        log = log_of(SECOND, "lightllm", self.limits(), requests)
        assert [each.start_s for each in log if each.chunks] == [0.0, 7.0]  # looks at 4 s and at 7 s

    def test_a_resident_prompt_beside_one_that_is_computed_alone(self):
        """As after a preemption on a decode side: it comes in with that batch, and decodes in the next one."""
        requests = [request(0, 0.0, 3, 2), Request(1, 0.0, 0, 4, 2, 6)]
        log = log_of(SECOND, "lightllm", self.limits(), requests)
        assert work(log) == [(((0, 3),), ()), ((), (0, 1)), ((), (1,))]
        assert (requests[1].scheduled_s, requests[1].first_token_s, requests[1].last_token_s) == (0.0, 2.0, 3.0)

    # Request 0 holds 4 + 4 - 1 tokens at its end, request 1 holds 6 + 2 - 1; when 1 ends, 0 holds 5.
    @pytest.mark.parametrize(("tokens", "together"), [(12, True), (11, False)])
    def test_requests_are_admitted_if_their_peak_fits(self, tokens, together):
        requests = [request(0, 0.0, 4, 4), request(1, 0.0, 6, 2)]
        log = log_of(SECOND, "lightllm", self.limits(tokens), requests)
        assert (len(log[0].chunks) == 2) is together
        assert max(each.kv_units for each in log) == (12 if together else 7)

    def test_kv_is_by_the_token(self):
        with pytest.raises(ValueError, match="block_tokens = 1, got 4"):
            log_of(SECOND, "lightllm", Limits(8, 64, 100, block_tokens=4), [])


def test_resident_prompts_decode_at_once():
    requests = [Request(0, 0.0, 0, 4, 2, 2), Request(1, 0.0, 0, 4, 1, 2), Request(2, 0.0, 0, 4, 2, 2)]
    log = log_of(SECOND, "chunked", Limits(2, 8, 100, block_tokens=4), requests)
    assert work(log) == [((), (0, 1)), ((), (0, 2)), ((), (2,))]
    assert requests[2].token_s == [2.0, 3.0]
    assert requests[2].scheduled_s == 1.0


def test_a_resident_prompt_that_is_preempted_is_computed_with_all_its_tokens():
    requests = [Request(0, 0.0, 0, 3, 5, 2), Request(1, 0.0, 0, 3, 5, 2)]
    log = log_of(SECOND, "chunked", Limits(8, 16, 2, admission="on_demand", block_tokens=4), requests)
    # At 1 s both hold 4 tokens: the prompt and the one that came with it. 1 has generated another: 5 to compute.
    assert log[1].preempted == (1,)
    assert [each.chunks for each in log if each.chunks] == [((1, 5),)]


class TestPacking:
    def test_least_work_left_goes_first(self):
        requests = [request(0, 0.0, 2, 9), request(1, 0.5, 8, 2), request(2, 0.5, 3, 4)]
        log = log_of(SECOND, "continuous", Limits(2, 64, 100, block_tokens=4, packing="least_work_left"), requests)
        assert [each.chunks for each in log if each.chunks] == [((0, 2),), ((2, 3),), ((1, 8),)]

    def test_nobody_overtakes_the_first_that_does_not_fit(self):
        requests = [request(0, 0.0, 2, 9), request(1, 0.5, 8, 1), request(2, 0.5, 1, 9)]
        log = log_of(SECOND, "continuous", Limits(8, 64, 4, block_tokens=4, packing="least_work_left"), requests)
        assert requests[1].work_tokens == 0
        assert [each.chunks for each in log if each.chunks] == [((0, 2),), ((1, 8),), ((2, 1),)]
        assert requests[1].scheduled_s == 9.0


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("admission", "reserved", "reserve, on_demand"),
        ("preemption", "kill", "recompute, swap"),
        ("packing", "lifo", "fcfs, least_work_left, priority, retracted_last, longest_prefix"),
    ],
)
def test_an_unknown_choice_is_refused(field, value, allowed):
    with pytest.raises(ValueError, match=f"{field} must be one of {allowed}, got '{value}'"):
        Limits(1, 1, 1, **{field: value})
