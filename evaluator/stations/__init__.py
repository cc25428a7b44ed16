"""Stations: functions from the jobs of a chunk to the times of their requests and to what the station was used for.

``contract`` says what a station takes and gives. ``engine/`` is the vectorised one, of lanes (``lane_jobs``); the
others need no token: ``queue``, ``batch``, ``delay``, ``link``, and the ``stage_steps`` that are made of them; and
``api_servers``, which the tokens of an engine pass on their way to clients. ``use`` is what a pool was used for,
``joint_visits`` what pools give that ran in one event loop, ``route_visits`` what pools and stages do.
"""
