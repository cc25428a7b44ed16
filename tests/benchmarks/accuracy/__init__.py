"""How far predictions are from all measurements at hand, by slice: ``make accuracy``.

A campaign is one source of measurements (its file, its servers, its authors); a slice is a part of it whose errors have
a cause in common (a range of batches, iterations with prompts). Unlike ``evaluator compare``, nothing is fitted here.
"""
