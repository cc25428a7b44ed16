"""Strict JSON: no key twice, no nesting that exhausts the stack; errors name the file and the line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from evaluator.errors import InputError
from evaluator.yaml import read_text


def read_json(path: str | Path) -> Any:
    """The value of a JSON file; InputError where it cannot be read."""

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
