"""Statistics -> the labelled dataset, and the dataset read again: coordinates, files, selections."""
