"""What the server does: nothing here is hidden, and all of it may be changed."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fairfate.flower.app.folder import open_run
from fairfate.flower.app.server import ServerData, ask_for_schema, make_strategy, open_study, seal_messages
from fairfate.flower.app.settings import Settings, own_network

app = ServerApp()
NETWORK = own_network(__file__)  # net.py beside this file, if any, in place of the built-in model


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Agree on a schema, run the rounds, write the results."""
    settings = Settings.read(context.run_config, NETWORK)  # every key is checked
    settings, study = open_study(settings)  # what the sites have signed off
    grid = seal_messages(grid, study, context.run_id)  # they answer nothing else

    with open_run(settings, study) as folder:  # a new one, or that of an interrupted run of the same study
        # How columns become numbers: as in the interrupted run, or (simulations only) asked of the sites,
        # or (None) learned from the validation file or read from a schema file. Then the server's own rows.
        schema = folder.schema
        if schema is None and settings.schema == "sites":
            schema = ask_for_schema(grid, settings)
        data = ServerData.load(settings, schema)
        folder.agree(data.schema)

        # Any strategy of fairfate, as a Flower strategy. It saves a checkpoint after every round and goes on
        # from it if there is one; what each round found is written down for those who watch.
        strategy = make_strategy(settings, data, folder.checkpoint, folder.record(settings, data), study)
        strategy.start(
            grid,
            data.initial,
            num_rounds=settings.training.rounds,
            timeout=settings.timeout,
            train_config=data.train_config,
        )

        # rounds.parquet, summary.csv, models/, config.toml, schema.json and clients.csv
        folder.finish(settings, data, strategy)
