"""Clients train and models are scored: the built-in network and the kernels that run it."""
