"""Pictures of a dataset: the sheet and its style, what is shown how, and one module for each kind of picture."""
