"""Stations: functions from request arrays and arrival times to departure times. Pure JAX, batched over lanes."""
