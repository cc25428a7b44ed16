"""``evaluator catalog``: lists, files and imported models."""

import pytest


def test_catalog_models_is_a_table(evaluator):
    code, out, err = evaluator("catalog", "models")
    assert (code, err) == (0, "")
    header, rule, *rows = out.splitlines()
    assert header.split("  ")[0] == "name" and set(rule) == {"-", " "}
    row = next(row for row in rows if row.startswith("llama-3.1-70b "))
    assert "70.55 B" in row and "80 x GQA+dense" in row and "327,680" in row and "131,072" in row
    assert any("MLA+MoE 8/256+shared" in row for row in rows)


def test_catalog_hardware_is_a_table(evaluator):
    code, out, _ = evaluator("catalog", "hardware")
    assert code == 0
    row = next(row for row in out.splitlines() if row.startswith("h100-sxm "))
    assert row.split()[1] == "gpu" and "3350" in row and "nvlink 450" in row


@pytest.mark.parametrize(
    ("kind", "name"), [("lengths", "azure-conv-2023"), ("calibrations", "datasheet"), ("scenarios", "quickstart")]
)
def test_catalog_lists_names(evaluator, kind, name):
    code, out, _ = evaluator("catalog", kind)
    assert code == 0
    assert name in out.splitlines()


def test_catalog_links_is_a_table(evaluator):
    code, out, _ = evaluator("catalog", "links")
    assert code == 0
    assert ["inter-rack", "128", "2e+04"] in [row.split() for row in out.splitlines()]


def test_catalog_show_prints_the_file(evaluator):
    code, out, _ = evaluator("catalog", "show", "h100-sxm")
    assert code == 0
    assert "source" in out and out.startswith("# ")
    for published, entry in (("Qwen/Qwen3-32B", "qwen3-32b"), ("H200", "h200-sxm")):
        code, out, _ = evaluator("catalog", "show", published)
        assert code == 0 and f"name: {entry}" in out


def test_catalog_show_tells_near_names(evaluator):
    code, _, err = evaluator("catalog", "show", "h100-smx")
    assert code == 2
    assert err.startswith("error: the catalog has no entry 'h100-smx'; did you mean h100-sxm")


LLAMA = (
    '{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,'
    ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,'
    ' "max_position_embeddings": 512, "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": false}'
)


def test_catalog_import_writes_what_the_catalog_reads(evaluator, tmp_path):
    from evaluator.catalog import load_model

    (tmp_path / "config.json").write_text(LLAMA)
    out = tmp_path / "tiny.yaml"
    code, printed, err = evaluator("catalog", "import", tmp_path, "--name", "tiny", "--out", out)
    assert (code, printed) == (0, "")
    assert err.splitlines()[2].startswith("tiny ") and "2 x GQA+dense" in err.splitlines()[2]
    assert err.endswith(f"\nwrote {out}\n")
    model = load_model(str(out))
    assert (model.name, model.hidden, model.layers[0].count) == ("tiny", 64, 2)
    code, printed, _ = evaluator("catalog", "import", tmp_path / "config.json", "--name", "tiny")
    assert code == 0 and printed.rstrip() == out.read_text().rstrip()


def test_an_imported_model_is_found_by_its_files_name(evaluator, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(LLAMA)
    code, _, err = evaluator("catalog", "import", "config.json", "--out", "my-models/models/llm/mine.yaml")
    assert code == 0 and err.endswith("\nwrote my-models/models/llm/mine.yaml\n")
    monkeypatch.setenv("EVALUATOR_PATH", "my-models")
    options = ["--hardware", "h200-sxm", "--prompt", "64", "--output", "8"]
    code, out, err = evaluator("estimate", "--model", "mine", *options)
    assert (code, err) == (0, "")
    assert out.startswith("mine on 1 x h200-sxm")


def test_catalog_import_refuses_what_it_does_not_know(evaluator, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(LLAMA.replace('"vocab_size"', '"attention_holes": 3, "vocab_size"'))
    code, _, err = evaluator("catalog", "import", path)
    assert code == 2 and "attention_holes" in err
    code, _, err = evaluator("catalog", "import", tmp_path / "none.json")
    assert (code, err) == (2, f"error: there is no file {tmp_path / 'none.json'}\n")


def test_a_script_that_starts_servers_is_imported_as_a_deployment(evaluator, tmp_path):
    path, out = tmp_path / "serve.sh", tmp_path / "d.yaml"
    path.write_text("vllm serve Qwen/Qwen3-8B -tp 2 --trust-remote-code --novel-flag 3")
    code, text, notes = evaluator("catalog", "import", path)
    assert code == 0 and "tensor_parallel: 2" in text and "model: qwen3-8b" in text
    assert "without a meaning for a simulation: --trust-remote-code" in notes
    assert "unknown to vllm 0.28.0, and left out: --novel-flag" in notes and "hardware is for you to add" in notes
    code, text, notes = evaluator("catalog", "import", path, "--out", out)
    assert code == 0 and not text and "tensor_parallel: 2" in out.read_text()
    path.write_text("vllm serve Qwen/Qwen3-8B --enable-lora --fully-sharded-loras")
    notes = evaluator("catalog", "import", path)[2]
    assert "not simulated as they say: --fully-sharded-loras (one of an adapter's two products" in notes
    path.write_text("echo nothing")
    code, _, notes = evaluator("catalog", "import", path)
    assert code == 2 and "starts no server that can be read" in notes
