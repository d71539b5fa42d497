"""What others can learn of the rows: sums that nobody can open, and noise with a stated guarantee."""
