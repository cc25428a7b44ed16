"""Hybrid models have the groups of layers, and as many blocks, as vLLM makes of the same free memory."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from evaluator.catalog import load_model
from evaluator.catalog.model import Model
from evaluator.cost.kv_groups import KvGroup, grouped_layers, grouping_problem
from evaluator.cost.parallel import Parallel
from evaluator.cost.precision import Precision
from evaluator.huggingface import import_config

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "recordings" / "blocks-vllm.json").read_text())


@cache
def published() -> dict[str, dict[str, object]]:
    lines = (HERE.parent / "huggingface" / "published_configs.jsonl").read_text().splitlines()
    return {found["name"]: found["config"] for found in map(json.loads, lines)}


@cache
def model_named(name: str) -> Model:
    return import_config(published()[name], name) if name in published() else load_model(name)


def kind(group: KvGroup) -> str:
    if group.state or group.window is None:
        return "state" if group.state else "full"
    return f"{'chunk' if group.chunked else 'window'} {group.window}"


@pytest.mark.parametrize("row", RECORDED["rows"], ids=lambda row: f"{row['model']} {row['tensor']}")
def test_groups_and_blocks_are_those_of_vllm(row):
    model, parallel = model_named(row["model"]), Parallel(row["tensor"])
    assert grouping_problem(model, Precision(), parallel) is None
    of = grouped_layers(model, Precision(), parallel, 16)
    assert of is not None
    assert sorted(Counter(map(kind, of.groups)).items()) == [tuple(pair) for pair in row["groups"]]
    sizes = ("layers", "block_tokens", "page_bytes")
    assert [getattr(of, name) for name in sizes] == [row[name] for name in sizes]
    assert RECORDED["free_bytes"] // of.block_bytes == row["blocks"]


def test_models_of_every_kind_are_recorded():
    kinds = {name.split()[0] for row in RECORDED["rows"] for name, _ in row["groups"]}
    assert kinds == {"full", "window", "chunk", "state"}
    assert len({row["model"] for row in RECORDED["rows"]}) >= 10
