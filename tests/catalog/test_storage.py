"""Storage that keeps KV: the shipped files, and what is said of one that cannot be read."""

import math

import pytest

from evaluator.catalog import load_storage, names
from evaluator.errors import InputError

GOOD = """
name: disk
bandwidth: 7GB/s
latency: 50us
capacity: 1TB
sources: {bandwidth: 'a sheet', latency: 'a sheet', capacity: 'a sheet'}
"""


@pytest.mark.parametrize("name", names("storage"))
def test_every_figure_has_a_source(name):
    found = load_storage(name)
    assert found.name == name and {"bandwidth", "latency", "capacity"} <= set(found.sources)
    assert found.shared_by == 1 or "shared_by" in found.sources
    assert found.bandwidth > 1e9 and 0 < found.latency_s < 1 and found.capacity_bytes > 1e10


def test_the_figures_of_the_microbenchmark():
    ddr4, nvme = load_storage("ddr4"), load_storage("nvme")
    assert (ddr4.bandwidth, ddr4.latency_s) == (150e9, 80e-9)
    assert (nvme.bandwidth, nvme.latency_s) == (7e9, 50e-6)
    assert load_storage("object-store").capacity_bytes == math.inf


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: disk", "name: disc", "disk.yaml: name: 'disc' is not the file's name 'disk'"),
        ("bandwidth: 7GB/s", "bandwidth: 0GB/s", "disk.yaml: bandwidth: must be above 0, got '0GB/s'"),
        ("latency: 50us", "latency: 50GB", "disk.yaml: latency: unknown unit 'GB'"),
        ("latency: 50us", "", "disk.yaml: latency: missing"),
        (", capacity: 'a sheet'", "", "disk.yaml: sources.capacity: missing"),
        ("name: disk", "name: disk\nwatts: 3", "disk.yaml: watts: unknown key"),
        ("name: disk", "name: disk\nshared_by: some", "disk.yaml: shared_by: expected a whole number of at least 1"),
        ("name: disk", "name: disk\nshared_by: 4", "disk.yaml: sources.shared_by: missing"),
    ],
)
def test_an_unusable_file_is_refused(tmp_path, old, new, message):
    (tmp_path / "disk.yaml").write_text(GOOD.replace(old, new, 1))
    with pytest.raises(InputError) as raised:
        load_storage(str(tmp_path / "disk.yaml"))
    assert str(raised.value).startswith(message)


def test_an_unknown_storage_is_answered_with_close_ones():
    with pytest.raises(InputError, match=r"unknown storage 'nmve'; did you mean nvme"):
        load_storage("nmve")
