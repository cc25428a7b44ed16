"""The files of a model: where its ``config.json`` is (a file, a folder, the Hub's local cache), and its strict JSON."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.yaml import read_text

_FILES = ("config.json", "params.json")
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def config_file(given: str | Path) -> Path:
    """The file that is meant: itself, that of a folder (Mistral's ``params.json`` where there is no other), the latest
    of a folder ``models--ORGANISATION--NAME`` of the Hub's cache, or of a model ``ORGANISATION/NAME`` in it.

    Nothing is downloaded. Raises InputError where there is no such file.
    """
    path = Path(given)
    if path.is_file():
        return path
    if path.is_dir():
        in_folder = _in_folder(path)
        if in_folder is None:
            raise InputError(f"there is no {' or '.join(_FILES)} in {path}")
        return in_folder
    # After files and folders: a relative path of two names looks like a model's name on the Hub.
    if _HUB_ID.fullmatch(str(given)):
        folder = hub_cache() / f"models--{str(given).replace('/', '--')}"
        cached = _in_folder(folder) if folder.is_dir() else None
        if cached is not None:
            return cached
        raise InputError(
            f"there is no file {given}, nor a model of that name in the Hub's local cache ({hub_cache()}); download its"
            f" config.json first (hf download {given} config.json)"
        )
    raise InputError(f"there is no file {given}")


def hub_cache() -> Path:
    """The folder that ``huggingface_hub`` keeps models in, by its environment variables."""
    # The order of ``huggingface_hub.constants``: HF_HUB_CACHE, its old name, then HF_HOME/hub.
    stated = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    return Path(stated or os.path.join(home, "hub")).expanduser()


def model_name(path: Path) -> str:
    """The name of the model that a file is of: of its folder or of itself, lower case, without the organisation."""
    folder = path.absolute().parent  # not resolved: files of the Hub's cache are links
    if folder.parent.name == "snapshots":
        # models--ORGANISATION--NAME/snapshots/COMMIT/config.json: the name is two folders up.
        folder = folder.parent.parent
    stem = folder.name if path.name in _FILES else path.stem
    return stem.rsplit("--", 1)[-1].lower()


def check_name(name: str) -> str:
    """``name``, if a model in the catalog can have it: its file is called so. InputError else."""
    odd = next((sign for sign in name if not sign.isprintable() or sign in "/\\:"), None)
    if odd is not None or not name.strip() or name != name.strip() or name.startswith((".", "-")) or len(name) > 100:
        raise InputError(
            f"{name[:100]!r} is no name for a model: its file is called so; use letters, digits, '.', '_' and '-'"
        )
    return name


def _in_folder(folder: Path) -> Path | None:
    """The file of a folder; of a folder of the Hub's cache that of the revision ``main``, else of the latest."""
    named = next((folder / name for name in _FILES if (folder / name).is_file()), None)
    if named is not None:
        return named
    snapshots, main = folder / "snapshots", folder / "refs" / "main"
    # Names of snapshots are hashes of commits: only their times tell which is the latest.
    revisions = sorted(snapshots.iterdir(), key=lambda snapshot: snapshot.stat().st_mtime) if snapshots.is_dir() else []
    # ``refs/main`` holds the commit that the branch pointed to when it was last downloaded; it goes last and is
    # looked at first.
    if main.is_file():
        revisions.append(snapshots / main.read_text(encoding="utf-8").strip())
    files = (revision / name for revision in reversed(revisions) for name in _FILES)
    return next((file for file in files if file.is_file()), None)


def read_json(path: str | Path) -> Any:
    """The value of a JSON file. InputError, with file and line, where it cannot be read, or has a key twice."""

    # json keeps the last of two equal keys without a word, and a config that was edited by hand has them.
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if twice:
            raise InputError(f"{path}: the key {twice[0]!r} is there twice; keep the one that is right")
        return dict(pairs)

    text = read_text(path)
    try:
        return json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply to be a config.json; is it the right file?") from None
    except InputError:
        raise
    except ValueError:  # a whole number of more digits than Python converts
        raise InputError(f"{path}: a number has too many digits to be read; correct it") from None
