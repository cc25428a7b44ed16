"""Where a model's config is looked for: files, folders, and the local cache of the Hub."""

import json

import pytest

from evaluator.catalog import load_model
from evaluator.errors import InputError
from evaluator.huggingface import import_config
from evaluator.huggingface.files import config_file, hub_cache

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 8, "vocab_size": 100,
    "num_hidden_layers": 4, "max_position_embeddings": 2048,
}  # fmt: skip
MISTRAL = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "hidden_dim": 128, "head_dim": 16, "vocab_size": 9}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the Hub with two revisions of one model; the files are links, as huggingface_hub writes them."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub" / "models--org--Model-1B"
    (folder / "blobs").mkdir(parents=True)
    for revision, layers in (("aaa", 4), ("bbb", 6)):
        (folder / "blobs" / f"of-{revision}").write_text(json.dumps({**LLAMA, "num_hidden_layers": layers}))
        (folder / "snapshots" / revision).mkdir(parents=True)
        (folder / "snapshots" / revision / "config.json").symlink_to(f"../../blobs/of-{revision}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("aaa")
    return folder


@pytest.mark.parametrize("by_name", [True, False])
def test_the_local_cache_of_the_hub(cache, by_name):
    model = import_config("org/Model-1B" if by_name else cache)
    assert (model.name, model.layers[0].count) == ("model-1b", 4)  # of the revision main
    (cache / "refs" / "main").unlink()
    assert config_file(cache).is_file()


def test_what_is_not_in_the_cache(cache):
    with pytest.raises(InputError, match="there is no file org/Model-2B, nor a model of that name in the Hub's local"):
        import_config("org/Model-2B")
    with pytest.raises(InputError, match=r"there is no config.json or params.json in .*blobs"):
        import_config(cache / "blobs")
    with pytest.raises(InputError, match=r"there is no file nowhere\.json"):
        import_config("nowhere.json")


def test_folders(tmp_path):
    folder = tmp_path / "org--Small-1B"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps({**MISTRAL, "max_seq_len": 1024}))
    assert import_config(folder).name == "small-1b"
    (folder / "config.json").write_text(json.dumps(LLAMA))
    assert import_config(folder).layers[0].count == 4  # the usual file goes first


@pytest.mark.parametrize(
    ("variables", "expected"),
    [({"HF_HOME": "/a"}, "/a/hub"), ({"XDG_CACHE_HOME": "/b"}, "/b/huggingface/hub"), ({"HF_HUB_CACHE": "/c"}, "/c")],
)
def test_the_cache_is_where_huggingface_hub_has_it(monkeypatch, variables, expected):
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(hub_cache()) == expected


def test_a_config_stands_for_a_model_of_the_catalog(tmp_path, evaluator):
    path = tmp_path / "novel-1b.json"
    path.write_text(json.dumps({**LLAMA, "model_type": "novel"}))
    assert load_model(str(path)) == import_config(path)
    with pytest.raises(InputError, match="there is no file"):
        load_model(str(tmp_path / "none.json"))
    code, text, said = evaluator("estimate", "--model", str(path), "--hardware", "h100-sxm", "--prompt", "99")
    assert (code, text.splitlines()[0]) == (0, "novel-1b on 1 x h100-sxm (TP 1, PP 1, EP 1)")
    assert "novel-1b: assumed: model_type novel is not known" in said


@pytest.mark.parametrize(
    "name", ["../../evil", "a\nb", "a/b", "a\\b", "\x1b[31m", ".hidden", "-x", " ", "a ", "x" * 101]
)
def test_a_name_is_that_of_a_file(name):
    with pytest.raises(InputError, match="is no name for a model: its file is called so"):
        import_config(LLAMA, name)
    assert import_config(LLAMA, "größe-1.5b_v2").name == "größe-1.5b_v2"


def test_an_absurd_model_is_refused():
    with pytest.raises(InputError, match=r"config\.json: its sizes make [\d.e+]+ B parameters, which no model has"):
        import_config({**LLAMA, "hidden_size": 8 * 10**8, "intermediate_size": 10**9}, "huge")


def test_the_mark_of_an_editor_is_no_content(tmp_path):
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(LLAMA), encoding="utf-8")
    assert import_config(tmp_path).layers[0].count == 4
