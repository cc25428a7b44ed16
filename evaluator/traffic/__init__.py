"""A workload -> its requests: arrival times and lengths, from random numbers common to all configurations.

``request_sampler`` gives the ``jobs`` of every configuration and seed. When they come: ``arrivals``; which are turns of
a conversation or calls of ``agents``: ``sessions``. What they ask: ``requests`` by ``lengths``, ``classes`` with their
priority, content in common by ``sharing`` and ``block_names``. What a pool makes of them: ``roles``; by what they wait:
``waiting_order``.
"""
