"""Tables of a dataset as text for a terminal."""
