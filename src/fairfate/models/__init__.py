"""The models that clients train, and the kernels that train them."""
