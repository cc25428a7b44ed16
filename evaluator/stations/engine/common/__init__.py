"""What both programs of the engine share: lanes and requests, rings of steps, the histogram of gaps."""
