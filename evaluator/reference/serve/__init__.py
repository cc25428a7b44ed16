"""The reference behind a plan: pools as stations of a chain, and one event loop where they depend on one another."""
