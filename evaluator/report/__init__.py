"""The dataset as people read it. Public: the tables of a sweep, of a search and of elasticities, and pictures.

``table/``, ``picture/`` and ``page/`` have a file for each; ``accessor`` is ``dataset.evaluator``, ``estimate`` the
text of one. What they share: ``ranking`` and ``axes`` of what was swept, the words of ``labels``,
``search`` and ``elasticities`` of such datasets, ``accuracy`` of expected errors, ``places`` that these change.
"""

from evaluator.report.elasticities import rows_with_elasticities
from evaluator.report.picture.search import plot_search
from evaluator.report.picture.sensitivity import plot_sensitivity
from evaluator.report.picture.sweep import plot
from evaluator.report.table.ranked import ranked_table
from evaluator.report.table.search import search_table
from evaluator.report.table.sensitivity import elasticity_table

__all__ = [
    "elasticity_table",
    "plot",
    "plot_search",
    "plot_sensitivity",
    "ranked_table",
    "rows_with_elasticities",
    "search_table",
]
