"""The command that compares the simulators on random systems: what it is asked for, and how it counts."""

from __future__ import annotations

import sys

import pytest

from tests.random_systems import __main__ as command
from tests.random_systems.compare import Verdict


def asked(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["random_systems", *map(str, arguments)])
    return command.main()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--part", "autoscalin"), "no structure has 'autoscalin'; choose one of KV from tiers, "),
        (("--each", 0), "--each: must be at least 1, not 0"),
    ],
)
def test_what_could_never_end_is_refused(monkeypatch, capsys, arguments, message):
    with pytest.raises(SystemExit) as end:
        asked(monkeypatch, *arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_a_run_of_which_nothing_is_compared_ends(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "verdicts", lambda *_: [Verdict(0, "reference", "kv.offload_bytes")])
    monkeypatch.setattr(command, "_forget", lambda: None)
    assert asked(monkeypatch, "--out", tmp_path / "lines.jsonl") == 0
    assert f"of {command.FRUITLESS} structures one after the other nothing was compared" in capsys.readouterr().err


def test_a_structure_that_differs_is_written_down_in_a_folder_that_was_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "verdicts", lambda *_: [Verdict(0, "compared", apart=1.0, where="ttft")])
    out = tmp_path / "new" / "lines.jsonl"
    assert asked(monkeypatch, "--structure", 3, "--tries", 0, "--out", out) == 3
    assert (out.parent / "random-system-3-0.yaml").exists()


def test_systems_for_the_reference_alone_are_counted_apart_from_those_that_are_equal():
    systems = [
        {"outcome": "reference", "why": "x", "features": ["host memory"], "apart": 1.0},
        {"outcome": "reference", "why": "x", "features": ["host memory"]},
        {"outcome": "compared", "features": ["classes"]},
        {"outcome": "compared", "features": ["classes"], "apart": 1.0},
    ]
    lines = command._report([{"structure": 1, "cpu_s": 1.0, "systems": systems}])
    assert "| host memory | 0 | 0 | 2 | 1 |" in lines and "| classes | 2 | 1 | 0 | 0 |" in lines
    assert "| together | 2 | 1 | 2 | 1 |" in lines
