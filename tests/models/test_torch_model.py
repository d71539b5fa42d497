"""Networks of PyTorch in the simulator: the same numbers as the built-in model, and as each other."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason='pip install "fairfate[torch]"')

import torch
from torch import nn

import fairfate
from fairfate.data import Schema, Table, synthetic
from fairfate.engine.simulate import simulate
from fairfate.errors import InputError
from fairfate.experiments.config import from_mapping, read_config
from fairfate.federation.partition import parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, build
from fairfate.models.mlp import Mlp
from fairfate.models.model import Batches, Losses
from fairfate.models.torch import TorchModel
from fairfate.models.training import Training
from fairfate.models.user_network import Network
from fairfate.strategies import Setup, parse_spec

EXAMPLES = Path(__file__).parents[2] / "examples"
STREAMS = Streams(1)
TRAINING = Training(rounds=4, epochs=2, learning_rate=0.1)


def small() -> Federation:
    return build(synthetic(rows=500, seed=3), parse_partition("dirichlet:0.5"), 6, STREAMS)


def tanh(inputs: int = 6, hidden: int = 10) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))


def with_norm(inputs: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1), nn.Flatten(0))


def with_dropout(inputs: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


def as_torch(mlp: Mlp, params: np.ndarray) -> np.ndarray:
    layers = mlp.arrays(params)
    return np.concatenate([layers["w1"].T.ravel(), layers["b1"], layers["w2"], layers["b2"]])


def some_losses(models: int, clients: int, prejudice: bool) -> Losses:
    rng = np.random.default_rng(5)
    weight = rng.uniform(0.5, 2, (models, clients, 4)).astype(np.float32)
    push = rng.normal(size=(models, clients, 4)).astype(np.float32)
    push[0] = 0
    strength = np.arange(models, dtype=np.float32) if prejudice else None
    return Losses(weight, push, strength)


def train(model, start, federation, losses, batches=None, training=TRAINING):
    clients = np.flatnonzero(federation.sizes)[: losses.weight.shape[1]]
    models = np.repeat(start[:, None], len(clients), 1)
    return model.train(
        models, federation.rows, clients, losses, training, batches or Batches(np.uint64(9), 1)
    )


@pytest.mark.parametrize("models", [1, 5])
@pytest.mark.parametrize("prejudice", [False, True])
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_the_built_in_model_as_a_module_gives_its_results(
    models: int, prejudice: bool, kept: bool, soft: bool
) -> None:
    federation, mlp, ours = small(), Mlp(6), TorchModel(tanh, 6)
    start = np.stack([mlp.initial(Streams(s).weights(mlp.num_parameters)) for s in range(models)])
    losses = some_losses(models, 3, prejudice)
    if soft:
        targets = np.random.default_rng(6).random(losses.weight.shape)
        losses = losses._replace(target=targets.astype(np.float32))
    if kept:
        prox = np.float32([[0.5, 0.0, 2.0]] * models)
        losses = losses._replace(prox=prox, anchor=np.repeat(start[:, None] - np.float32(0.3), 3, axis=1))
    expected = train(mlp, start, federation, losses)
    theirs = losses
    if kept:
        anchor = np.stack([[as_torch(mlp, at) for at in value] for value in losses.anchor])
        theirs = losses._replace(anchor=anchor)
    trained = train(ours, np.stack([as_torch(mlp, params) for params in start]), federation, theirs)
    assert ours.mode == "side by side"
    assert np.abs(expected - start[:, None]).max() > 0.1
    for s in range(models):
        for c in range(3):
            np.testing.assert_allclose(trained[s, c], as_torch(mlp, expected[s, c]), atol=2e-5)
    rows = federation.validation
    np.testing.assert_array_equal(ours.count(trained[:, 0], rows), mlp.count(expected[:, 0], rows))
    first, other = ours.statistics(trained[:, 0], rows), mlp.statistics(expected[:, 0], rows)
    np.testing.assert_allclose(first.loss, other.loss, rtol=1e-4)
    np.testing.assert_allclose(first.probability, other.probability, rtol=1e-4)


def test_a_round_in_parts_is_the_same_round() -> None:
    federation, model, losses = small(), TorchModel(tanh, 6), some_losses(3, 3, True)
    start = np.stack([model.initial(Streams(1).weights(model.num_parameters))] * 3)
    whole = train(model, start, federation, losses)
    clients = np.flatnonzero(federation.sizes)[:3]
    key, now = np.uint64(9), np.repeat(start[:, None], 3, 1)
    sizes = federation.sizes[clients]
    for skip in range(2):
        now = model.train(now, federation.rows, clients, losses, TRAINING, Batches(key, 1, skip, 1))
    even = sizes % TRAINING.batch_size == 0
    np.testing.assert_allclose(now[:, even], whole[:, even], atol=1e-5)
    assert np.isfinite(now).all()


@pytest.mark.parametrize("kind", [tanh, with_norm, with_dropout])
def test_model_is_trained_the_same_alone_and_beside_others(kind) -> None:
    federation, model = small(), TorchModel(kind, 6)
    start = np.stack([model.initial(Streams(s).weights(model.num_parameters)) for s in range(6)])
    losses = some_losses(6, 3, True)
    together, again = train(model, start, federation, losses), train(model, start, federation, losses)
    assert together.tobytes() == again.tobytes()
    for s in (0, 4):
        own = Losses(*(None if value is None else value[[s]] for value in losses))
        alone = train(model, start[[s]], federation, own)
        np.testing.assert_allclose(alone[0], together[s], atol=0 if kind is with_norm else 1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [tanh, with_norm, with_dropout])
def test_strategies_alone_and_side_by_side(kind) -> None:
    federation, training = small(), Training(rounds=8, epochs=1, learning_rate=0.1)
    names = ["fedavg", "fair_fate", "fedmom", "prejudice", "fairfed", "fedprox:mu=1", "server_step"]

    def run(texts):
        specs = [parse_spec(text, "eqo") for text in texts]
        return simulate(federation, specs, TorchModel(kind, 6), training, Setup(8), STREAMS)

    together, again = run(names), run(names)
    for first, other in zip(together, again, strict=True):
        assert first.params.tobytes() == other.params.tobytes()
    for text, value in zip(names, together, strict=True):
        tolerance = 0 if kind is with_norm else 1e-5
        np.testing.assert_allclose(run([text])[0].params, value.params, atol=tolerance, rtol=0)


def test_why_models_go_one_after_another() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x):
            return self.layer(x) if x.sum() > 0 else 2 * self.layer(x)

    class Mixes(Branches):
        def forward(self, x):
            return self.layer(x - x.mean(0))

    class Replaces(Branches):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(6))

        def forward(self, x):
            if self.training:
                self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            return self.layer(x - self.mean)

    apart = "side by side at each client "
    norm = TorchModel(with_norm, 6).mode
    assert norm == "one after another (its buffers change in training, as batch norm's do)"
    assert TorchModel(with_dropout, 6).mode == f"{apart}(it draws random numbers)"
    assert TorchModel(Mixes, 6).mode == f"{apart}(the rows of a batch look at each other)"
    assert "torch.func cannot stack it" in TorchModel(Branches, 6).mode
    assert "one after another" in TorchModel(Replaces, 6).mode
    adam = TorchModel(tanh, 6, optimizer=lambda params: torch.optim.Adam(params, lr=0.01))
    assert adam.mode == "one after another (an optimizer of its own)"


@pytest.mark.parametrize("kind", [tanh, with_norm, with_dropout])
def test_stacked_is_as_one_after_another(kind, monkeypatch: pytest.MonkeyPatch) -> None:
    federation, model, losses = small(), TorchModel(kind, 6), some_losses(6, 4, True)
    start = np.stack([model.initial(Streams(s).weights(model.num_parameters)) for s in range(6)])
    stacked = train(model, start, federation, losses)
    monkeypatch.setattr("fairfate.models.torch.MOST_STACKED", 4 * model.num_parameters)
    chunked = train(model, start, federation, losses)
    monkeypatch.setattr("fairfate.models.torch.LEAST_STACK", 1000)
    np.testing.assert_allclose(stacked, train(model, start, federation, losses), atol=1e-5)
    np.testing.assert_allclose(stacked, chunked, atol=1e-5)


def test_an_optimizer_of_its_own_is_used() -> None:
    federation, losses = small(), some_losses(2, 2, False)
    plain = TorchModel(tanh, 6)
    same = TorchModel(tanh, 6, optimizer=lambda params: torch.optim.SGD(params, lr=0.1))
    adam = TorchModel(tanh, 6, optimizer=lambda params: torch.optim.Adam(params, lr=0.01))
    start = np.stack([plain.initial(np.zeros(plain.num_parameters))] * 2)
    results = [train(model, start, federation, losses) for model in (plain, same, adam)]
    np.testing.assert_allclose(results[0], results[1], atol=1e-6)
    assert np.abs(results[2] - results[0]).max() > 1e-3
    changed = losses._replace(
        prox=np.full((2, 2), 0.5, np.float32), anchor=np.repeat(start[:, None], 2, axis=1)
    )
    near = [train(model, start, federation, changed) for model in (plain, same)]
    np.testing.assert_allclose(near[0], near[1], atol=1e-6)
    assert np.abs(near[0] - results[0]).max() > 1e-3


def test_nothing_is_left_behind_in_pytorch() -> None:
    torch.manual_seed(3)
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()
    model, federation = TorchModel(with_dropout, 6), small()
    start = model.initial(STREAMS.weights(model.num_parameters))[None]
    train(model, start, federation, some_losses(1, 3, False))
    model.count(start, federation.test)
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.get_num_threads() == threads


def test_the_seed_makes_the_weights() -> None:
    model = TorchModel(tanh, 6)
    normals = [Streams(seed).weights(model.num_parameters) for seed in (1, 2)]
    first, second = (model.initial(value) for value in normals)
    assert first.tobytes() == TorchModel(tanh, 6).initial(normals[0]).tobytes()
    assert not np.array_equal(first, second)
    module = tanh()
    given = TorchModel(module, 6).initial(normals[0])
    np.testing.assert_array_equal(given[:60], module[0].weight.detach().numpy().ravel())


def test_the_vector_holds_running_statistics_and_no_counters() -> None:
    model = TorchModel(with_norm, 6)
    params = model.initial(STREAMS.weights(model.num_parameters))
    named = model.arrays(params)
    assert "1.running_var" in named
    assert "1.num_batches_tracked" not in named
    np.testing.assert_array_equal(model.flat(named), params)
    trained = train(model, params[None], small(), some_losses(1, 1, False))[0, 0]
    assert not np.array_equal(model.arrays(trained)["1.running_mean"], named["1.running_mean"])
    model.arrays(trained)["1.running_var"][:] = -1  # a server that extrapolates
    assert np.isfinite(model.margins(trained, small().test)[0]).all()


def test_frozen_parameters_stay() -> None:
    module = tanh()
    module[0].weight.requires_grad_(False)
    model, losses = TorchModel(module, 6), some_losses(5, 2, False)
    start = np.stack([model.initial(np.zeros(1))] * 5)
    trained = train(model, start, small(), losses)
    layers = model.arrays(trained[4, 1])
    np.testing.assert_array_equal(layers["0.weight"], model.arrays(start[0])["0.weight"])
    assert np.abs(layers["2.weight"] - model.arrays(start[0])["2.weight"]).max() > 0.01


def test_batches_of_one_row_and_small_clients() -> None:
    federation, training = small(), Training(rounds=1, epochs=1, batch_size=1)
    model = TorchModel(with_norm, 6)
    start = model.initial(STREAMS.weights(model.num_parameters))[None]
    assert np.isfinite(train(model, start, federation, some_losses(1, 3, False), training=training)).all()
    large = Training(rounds=1, epochs=1, batch_size=100_000)
    several = TorchModel(tanh, 6)
    begun = np.stack([several.initial(np.zeros(1))] * 6)
    moved = train(several, begun, federation, some_losses(6, 3, True), training=large)
    alone = train(several, begun[:1], federation, some_losses(6, 3, True)._replace(push=None), training=large)
    assert np.isfinite(moved).all()
    assert np.isfinite(alone).all()


@pytest.mark.slow
def test_compiled_gives_the_same() -> None:
    pytest.importorskip("torch._inductor")
    federation, losses = small(), some_losses(5, 2, False)
    plain, fast = TorchModel(tanh, 6), TorchModel(tanh, 6, compile=True)
    start = np.stack([plain.initial(np.zeros(1))] * 5)
    short = Training(rounds=1, epochs=1, batch_size=50)
    expected = train(plain, start, federation, losses, training=short)
    np.testing.assert_allclose(train(fast, start, federation, losses, training=short), expected, atol=1e-5)


BAD = {
    "x = (": "must run without an error",
    "def other(inputs): return 1": "must name a function",
    "def build(inputs): return 1": "must be a torch.nn.Module, got int",
    "def build(inputs): raise KeyError('no')": "must run without an error, got KeyError",
    "def build(inputs, more): return 1": "must take inputs or schema alone",
    "def build(inputs): return nn.Linear(inputs, 2)": "must give logits of shape",
    "def build(inputs): return nn.Linear(inputs + 1, 1)": "must map (rows, 6) inputs to logits",
    "def build(inputs): return nn.Flatten(0)": "must give logits of shape",
    "def build(inputs): return nn.Sequential(nn.Flatten(), nn.AvgPool1d(inputs))": "must have parameters",
    "def build(inputs):\n m = nn.Linear(inputs, 1); nn.init.constant_(m.weight, float('nan')); return m": (
        "must start from finite weights, got 6 others in 'weight'"
    ),
    "import random\ndef build(inputs):\n m = nn.Linear(inputs, 1)\n"
    " nn.init.constant_(m.bias, random.random())\n return m": "must have the same weights for the same seed",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_files_are_refused_before_training(text: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(f"from torch import nn\n{text}\n")
    with pytest.raises(InputError) as error:
        fairfate.run(data="synthetic:rows=200", model=f"{file}:build", out=tmp_path / "out")
    assert BAD[text] in str(error.value)
    assert not (tmp_path / "out").exists()


def test_hidden_and_model_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hidden must be left out with model"):
        fairfate.run(data="synthetic:rows=200", model="x.py:build", hidden=10)
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef build(inputs): return nn.Linear(inputs, 1)\n")
    with pytest.raises(InputError, match="hidden must be left out with model"):
        fairfate.run(fairfate.Config(model=str(file), hidden="20"))


def command(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    base = [sys.executable, "-m", "fairfate", *words]
    return subprocess.run(base, cwd=cwd, capture_output=True, text=True, check=False)


def test_without_the_file_or_pytorch_the_command_says_so(tmp_path: Path) -> None:
    outcome = command("run", "--model", "none.py:build", cwd=tmp_path)
    assert outcome.returncode == 2
    assert outcome.stderr == "Error: model must be a Python file, got 'none.py' (no such file)\n"
    (tmp_path / "net.py").write_text("def build(inputs): ...\n")
    code = (
        "import sys, importlib.util as u; sys.modules['torch'] = None; real = u.find_spec;"
        "u.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a);"
        "sys.argv = ['fairfate', 'run', '--model', 'net.py:build'];"
        "from fairfate.__main__ import main; main()"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 2
    assert outcome.stderr == "Error: model 'net.py:build' needs PyTorch: pip install \"fairfate[torch]\"\n"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "jobs"), [("torch_embeddings", 2), ("torch_dropout", 1)])
def test_an_example_trains_the_same_every_time(name: str, jobs: int, people: Path, tmp_path: Path) -> None:
    options = {
        "data": str(people), "target": "hired", "favourable": "yes", "sensitive": "sex", "rounds": 3,
        "epochs": 1, "seeds": (1, 2), "strategies": ("fedavg", "fair_fate"),
        "model": f"{EXAMPLES / name}.py:build",
    }  # fmt: skip
    run = fairfate.run(**options, jobs=1, out=tmp_path / "one")
    two = fairfate.run(**options, jobs=jobs, out=tmp_path / "two")
    assert run.rounds.equals(two.rounds)
    files = sorted(path.name for path in (tmp_path / "one" / "models").iterdir())
    assert len(files) == 4
    for file in files:
        first, second = ((tmp_path / value / "models" / file).read_bytes() for value in ("one", "two"))
        assert first == second
    arrays, about = fairfate.read_model(tmp_path / "one" / "models" / files[0])
    network = Network.read(options["model"])
    model = network.model(Schema.from_table(run.table))
    assert set(model.names) <= set(arrays)
    assert about["model"] == network.key
    text = (tmp_path / "one" / "config.toml").read_text()
    assert f'model = "sha256:{network.digest}"' in text
    assert "hidden" not in text
    if jobs == 1:
        return
    again = from_mapping(read_config(tmp_path / "one" / "config.toml"))
    assert fairfate.run(again, jobs=1).rounds.equals(run.rounds)


def test_an_edited_module_runs_again_in_a_sweep(tmp_path: Path) -> None:
    from fairfate.experiments.config import expand
    from fairfate.experiments.sweep import sweep
    from fairfate.report.data import ReportData

    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef build(inputs): return nn.Linear(inputs, 1)\n")
    values = {"data": "synthetic:rows=200", "model": str(file), "rounds": 1, "epochs": 1, "seeds": 1}
    values["strategy"] = ["fedavg", "fair_fate"]

    def go() -> int:
        return sweep(expand(values), tmp_path / "out", jobs=1).ran

    assert [go(), go()] == [2, 0]
    file.write_text("from torch import nn\ndef build(inputs):\n    return nn.Linear(inputs, 1, bias=False)\n")
    assert [go(), go()] == [2, 0]
    assert ReportData.read([tmp_path / "out"])


def test_an_interrupted_run_continues(tmp_path: Path) -> None:
    federation, specs = small(), [parse_spec(text, "eqo") for text in ("fedavg", "fair_fate")]

    class EnoughError(Exception):
        pass

    def stop_after(rounds: int):
        replies = iter(range(1, 100))

        def on_round() -> None:
            if next(replies) == rounds:
                raise EnoughError

        return on_round

    def run(on_round=lambda: None, checkpoint=None):
        model = TorchModel(with_norm, 6, "net", key="1")
        more = {"checkpoint": checkpoint, "seconds": 0.0}
        return simulate(federation, specs, model, TRAINING, Setup(4), STREAMS, on_round, **more)

    whole = run()
    with pytest.raises(EnoughError):
        run(stop_after(2), tmp_path / "state")
    resumed = run(checkpoint=tmp_path / "state")
    for first, other in zip(whole, resumed, strict=True):
        assert first.params.tobytes() == other.params.tobytes()


def test_a_factory_may_ask_for_the_schema(tmp_path: Path) -> None:
    table: Table = synthetic(rows=100)
    for head in ("schema", "of: 'fairfate.data.Schema'", "inputs: int"):
        file = tmp_path / "net.py"
        name = head.partition(":")[0]
        wide = "inputs" if name == "inputs" else f"len({name}.features)"
        file.write_text(f"from torch import nn\ndef build({head}): return nn.Linear({wide}, 1)\n")
        assert Network.read(str(file)).model(Schema.from_table(table)).num_parameters == 7


def test_a_worker_without_the_file_has_what_was_read(tmp_path: Path) -> None:
    table, file = synthetic(rows=100), tmp_path / "net.py"
    file.write_text("from torch import nn\ndef build(inputs): return nn.Linear(inputs, 1)\n")
    network = pickle.loads(pickle.dumps(Network.read(str(file))))
    file.unlink()
    sys.modules.pop(next(name for name in sys.modules if name.startswith("fairfate_model_net_")))
    schema = Schema.from_table(table)
    assert network.model(schema).num_parameters == schema.encoder.inputs + 1
