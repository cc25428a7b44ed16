"""The stations of the reference, one per file: ``network.Station`` says what the event loop asks of them.

``delay`` and ``fifo`` are run by tests only, as the oracle of ``stations.delay`` and ``stations.queue``.
"""
