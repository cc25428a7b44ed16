"""A scenario's traffic against a live server: the same requests that a simulation has, and when they were answered.

``run.py`` is the whole: ``server.py`` asks a server what it takes, ``client.py`` sends one request and reads its
answer, ``schedule.py`` sends all of them at their times, ``metrics.py`` reads what the server tells of itself,
``table.py`` makes of it what ``simulate --requests`` writes.
"""

from evaluator.observe.run import Observed, observe, traffic_of
from evaluator.observe.schedule import LoadLimits
from evaluator.observe.server import PromptForm

__all__ = ["LoadLimits", "Observed", "PromptForm", "observe", "traffic_of"]
