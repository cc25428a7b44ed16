"""The reference: serving simulated one iteration and one token at a time, in plain Python, written to be read."""
