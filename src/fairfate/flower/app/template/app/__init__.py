"""Group-fair federated learning on tabular data, with fairfate."""
