"""The paper's experiments, set beside its printed results, and what holds."""
