"""The compiled loops behind the built-in model. Importing any of them loads Numba."""
