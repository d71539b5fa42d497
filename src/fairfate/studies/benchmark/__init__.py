"""The benchmark of the field: every method under the same rules."""
