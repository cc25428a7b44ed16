"""Benchmarks: ``python -m tests.benchmarks [names] [--quick] [--json FILE]``. Times are shown, never asserted."""
