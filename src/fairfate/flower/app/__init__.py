"""The ready app: a federation of CSV files, without code."""
