"""Benchmarks: ``python -m tests.benchmarks [names] [--quick] [--json FILE]``. What they time is shown, never asserted."""
