"""Published configs with values changed, dropped or added at random: read, or refused by a message, never a crash."""

import copy
import json
import random
from pathlib import Path

import pytest

from evaluator.catalog import active_parameters, model_to_yaml, parameter_count
from evaluator.catalog.read_model import read_model
from evaluator.errors import InputError
from evaluator.huggingface import import_config
from evaluator.yaml import loads_yaml

CONFIGS = [
    json.loads(line)["config"] for line in (Path(__file__).parent / "published_configs.jsonl").read_text().splitlines()
]
VALUES = (
    None, 0, 1, -1, 3, 64, 10**12, 1e30, -0.5, True, False, "", "x", "auto", "M*", [], [1], ["a"], [None], {}, {"a": 1},
    [[1, 2]], [1] * 61,
)  # fmt: skip
KEYS = (
    "foo_size", "num_experts", "kv_lora_rank", "layer_types", "sliding_window", "model_type", "architectures",
    "text_config", "quantization_config", "vision_config", "hidden_size", "mlp_only_layers", "block_configs",
    "linear_attn_config", "num_nextn_predict_layers", "moe",
)  # fmt: skip


def _levels(config):
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _levels(value)


def _mutated(dice):
    config = copy.deepcopy(dice.choice(CONFIGS))
    for _ in range(dice.randint(1, 3)):
        level = dice.choice(list(_levels(config)))
        key = dice.choice([*level, dice.choice(KEYS)])
        if dice.random() < 0.2:
            level.pop(key, None)
        else:
            level[key] = copy.deepcopy(dice.choice(VALUES))
    return config


@pytest.mark.parametrize("seed", range(4))
def test_mutations(seed):
    dice, read = random.Random(seed), 0
    for _ in range(150):
        config = _mutated(dice)
        try:
            model = import_config(config, "mutant")
        except InputError as error:
            assert str(error).strip(), config
            continue
        read += 1
        assert 0 < active_parameters(model) <= parameter_count(model), config
        assert read_model(loads_yaml(model_to_yaml(model)), "text") == model
    assert 0 < read < 150
