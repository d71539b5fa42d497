"""What a site does when the server asks. Its rows stay where they are."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fairfate.flower.app import site
from fairfate.flower.app.settings import own_network

app = ClientApp()
NETWORK = own_network(__file__)  # net.py beside this file, if any, in place of the built-in model


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say whether our file fits the server's schema, or what else the study has the server ask for."""
    return site.respond(message, context, NETWORK)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the server's model on our rows; send back its weights and the number of rows."""
    return site.respond(message, context, NETWORK)
