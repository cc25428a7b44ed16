"""The stations of the reference, one per file: ``network.Station`` says what the event loop asks of them.

A ``pool`` alone is what ``reference.simulate`` runs. A ``phase`` is a pool as one of several on a request's way, with
``transfers`` between a prefill and a decode side. ``delay``, ``fifo`` and ``batch`` are steps of a pipeline's stages,
as is a pool in which a request is several sequences (``parallel_sequences``).
"""
