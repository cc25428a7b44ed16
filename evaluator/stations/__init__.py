"""Stations: functions from the jobs of a chunk to the times of their requests and to what the station was used for."""
