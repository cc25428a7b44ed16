"""Stations: functions from the jobs of a chunk to their departures and to what the station was used for."""
