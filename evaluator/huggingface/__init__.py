"""Published configs: models from a Hugging Face ``config.json``, its keys used, known to be irrelevant, or refused.

A room of its own: it needs of the catalog the records of a model and the reader of keys, and gives the model of a file.
``importing`` reads a file found by ``files``, in whatever of the ``dialects``; ``likeness`` finds its ``family``, of
which each file of ``families/`` has some. A family is made of ``mixers``, ``recurrences`` and ``blocks`` by the
``pattern`` of its layers, from the keys that ``config`` gives and ``names`` knows; beside it: ``quantization`` by
``methods``, and ``encoders``.

Why transformers' own config classes do not carry half of it: CONTRIBUTING.md, "Libraries that were tried".
"""

from evaluator.huggingface.families import FAMILIES
from evaluator.huggingface.files import config_file
from evaluator.huggingface.importing import import_config

__all__ = ["FAMILIES", "config_file", "import_config"]
