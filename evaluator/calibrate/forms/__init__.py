"""The forms that can be fitted to whole iterations, one per module: ``fit`` of a phase, and what it is judged by."""

from __future__ import annotations

from evaluator.calibrate.forms import polynomial, table

FORMS = {"polynomial": polynomial, "table": table}
"""``fit(phase, rows, axes)`` gives a ``Phase`` and what is to be told of it; ``splits(phase, rows, axes)`` gives pairs
of row numbers, (seen, aside), by which rows are predicted from others."""
