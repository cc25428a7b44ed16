"""What vLLM v1 does, worked out by hand. Every iteration takes one second, a block holds four tokens."""

from evaluator.reference import Limits
from tests.reference.build import SECOND, log_of, request


def limits(kv_units=100, *, seqs=8, tokens=16, **more):
    return Limits(seqs, tokens, kv_units, **{"admission": "on_demand", "block_tokens": 4, **more})


def work(log):
    """(chunks, decodes) of each iteration."""
    return [(iteration.chunks, iteration.decodes) for iteration in log]


def test_prompts_are_chunked_to_the_token_budget():
    requests = [request(0, 0.0, 10, 3), request(1, 0.0, 4, 2)]
    log = log_of(SECOND, "chunked", limits(tokens=8), requests)
    assert work(log) == [
        (((0, 8),), ()),
        (((0, 2), (1, 4)), ()),  # the rest of the budget goes to the next prompt
        ((), (0, 1)),
        ((), (0,)),
    ]
    assert requests[0].token_s == [2.0, 3.0, 4.0]
    assert requests[1].token_s == [2.0, 3.0]
    assert [each.scheduled_s for each in requests] == [0.0, 1.0]


def test_decodes_come_before_chunks():
    requests = [request(0, 0.0, 2, 9), request(1, 0.0, 2, 9), request(2, 0.5, 9, 1)]
    log = log_of(SECOND, "chunked", limits(tokens=5), requests)
    # The two decodes take two tokens of the budget of five, the prompt goes on with three at a time.
    assert work(log)[:5] == [
        (((0, 2), (1, 2)), ()),
        (((2, 3),), (0, 1)),
        (((2, 3),), (0, 1)),
        (((2, 3),), (0, 1)),
        ((), (0, 1)),
    ]
    assert requests[2].token_s == [4.0]


def test_a_long_prompt_is_cut_at_the_threshold_so_that_others_go_on_beside_it():
    requests = [request(0, 0.0, 10, 1), request(1, 0.0, 6, 2), request(2, 0.0, 3, 1)]
    log = log_of(SECOND, "chunked", limits(long_prefill_token_threshold=4, tokens=9), requests)
    assert work(log) == [
        (((0, 4), (1, 4), (2, 1)), ()),
        (((0, 4), (1, 2), (2, 2)), ()),
        (((0, 2),), (1,)),
    ]


def test_the_last_admitted_is_preempted_first_and_resumes_in_order_by_recomputing_all_its_tokens():
    requests = [request(index, 0.0, 3, 4) for index in range(4)] + [request(4, 0.5, 3, 1)]
    log = log_of(SECOND, "chunked", limits(4), requests)
    assert work(log) == [
        (((0, 3), (1, 3), (2, 3), (3, 3)), ()),  # one block each: the cache is full, request 4 has to wait
        ((), (0, 1, 2, 3)),  # the fourth token fills the block
        ((), (0, 1)),  # each needs a second block: 0 takes that of 3, 1 takes that of 2
        ((), (0, 1)),  # 2 wants two blocks for 3 + 2 tokens; there is none
        (((2, 5), (3, 5)), ()),  # back before request 4, which came earlier than they went
        ((), (2, 3)),
        (((4, 3),), ()),
    ]
    assert [iteration.preempted for iteration in log] == [(), (), (3, 2), (), (), (), ()]
    assert [iteration.kv_units for iteration in log] == [4, 4, 4, 4, 4, 4, 1]
    assert requests[3].token_s == [1.0, 2.0, 5.0, 6.0]
    assert [each.preemptions for each in requests] == [0, 0, 1, 1, 0]


def test_nobody_is_admitted_in_an_iteration_that_preempts():
    # 0 and 1 hold a block each, 2 the other two; when 0 needs a second one, 2 goes, and of its blocks one is left.
    requests = [request(0, 0.0, 4, 3), request(1, 0.0, 2, 9), request(2, 0.0, 5, 9), request(3, 1.0, 1, 1)]
    log = log_of(SECOND, "chunked", limits(4, packing="least_work_left"), requests)
    assert log[1].preempted == (2,)
    assert log[1].chunks == () and log[1].waiting == 2  # there is a block for request 3, but not yet
    assert log[2].chunks == ((3, 1),)


def test_a_prompt_under_way_is_preempted_too_and_starts_again():
    requests = [request(0, 0.0, 4, 10), request(1, 0.0, 12, 1)]
    log = log_of(SECOND, "chunked", limits(4, tokens=5), requests)
    assert work(log)[:5] == [
        (((0, 4), (1, 1)), ()),
        (((1, 4),), (0,)),  # both take their second block
        ((), (0,)),  # its ninth token needs a third block: the last admitted is itself
        (((1, 4),), (0,)),  # from the beginning
        (((1, 4),), (0,)),
    ]
    assert log[2].preempted == (1,)
    assert log[5].preempted == (1,)  # now by request 0, which needs a third block
    assert requests[0].token_s == [float(second) for second in range(1, 11)]
    assert requests[1].scheduled_s == 0.0


