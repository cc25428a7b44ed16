"""Published configs: models from a Hugging Face ``config.json``, its keys used, known to be irrelevant, or refused.

A room of its own: it needs of the catalog the records of a model and the reader of keys, and gives the model of a file.
Why transformers' own config classes do not carry half of it: CONTRIBUTING.md, "Libraries that were tried".
"""

from evaluator.huggingface.families import FAMILIES
from evaluator.huggingface.files import config_file
from evaluator.huggingface.importing import import_config

__all__ = ["FAMILIES", "config_file", "import_config"]
