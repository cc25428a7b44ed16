"""Results as labelled arrays. Public: datasets read, written and unstacked, what they were swept over and judged by.

``run`` builds them from the modules of this folder: coordinates, dataset, schema, files, chunks, requests, selection.
"""

from evaluator.results.dataset import unstack
from evaluator.results.files import read, write
from evaluator.results.requests import write_requests
from evaluator.results.schema import axes_of, objectives_of

__all__ = ["axes_of", "objectives_of", "read", "unstack", "write", "write_requests"]
