"""A Flower server with FAIR-FATE in the place of FedAvg."""

import torch
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fair_torch.data import load_server
from fair_torch.model import make_model
from fairfate.flower import FairFate, Validation

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and print what came out."""
    rounds = int(context.run_config["num-server-rounds"])
    model = make_model()
    inputs, label, group = load_server()
    x = torch.tensor(inputs)

    def predict(arrays: ArrayRecord) -> torch.Tensor:
        """How the server's copy of the model predicts on the validation rows."""
        model.load_state_dict(arrays.to_torch_state_dict())
        model.eval()
        return torch.sigmoid(model(x))

    # was: strategy = FedAvg(fraction_evaluate=0.0)
    strategy = FairFate(
        validation=Validation(predict, label, group),
        metric="eqo",
        num_rounds=rounds,
        lam0=0.2,
        fraction_evaluate=0.0,
    )
    strategy.start(grid, ArrayRecord(make_model().state_dict()), num_rounds=rounds)
    columns = ["round", "accuracy", "sp", "eo", "eqo", "lam", "fair_clients"]
    print(strategy.rounds()[columns].round(3).to_string(index=False))
