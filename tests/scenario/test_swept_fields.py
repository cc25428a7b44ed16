"""Fields as deep as the tables nest, and sections built from shared parts, on tables that no scenario has."""

from dataclasses import dataclass

import numpy as np
import pytest

from evaluator.errors import InputError
from evaluator.keys import Place, count, key, named, section
from evaluator.scenario.encoded import Encoded, combined, interned
from evaluator.scenario.grid import over_points
from evaluator.scenario.swept_fields import field_depth, outermost, rebuilt


@dataclass(frozen=True)
class Cache:
    blocks: int = key(count(), 1)
    units: int = key(count(), 1)


def check_cache(cache, place):
    if cache.units > cache.blocks:
        raise place.key("units").error("more units than blocks")


CACHE = section(Cache, check=check_cache)


@dataclass(frozen=True)
class Pool:
    parallel: int = key(count(), 1)
    replicas: int = key(count(), 1)
    cache: Cache | None = key(CACHE, Cache())


POOL = section(Pool)


@dataclass(frozen=True)
class Site:
    pools: dict[str, Pool] = key(named(POOL))
    rooms: int = key(count(), 1)


SITE = section(Site)
PLACE = Place("site.yaml")
BASE = SITE({"pools": {"prefill": {"parallel": 2}, "decode": {"cache": {"blocks": 4}}}, "rooms": 3}, PLACE)


def test_reading():
    assert Site({"prefill": Pool(2), "decode": Pool(cache=Cache(4))}, 3) == BASE
    with pytest.raises(InputError, match=r"site\.yaml: pools\.a\.cache\.units: more units than blocks"):
        SITE({"pools": {"a": {"cache": {"units": 2}}}}, PLACE)
    with pytest.raises(InputError, match=r"pools\.a b: a name is made of letters"):
        SITE({"pools": {"a b": {}}}, PLACE)
    with pytest.raises(InputError, match=r"pools: expected sections by name, got \{\}"):
        SITE({"pools": {}}, PLACE)


@pytest.mark.parametrize(
    ("keys", "depth"),
    [
        ("rooms", 1),
        ("pools.prefill.parallel", 3),
        ("pools.prefill.cache.units", 4),
        ("pools.prefill.cache", 3),
        ("pools.prefill.cache.unit", 4),  # unknown: refused when it is read
        ("pools.other.parallel", 1),  # a new name: the pools are read as a whole
        ("rooms.x", 1),
    ],
)
def test_a_field_is_as_deep_as_the_tables(keys, depth):
    assert field_depth(SITE, BASE, tuple(keys.split("."))) == depth


def test_below_an_absent_section_the_section_is_the_field():
    assert field_depth(POOL, Pool(cache=None), ("cache", "units")) == 1


def test_a_field_in_another_one_is_read_with_it():
    assert outermost([("a", "b", "c"), ("a", "d"), ("a", "b")]) == (("a", "d"), ("a", "b"))


def part(axis, *values):
    shape = [1, 1, 1]
    shape[axis] = len(values)
    return Encoded(list(values), np.arange(len(values)).reshape(shape))


def test_a_product_over_pools_builds_each_pool_once_per_combination_of_its_own_keys():
    read = {
        ("site", "pools", "prefill", "parallel"): part(0, 1, 2),
        ("site", "pools", "decode", "parallel"): part(1, 1, 2, 4),
        ("site", "pools", "decode", "cache", "blocks"): part(2, 8, 16, 32, 64),
    }
    sites = rebuilt(SITE, BASE, ("site",), read, PLACE, over_points).spread((2, 3, 4))
    assert len(sites) == len({id(site) for site in sites}) == 24
    for name, many in (("prefill", 2), ("decode", 12)):
        assert len({id(site.pools[name]) for site in sites}) == many
    assert len({id(site.pools["decode"].cache) for site in sites}) == 4
    assert sites[-1] == Site({"prefill": Pool(2), "decode": Pool(4, cache=Cache(64))}, 3)
    assert [site.pools["decode"].cache.blocks for site in sites[:5]] == [8, 16, 32, 64, 8]


def test_what_no_axis_touches_is_the_object_of_the_base():
    read = {("site", "pools", "decode", "replicas"): part(0, 1, 2)}
    for site in rebuilt(SITE, BASE, ("site",), read, PLACE, over_points).spread((2, 1, 1)):
        assert site.pools["prefill"] is BASE.pools["prefill"]
        assert site.pools["decode"].cache is BASE.pools["decode"].cache


def test_sections_that_are_rebuilt_are_checked():
    read = {("site", "pools", "decode", "cache", "units"): 5}
    with pytest.raises(InputError, match=r"site\.pools\.decode\.cache\.units: more units than blocks"):
        rebuilt(SITE, BASE, ("site",), read, PLACE)


def test_combinations_that_no_point_has_are_left_out():
    (first, second), codes = combined([(np.array([0, 1, 1]), 1000), (np.array([5, 7, 7]), 10**6)])
    assert (first.tolist(), second.tolist(), codes.tolist()) == ([0, 1], [5, 7], [0, 1, 1])


def test_equal_values_are_one_object():
    values, places = interned([Pool(1), Pool(2), Pool(1), {"a": 1}, {"a": 1}])
    assert (values, places) == ([Pool(1), Pool(2), {"a": 1}], [0, 1, 0, 2, 2])
