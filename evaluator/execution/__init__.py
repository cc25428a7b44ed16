"""How a plan is run: in chunks of bounded memory, on all processors, resumed where it was interrupted."""
