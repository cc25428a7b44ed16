"""Results as labelled arrays. Public: datasets read, written and unstacked, what they were swept over and judged by.

The room ``run`` builds them of what stands here. A sweep's: ``dataset`` with its ``coordinates``, ``texts`` and what it
says of itself, ``schema`` and ``fallback_report``; what rows tell of one another, ``growth`` of errors and ``chances``
of objectives; one run's: ``requests``, ``iterations``, ``over_time``; ``selection`` finds one configuration. On disk:
``files``, of which ``netcdf`` reads our own, and ``zarr_store``, under a ``lock``; of a sweep that goes on: ``chunks``,
``fingerprint``, ``shards``, ``gather``.
"""

from evaluator.results.dataset import unstack
from evaluator.results.files import read, write
from evaluator.results.requests import write_requests
from evaluator.results.schema import axes_of, objectives_of

__all__ = ["axes_of", "objectives_of", "read", "unstack", "write", "write_requests"]
