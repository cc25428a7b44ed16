"""A workload -> its requests: arrival times and lengths, from random numbers common to all configurations."""
