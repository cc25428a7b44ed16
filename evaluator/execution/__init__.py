"""How a plan is run: in chunks of bounded memory, on all processors, resumed where it was interrupted.

``schedule`` cuts the configurations of a plan into chunks and gives them to threads, to ``workers`` (each a ``worker``
process) or to a ``cluster``; ``lengthen`` runs those longer that are undecided; ``forecast`` tells beforehand what a
sweep would take.
"""
