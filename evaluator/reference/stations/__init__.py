"""The stations of the reference, one per file: ``network.Station`` says what the event loop asks of them."""
