"""What engines do by themselves, by release: the tables, and what becomes of releases that they do not have."""

from dataclasses import replace

import pytest

from evaluator.catalog import engine_rules
from evaluator.catalog.engine_rules import KEYS, dotted, load_engine_rules
from evaluator.catalog.engines import ENGINES, serving_engine
from evaluator.catalog.hardware import load_hardware
from evaluator.errors import InputError
from evaluator.yaml import loads_yaml


def defaults(version, hardware="h100-sxm"):
    return serving_engine("vllm").defaults(load_hardware(hardware), 8, 4, version)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_row_has_a_source_and_every_release_has_every_key(engine):
    table = load_engine_rules(engine)
    assert all(rule.source for rule in table.rules)
    for release in {rule.since for rule in table.rules if rule.since >= table.oldest}:
        assert set(KEYS) <= set(table.at(release))


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        # (sequences and tokens on an A100, tokens on a B200, part of the memory, whole prompt)
        ("0.8.5", (1024, 8192, 8192, 0.9, False)),
        ("0.9", (256, 2048, 8192, 0.9, False)),
        ("v0.18.1", (256, 2048, 8192, 0.9, False)),
        ("0.19.0", (256, 2048, 8192, 0.9, True)),
        ("0.20.2", (256, 2048, 8192, 0.92, True)),
        ("0.23", (256, 2048, 8192, 0.92, True)),  # between two rows: as the row before
        ("0.28", (256, 2048, 16384, 0.92, True)),
        ("0.32.0", (256, 2048, 16384, 0.92, True)),
        ("0.33", (256, 2048, 16384, 0.92, True)),
        (None, (256, 2048, 16384, 0.92, True)),
    ],
)
def test_defaults_of_vllm_by_release(version, expected):
    a100, b200 = defaults(version, "a100-sxm"), defaults(version, "b200-sxm")
    found = (a100.max_num_seqs, a100.max_num_batched_tokens, b200.max_num_batched_tokens)
    assert (*found, a100.memory_fraction, a100.full_prompt) == expected
    assert (a100.admission, a100.prefix_caching, a100.block_tokens) == ("on_demand", True, 16)


def test_cpus_have_more_with_every_device_since_0_10():
    assert [defaults(version, "cpu-grace").max_num_seqs for version in ("0.9.2", "0.10.0")] == [32, 256]


def test_a_small_gpu_with_much_memory_has_small_batches_since_0_33():
    # GB10 (DGX Spark): 128 GB, which had the limits of an H100 before.
    spark = replace(load_hardware("h100-sxm"), name="dgx-spark-gb10")
    found = [load_engine_rules("vllm").limits(release, spark) for release in ((0, 32), (0, 33))]
    assert [(each.max_num_seqs, each.max_num_batched_tokens) for each in found] == [(1024, 8192), (256, 2048)]


def test_planning_ahead_is_told_and_not_simulated_by_default():
    table = load_engine_rules("vllm")
    before, since = (table.at(table.release(version))["batching.planning"] for version in ("0.13", "0.14"))
    assert (before.value, before.simulated) == ("at_once", "at_once")
    assert (since.value, since.simulated) == ("asynchronous", "at_once")
    assert "async_scheduling" in since.why
    assert defaults("0.14").planning == "at_once"


def test_releases_of_every_form_are_read():
    table = load_engine_rules("vllm")
    found = [table.release(text) for text in ("0.15", "v0.15.1", " 0.11.0.post2 ", "0.20.0rc1", "0.20.1+cu129")]
    assert list(map(dotted, found)) == ["0.15", "0.15.1", "0.11.0", "0.20.0", "0.20.1"]
    assert table.release(None) == (0, 33)


@pytest.mark.parametrize(
    ("version", "message"),
    [
        ("0.7.3", r"vLLM 0\.7\.3 is not in the table of its defaults, which knows 0\.8 to 0\.33; name one of these"),
        ("0.34", r"knows 0\.8 to 0\.33; name one of these, and say what differs by its own keys"),
        ("0.2", r"write 0\.20 in quotes, since without them YAML takes it for the number 0\.2"),
        ("latest", r"'latest' is no release of vLLM; write one such as '0\.33'"),
        ("", "is no release of vLLM"),
        ("1", "is no release of vLLM"),
    ],
)
def test_unknown_releases_are_refused(version, message):
    with pytest.raises(InputError, match=message):
        load_engine_rules("vllm").release(version)


ROW = "{key: kv.block_tokens, since: '1.0', value: 16, source: a}"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (ROW, r"mine\.yaml: rules: there is none of batching\.policy, batching\.limits"),
        (ROW.replace(", source: a", ""), r"mine\.yaml: rules\.1\.source: missing"),
        (ROW.replace("'1.0'", "'one'"), r"rules\.1\.since: expected a release such as '0\.28', got 'one'"),
        (ROW.replace("source: a", "simulated: 32, source: a"), r"rules\.1\.why: missing; say why 32 is taken for 16"),
        (
            ROW.replace("kv.block_tokens", "kv.blocks"),
            r"rules\.1\.key: 'kv\.blocks' is unknown; did you mean kv\.block",
        ),
        (
            "{key: batching.limits, since: '1.0', source: a, "
            "devices: [{memory_bytes: 1GB, max_num_seqs: 1, max_num_batched_tokens: 1}]}",
            r"rules\.1\.devices: the last must hold on every device",
        ),
    ],
)
def test_tables_are_read_strictly(rules, message):
    text = f"name: mine\nlabel: Mine\nread_until: '1.0'\nrules: [{rules}]"
    with pytest.raises(InputError, match=message):
        engine_rules._read(loads_yaml(text, "mine.yaml"), "mine.yaml", "mine")
