"""Encoders from their config.json: as the catalog has them."""

from dataclasses import replace

import pytest

from evaluator.catalog import load_model
from evaluator.errors import InputError
from evaluator.huggingface import import_config

COMMON = {
    "attention_probs_dropout_prob": 0.1, "classifier_dropout": None, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "initializer_range": 0.02, "position_embedding_type": "absolute", "torch_dtype": "float32",
    "transformers_version": "4.38.1", "use_cache": True,
}  # fmt: skip
E5 = COMMON | {
    "architectures": ["BertModel"], "gradient_checkpointing": False, "hidden_size": 768, "intermediate_size": 3072,
    "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert", "num_attention_heads": 12,
    "num_hidden_layers": 12, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30522,
}  # fmt: skip
BGE = COMMON | {
    "architectures": ["XLMRobertaForSequenceClassification"], "bos_token_id": 0, "eos_token_id": 2, "hidden_size": 1024,
    "id2label": {"0": "LABEL_0"}, "intermediate_size": 4096, "label2id": {"LABEL_0": 0}, "layer_norm_eps": 1e-05,
    "max_position_embeddings": 8194, "model_type": "xlm-roberta", "num_attention_heads": 16, "num_hidden_layers": 24,
    "output_past": True, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": 250002,
}  # fmt: skip


@pytest.mark.parametrize(("name", "config"), [("e5-base", E5), ("bge-reranker-v2-m3", BGE)])
def test_import_gives_the_file_of_the_catalog(name, config):
    found, wanted = import_config(config, name), load_model(name)
    assert replace(found, source=wanted.source, published_parameters=wanted.published_parameters) == wanted
    assert found.notes == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_decoder": True}, "is_decoder: True is a structure that is not supported"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type: relative_key is not supported"),
        ({"pruned_heads_of_mine": 3}, "pruned_heads_of_mine"),
    ],
)
def test_what_no_reader_knows_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        import_config(E5 | change, "mine")


def test_a_level_is_an_encoder_by_its_name():
    """Ovis 2 calls its encoder a visual tokenizer, whose words are looked up and scored."""
    text = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8,
        "vocab_size": 100, "num_hidden_layers": 4, "max_position_embeddings": 2048,
    }  # fmt: skip
    tower = {"backbone_config": {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 64}, "vocab_size": 500}
    model = import_config({"model_type": "ovis", "llm_config": text, "visual_tokenizer_config": tower}, "small")
    assert model.encoder_parameters == 2 * (4 * 32 * 32 + 2 * 32 * 64) + 32 * 32 + 32 * 64 + 2 * 64 * 500
    several = {"width": {"clip": {"width": 32, "layers": 2}, "sam": {"width": 16, "layers": 3}}}
    model = import_config({"model_type": "two", "language_config": text, "vision_config": several}, "small")
    assert model.encoder_parameters == 2 * 12 * 32 * 32 + 32 * 32 + 32 * 64 + 3 * 12 * 16 * 16 + 16 * 16 + 16 * 64
