"""Runs: what is asked for, done over processes, and left behind."""
