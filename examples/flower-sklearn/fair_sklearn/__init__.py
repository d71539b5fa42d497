"""FAIR-FATE in a Flower app with a client of its own."""
