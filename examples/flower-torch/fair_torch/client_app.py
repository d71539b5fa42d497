"""A PyTorch client as any other: nothing in it knows of FAIR-FATE."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fair_torch.data import load_client
from fair_torch.model import make_model

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's model on this client's rows."""
    number = int(context.node_config["partition-id"])
    rows = load_client(number, int(context.node_config["num-partitions"]))
    x, y = (torch.tensor(values) for values in rows)
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=float(context.run_config["learning-rate"]))
    shuffle = torch.Generator().manual_seed(1000 * int(message.content["config"]["server-round"]) + number)
    model.train()
    loss = torch.tensor(0.0)
    for _ in range(int(context.run_config["local-epochs"])):
        for batch in torch.randperm(len(y), generator=shuffle).split(16):
            if len(batch) > 1:  # batch norm needs two rows
                optimizer.zero_grad()
                loss = nn.functional.binary_cross_entropy_with_logits(model(x[batch]).ravel(), y[batch])
                loss.backward()
                optimizer.step()
    metrics = MetricRecord({"num-examples": len(y), "train-loss": loss.item()})
    arrays = ArrayRecord(model.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
