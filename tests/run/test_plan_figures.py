"""What a dataset says of its models before anything runs."""

from __future__ import annotations

import json

from evaluator.plan import plan
from evaluator.run.plan_figures import notes_of
from tests.scenario.build import scenario

CONFIG = {
    "model_type": "novelty", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 4096, "vocab_size": 32000, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def test_a_dataset_says_what_was_assumed_of_a_model(tmp_path):
    (tmp_path / "novelty").mkdir()
    path = tmp_path / "novelty" / "config.json"
    path.write_text(json.dumps(CONFIG), "utf-8")
    note = notes_of(plan(scenario(f"deployment.model={path}")))["model_note"]
    assert note == (
        "novelty: assumed: model_type novelty is not known; its layers are those of llama, which reads all of its keys"
    )
    assert notes_of(plan(scenario())) == {}
