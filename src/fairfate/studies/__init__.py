"""Studies made with the library: the benchmark of the field, and the paper's experiments."""
