"""The catalog: models, hardware, length distributions and calibration sets as data files with sources.

*Files.* ``store`` finds them, ``fields`` reads them strictly, ``state`` says which there were.

*Entries.* ``model`` (read by ``read_model``; ``parameters`` counts, ``published`` names), ``hardware`` (``devices``
names it, ``what_if`` makes other ones), ``lengths``, ``links``, ``storage``.

*Engines.* ``engines`` and the tables of their releases, ``engine_rules``; kernels by release or library: ``tuned``,
``delta_rule``, ``attention_kernels``, ``exchange_kernels``.

*Calibration sets.* ``choice`` finds the set that serves; ``calibration`` reads one, made of ``efficiency``,
``launches``, ``api_servers``, ``iterations``, ``eager`` or ``own_server``. Of devices without: ``relatives``,
``served``, ``transferred``.
"""

from evaluator.catalog.calibration import Calibration, OperatorEfficiency
from evaluator.catalog.choice import load_calibration
from evaluator.catalog.hardware import load_hardware
from evaluator.catalog.lengths import LengthTable, lengths_to_yaml, load_lengths, summarise_lengths
from evaluator.catalog.links import PoolLink, load_link
from evaluator.catalog.parameters import active_parameters, layer_parameters, parameter_count, parameters_by_part
from evaluator.catalog.read_model import load_model, model_to_yaml
from evaluator.catalog.storage import Storage, load_storage
from evaluator.catalog.store import data_folder, names

__all__ = [
    "Calibration",
    "LengthTable",
    "OperatorEfficiency",
    "PoolLink",
    "Storage",
    "active_parameters",
    "data_folder",
    "layer_parameters",
    "lengths_to_yaml",
    "load_calibration",
    "load_hardware",
    "load_lengths",
    "load_link",
    "load_model",
    "load_storage",
    "model_to_yaml",
    "names",
    "parameter_count",
    "parameters_by_part",
    "summarise_lengths",
]
