"""The rounds of a federation, wherever its clients are."""
