"""A Flower server with FAIR-FATE in the place of FedAvg, for a scikit-learn model."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fair_sklearn.data import load_server
from fairfate.flower import FairFate, Validation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print what came out."""
    rounds = int(context.run_config["num-server-rounds"])
    x, label, group = load_server()
    start = {"coef": np.zeros((1, x.shape[1])), "intercept": np.zeros(1)}

    def predict(arrays: ArrayRecord) -> np.ndarray:
        """How the server's copy of the model predicts on the validation rows."""
        return (x @ arrays["coef"].numpy()[0] + arrays["intercept"].numpy()) > 0

    # was: strategy = FedAvg(fraction_evaluate=0.0)
    strategy = FairFate(
        validation=Validation(predict, label, group),
        metric="eqo",
        num_rounds=rounds,
        lam0=0.2,
        fraction_evaluate=0.0,
    )
    initial = ArrayRecord({name: Array(values) for name, values in start.items()})
    strategy.start(grid, initial, num_rounds=rounds)
    columns = ["round", "accuracy", "sp", "eo", "eqo", "lam", "fair_clients"]
    print(strategy.rounds()[columns].round(3).to_string(index=False))
