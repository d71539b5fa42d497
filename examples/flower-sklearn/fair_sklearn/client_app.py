"""A scikit-learn client: logistic regression by stochastic gradient descent."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import SGDClassifier

from fair_sklearn.data import load_client

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's model on this client's rows."""
    number = int(context.node_config["partition-id"])
    x, y = load_client(number, int(context.node_config["num-partitions"]))
    x = x.astype(np.float64)
    model = SGDClassifier(
        loss="log_loss",
        learning_rate="constant",
        eta0=float(context.run_config["learning-rate"]),
        random_state=1000 * int(message.content["config"]["server-round"]) + number,
    )
    model.partial_fit(x[:1], y[:1], classes=[0, 1])  # makes the arrays
    model.coef_ = message.content["arrays"]["coef"].numpy().copy()
    model.intercept_ = message.content["arrays"]["intercept"].numpy().copy()
    for _ in range(int(context.run_config["local-epochs"])):
        model.partial_fit(x, y)
    arrays = ArrayRecord(
        {
            "coef": Array(np.asarray(model.coef_, dtype=np.float64)),
            "intercept": Array(np.asarray(model.intercept_, dtype=np.float64)),
        }
    )
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
