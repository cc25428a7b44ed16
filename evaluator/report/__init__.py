"""The dataset as people read it: ranked tables and pictures."""
