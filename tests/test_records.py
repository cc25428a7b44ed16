"""How long what is found of a record is kept: with the record, or while somebody uses it."""

import gc
import weakref
from dataclasses import dataclass

import pytest

from evaluator.device import MOST_PROGRAMS
from evaluator.records import kept_with_record, shared_while_used, with_fields, without_collecting
from evaluator.run import sweep
from evaluator.traffic.jobs import Demand
from tests.scenario.build import scenario


@dataclass(frozen=True, eq=False)
class Shelf:
    length: int

    @kept_with_record(2)
    def filled(self, with_what):
        return [with_what] * self.length


def test_what_is_found_is_kept_with_the_record():
    shelf = Shelf(3)
    assert shelf.filled("a") == ["a"] * 3
    assert shelf.filled("a") is shelf.filled("a")
    assert with_fields(shelf, length=2).filled("a") == ["a"] * 2  # it is not taken over
    assert Shelf(3).filled("a") is not shelf.filled("a")


def test_there_is_a_bound_for_each_record():
    shelf = Shelf(1)
    first = shelf.filled("a")
    shelf.filled("b")
    assert shelf.filled("a") is first
    shelf.filled("c")
    assert shelf.filled("a") == first and shelf.filled("a") is not first


def test_it_goes_with_the_record_and_needs_no_collector():
    shelf = Shelf(1)
    found = weakref.ref(shelf)
    shelf.filled("a")
    gc.disable()
    try:
        del shelf
        assert found() is None
    finally:
        gc.enable()


class Made:
    pass


def test_one_object_as_long_as_it_is_used():
    made = []

    @shared_while_used(latest=1)
    def make(name):
        made.append(name)
        return Made()

    used = make("a")
    make("b")
    make("b")  # the latest
    assert make("a") is used and made == ["a", "b"]
    del used
    for name in "bab":
        make(name)
    assert made == ["a", "b", "a", "b"]


@pytest.mark.parametrize("simulator", ["iteration", "token"])
def test_no_requests_outlive_their_sweep(simulator, monkeypatch):
    made, init = [], Demand.__init__

    def noted(demand, *given, **more):
        made.append(weakref.ref(demand))
        init(demand, *given, **more)

    monkeypatch.setattr(Demand, "__init__", noted)
    ds = sweep(scenario(workload__arrivals__rate_rps=[1.0, 2.0]), simulator=simulator)
    assert ds.sizes["config"] == 2 and made
    gc.collect()
    assert not [demand for demand in made if demand() is not None]


def test_compiled_programs_have_a_bound(monkeypatch):
    from evaluator.stations.engine.fcfs_reserved import run_lanes

    assert MOST_PROGRAMS > 1000  # of the tests, which count programs
    run_lanes.clear_cache()
    monkeypatch.setattr("evaluator.device.MOST_PROGRAMS", 2)
    first, *_ = (sweep(scenario(f"workload.requests={count}")) for count in (60, 120, 240))
    assert 0 < run_lanes._cache_size() <= 2
    assert sweep(scenario("workload.requests=60")).drop_attrs().identical(first.drop_attrs())


def test_the_collector_rests_for_a_while_and_not_for_good():
    with pytest.raises(ZeroDivisionError), without_collecting():
        assert not gc.isenabled()
        raise ZeroDivisionError
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collecting():
            pass
        assert not gc.isenabled()  # as it was
    finally:
        gc.enable()
