"""What is fair: counts, metrics, objectives, thresholds."""
