"""Names of blocks by their content."""

from __future__ import annotations

from dataclasses import replace

from evaluator.reference import block_pool
from evaluator.reference.block_pool import PrefixNames
from tests.reference.build import request


def test_names_are_those_of_what_is_in_a_block_and_before_it_and_are_made_again_as_they_were(monkeypatch):
    monkeypatch.setattr(block_pool, "_KEPT", 2)
    names, unsaid = PrefixNames(), 5
    alike = [replace(request(index, 0.0, 20, 2), content=[0, 0, 1]) for index in range(2)]
    other = replace(request(2, 0.0, 20, 2), content=[7, 0, 1])
    first = {each.index: list(names.first(each, unsaid)) for each in (*alike, other)}
    assert first[0][:3] == first[1][:3]
    # The same content behind another beginning, and content that nobody said anything of, are like nothing else.
    assert len({*first[0], *first[1], *first[2]}) == 3 + 3 + 3 * (unsaid - 3)
    for each in (*alike, other):  # of three requests two are kept
        assert list(names.all_first(each, 2)) == first[each.index][:2]
        assert list(names.first(each, unsaid)) == first[each.index]


def test_names_that_two_ask_for_in_turns_are_those_that_one_asks_for():
    of = replace(request(0, 0.0, 20, 2), content=[3, 1, 4])
    alone, names = list(PrefixNames().first(of, 5)), PrefixNames()
    first, second = names.first(of, 5), names.first(of, 5)
    assert [next(first), next(second), next(second)] == [alone[0], *alone[:2]]
    assert [*names.all_first(of, 4)] == alone[:4]
    assert [*first] == alone[1:] and [*second] == alone[2:]
    assert [*names.all_first(of, 5)] == alone
