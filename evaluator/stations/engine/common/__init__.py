"""What both programs of the engine share: a lane's limits and requests, arrays, rings of steps, leaps, gaps."""