def test_a_request_preempted_while_alone_is_taken_back_at_once():
    requests = [request(0, 0.0, 4, 2), request(1, 0.0, 4, 6)]
    log = log_of(SECOND, "chunked", limits(2), requests)
    # At 1 s both need a second block: 1 goes, 0 takes its block and finishes.
    assert work(log)[:3] == [(((0, 4), (1, 4)), ()), ((), (0,)), (((1, 5),), ())]
    # 4 + 5 tokens do not fit into two blocks: the last token never comes.
    assert len(requests[1].token_s) == 5
    assert requests[1].last_token_s == float("inf")


def test_a_cached_prefix_is_not_computed_but_takes_blocks():
    requests = [request(0, 0.0, 10, 1, cached=8)]
    log = log_of(SECOND, "chunked", limits(), requests)
    assert work(log) == [(((0, 2),), ())]
    assert log[0].kv_units == 3


class TestPrefixCache:
    def run(self, requests, kv_units=100, **more):
        return log_of(SECOND, "chunked", limits(kv_units, tokens=32, prefix_caching=True, **more), requests)

    def test_whole_blocks_are_shared(self):
        requests = [request(0, 0.0, 9, 1, content=(1, 2)), request(1, 5.0, 11, 1, content=(1, 2))]
        log = self.run(requests)
        assert [each.chunks for each in log] == [((0, 9),), ((1, 3),)]
        assert [each.hit_tokens for each in requests] == [0, 8]

    def test_at_least_one_token_is_computed(self):
        requests = [request(0, 0.0, 8, 1, content=(1, 2)), request(1, 5.0, 8, 1, content=(1, 2))]
        assert [each.chunks for each in self.run(requests)] == [((0, 8),), ((1, 4),)]

    def test_a_block_is_known_by_all_before_it(self):
        requests = [request(0, 0.0, 9, 1, content=(1, 2)), request(1, 5.0, 9, 1, content=(3, 2))]
        assert [each.chunks for each in self.run(requests)] == [((0, 9),), ((1, 9),)]

    def test_blocks_are_shared_within_an_iteration(self):
        requests = [request(0, 0.0, 9, 1, content=(1, 2)), request(1, 0.0, 9, 1, content=(1, 2))]
        log = self.run(requests)
        assert [each.chunks for each in log] == [((0, 9), (1, 1))]
        assert log[0].kv_units == 4  # two shared, one each

    def test_a_turn_of_a_conversation_finds_the_answer_to_the_one_before(self):
        # 5 prompt tokens and 4 of the 5 answered: two whole blocks and one token are in the cache.
        requests = [request(0, 0.0, 5, 5, content=(1, 2)), request(1, 9.0, 12, 1, content=(1, 2, 3))]
        log = self.run(requests)
        assert log[-1].chunks == ((1, 4),)

    def test_tokens_of_drafts_are_cached_once_they_are_known(self):
        """All three drafts are accepted: the block that they fill gets its name in the next iteration, if there is one.

        vLLM caches no drafts (``allocate_slots``), and nothing when a request ends.
        """
        ends, goes_on = (request(0, 0.0, 5, output, content=(1, 2)) for output in (5, 6))
        for first, found in ((ends, 4), (goes_on, 8)):
            first.curve = (0, 4, 8)
            again = request(1, 9.0, 12, 1, content=(1, 2, 3))
            log = self.run([first, again], drafts=3)
            assert again.hit_tokens == found
            assert [each.kv_units for each in log[:2]] == [2, 3]  # 5 tokens; then 1 + 3 more

    def test_the_least_recently_used_block_is_evicted_the_end_of_a_prompt_before_its_beginning(self):
        first = request(0, 0.0, 9, 1, content=(1, 2))  # three of five blocks; freed from the last to the first
        other = request(1, 2.0, 13, 1, content=(7, 8, 9))  # two fresh ones, then those of tokens 9 and 5 to 8
        again = request(2, 4.0, 9, 1, content=(1, 2))
        log = self.run([first, other, again], 5)
        assert log[-1].chunks == ((2, 5),)

    def test_blocks_in_use_are_not_evicted(self):
        user = request(0, 0.0, 9, 20, content=(1, 2))
        other = request(1, 2.0, 13, 1, content=(7, 8, 9))  # does not fit beside it
        again = request(2, 3.0, 9, 1, content=(1, 2))
        log = self.run([user, other, again], 7, packing="least_work_left")
        assert ((2, 1),) in [each.chunks for each in log]

    def test_a_preempted_request_finds_none_of_its_blocks_if_others_took_them(self):
        requests = [request(0, 0.0, 4, 6), request(1, 0.0, 4, 6), request(2, 0.0, 4, 6)]
        log = self.run(requests, 6)
        assert log[5].preempted == (2,)
        # 4 + 5 tokens; its second block went to request 0 or 1 and so did the first: all are computed again.
        assert log[6].chunks == ((2, 9),)

    def test_a_preempted_request_finds_those_of_its_blocks_again_that_nobody_took(self):
        requests = [request(0, 0.0, 4, 6), request(1, 0.0, 7, 6)]
        log = self.run(requests, 4)
        assert log[2].preempted == (1,)  # it wants a third block for its ninth token
        # Until request 0 leaves there is no room for it; at 5 s that takes one of its two blocks, the last.
        assert [each.start_s for each in log if each.chunks] == [0.0, 6.0]
        assert log[6].chunks == ((1, 5),)
