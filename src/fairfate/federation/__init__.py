"""Who holds which rows, and the random numbers of a seed."""
