"""Readers of measured serving runs: what was run (JSON), what was measured of it (CSV), under which names."""
