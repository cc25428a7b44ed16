"""Records that say their keys: the tables that follow from them, and values that are written and read again."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from evaluator.errors import InputError
from evaluator.keys import (
    REQUIRED,
    Place,
    choice,
    count,
    file_there,
    key,
    many,
    no_key,
    number,
    optional,
    quantity,
    section,
    section_of,
    table_of,
    variant,
    written,
)
from evaluator.scenario import load_scenario
from evaluator.scenario.pools import deployment_reader
from evaluator.scenario.workload import workload_reader

HERE = Path(__file__).resolve().parents[2] / "scenarios"
GALLERY = [path for path in sorted(HERE.glob("*.yaml")) if path.stem != "trace-replay"]  # which waits for a trace
PLACE = Place("shop.yaml")


@dataclass(frozen=True)
class Till:
    seconds: float = key(quantity("s", least=0), 2.0, "Of a customer.")
    clerks: int = key(count(), 1, absent=None)


@dataclass(frozen=True)
class Shop:
    city: str = key(choice("Bonn", "Trier"))
    till: Till = key(section(Till), Till())
    days: tuple[int, ...] = key(many(count(most=7)), (1,))
    notes: dict[str, int] = no_key({})


@dataclass(frozen=True)
class Branch(Shop):
    of: str = key(choice("Bonn", "Trier"), "Bonn", absent=REQUIRED)


@dataclass(frozen=True)
class Way:
    kind: str = no_key()
    metres: float | None = key(number(above=0), None, absent=REQUIRED, kinds=("street", "rail"))
    gauge: float | None = key(number(above=0), 1.435, kinds=("rail",))


def test_a_table_has_the_keys_of_a_record_and_those_that_must_be_there_first():
    assert list(table_of(Shop)) == ["city", "till", "days"]
    assert list(table_of(Branch)) == ["city", "of", "till", "days"]
    assert table_of(Till)["seconds"].says == "Of a customer."


def test_what_a_file_leaves_out_may_be_another_value_than_what_python_does():
    assert (Till().clerks, section(Till)({}, PLACE).clerks) == (1, None)
    assert Branch("Bonn").of == "Bonn"
    with pytest.raises(InputError, match=r"shop\.yaml: of: is required; keys of a scenario: city, of, till, days"):
        section(Branch)({"city": "Bonn"}, PLACE)


def test_records_share_no_mutable_default():
    assert Shop("Bonn").notes == {} and Shop("Bonn").notes is not Shop("Bonn").notes


def test_a_field_that_says_nothing_is_refused():
    @dataclass(frozen=True)
    class Bare:
        rooms: int = field(default=1)

    with pytest.raises(ValueError, match=r"Bare\.rooms says not how it is read; use key"):
        table_of(Bare)


def test_kinds_have_the_keys_that_name_them():
    assert [list(table_of(Way, kind)) for kind in ("path", "street", "rail")] == [[], ["metres"], ["metres", "gauge"]]
    tables = {kind: table_of(Way, kind) for kind in ("path", "street", "rail")}
    way = variant("kind", tables, lambda kind, values, place: Way(kind, **values))
    assert way({"kind": "rail", "metres": 5}, PLACE) == Way("rail", 5.0, 1.435)
    with pytest.raises(InputError, match=r"gauge: not a key of kind street \(its keys: metres\); it belongs to rail"):
        way({"kind": "street", "metres": 5, "gauge": 1}, PLACE)


def test_of_optional_keys_nothing_is_there_that_is_not_said():
    shop = section_of(optional(table_of(Shop)), Shop)
    assert shop({}, PLACE) == Shop(None, Till(None, None), None)
    assert shop({"till": {"seconds": "50ms"}}, PLACE) == Shop(None, Till(0.05, None), None)


def test_a_file_lies_beside_the_scenario_or_in_the_current_directory(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    for name in ("here/a.csv", "a.csv", "b.csv"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    place = Place("shop.yaml", folder=tmp_path / "here").key("trace")
    assert file_there("a.csv", place) == str(tmp_path / "here" / "a.csv")
    assert file_there("b.csv", place.item(0)) == str(tmp_path / "b.csv")
    with pytest.raises(InputError, match=r"shop\.yaml: trace: there is no such file: c\.csv \(looked for .*, .*\)"):
        file_there("c.csv", place)


@pytest.mark.parametrize("path", GALLERY, ids=lambda path: path.stem)
def test_a_record_that_is_written_reads_as_itself(path):
    scenario = load_scenario(path)
    place = Place("again", folder=HERE)
    assert workload_reader(written(scenario.workload), place) == scenario.workload
    again = deployment_reader(written(scenario.deployment), place)
    assert written(again) == written(scenario.deployment)
