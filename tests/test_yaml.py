from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaluator.errors import InputError
from evaluator.yaml import dumps_yaml, load_yaml, loads_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3.35e12", 3.35e12),
        ("1e9", 1e9),
        (".5", 0.5),
        ("-2.", -2.0),
        ("+7", 7),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("true", True),
        ("FALSE", False),
        ("~", None),
        ("", None),
        ("null", None),
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("2024-01-01", "2024-01-01"),
        ("12:30:00", "12:30:00"),
        ("1_000", "1_000"),
        ("80GB", "80GB"),
        ("'1e9'", "1e9"),
        ("-.inf", float("-inf")),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    read = loads_yaml(f"key: {text}")["key"]
    assert read == value
    assert type(read) is type(value)


def test_nan_is_a_float_for_the_readers_to_refuse():
    assert loads_yaml("a: .nan")["a"] != loads_yaml("a: .nan")["a"]


def test_anchors_and_plain_keys():
    assert loads_yaml("a: &x {b: [1, 2]}\nc: *x\n8: eight") == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, 8: "eight"}
    assert loads_yaml("<<: {a: 1}") == {"<<": {"a": 1}}  # 1.2 has no merge key: a scenario refuses it as unknown


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", r"f\.yaml, line 3: the key 'a' is there twice \(first on line 1\)"),
        ("a:\n  b: 1\n  b: 2", r"f\.yaml, line 3: the key 'b' is there twice \(first on line 2\)"),
        ("a: [1,", r"f\.yaml, line 1|f\.yaml, line 2"),
        ("a: b: c", r"f\.yaml, line 1: mapping values are not allowed"),
        ("a: !foo 1", r"f\.yaml, line 1: the tag '!foo' is not supported"),
        ("a: !!python/object:os.system {}", r"f\.yaml, line 1: the tag .*python.* is not supported"),
        ("a: !!set {b}", r"f\.yaml, line 1: the tag .*set.* is not supported"),
        ("a: !!int x", r"f\.yaml, line 1: 'x' is not an integer"),
        ("a: !!float x", r"f\.yaml, line 1: 'x' is not a number"),
        ("a: !!bool yes", r"f\.yaml, line 1: 'yes' is not true or false"),
        ("a: !!map 1", r"f\.yaml, line 1: this is not a mapping"),
        ("- 1\n---\n- 2", r"f\.yaml, line 2: expected a single document"),
        ("? [1]\n: 2", r"f\.yaml, line 1: a key must be a name or a number"),
        ("a: \x00", r"f\.yaml: not readable as YAML"),
        ("a: &a [*a]", r"f\.yaml, line 1: sections and lists are nested more than 64 levels deep"),
    ],
)
def test_errors_name_the_file_and_the_line(text, message):
    with pytest.raises(InputError, match=message):
        loads_yaml(text, "f.yaml")


def test_files(tmp_path: Path):
    good = tmp_path / "good.yaml"
    good.write_text("unit: µs", encoding="utf-8")
    assert load_yaml(good) == {"unit": "µs"}
    with pytest.raises(InputError, match=r"none\.yaml: there is no such file"):
        load_yaml(tmp_path / "none.yaml")
    with pytest.raises(InputError, match="this is a folder"):
        load_yaml(tmp_path)
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"a: \xff\xfe")
    with pytest.raises(InputError, match=r"bad\.yaml: not UTF-8 text \(byte 3\)"):
        load_yaml(bad)


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=12),
    st.sampled_from(["no", "1e9", "3.35e12", "null", "0o17", "2024-01-01", "~", "true", "", " a", "a: b", "- x", "#"]),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc.-", min_size=1), inner, max_size=3),
)


@given(_values)
def test_what_is_written_is_read_back(value):
    assert loads_yaml(dumps_yaml(value)) == value
