"""The catalog: models, hardware, length distributions and calibration sets as data files with sources."""

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
