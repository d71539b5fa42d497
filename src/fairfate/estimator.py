"""Group-fair federated learning as a scikit-learn classifier."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils._param_validation import HasMethods, Interval
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, column_or_1d, validate_data

from fairfate.data.arrays import (
    SensitiveFeatures,
    as_pandas,
    differing_rows,
    has_text,
    is_frame,
    sensitive_frame,
    table_from_arrays,
)
from fairfate.data.schema import Schema
from fairfate.data.table import Table
from fairfate.engine.recorder import Trace
from fairfate.engine.simulate import simulate
from fairfate.errors import InputError, check, listing
from fairfate.experiments.job import model_of_trace
from fairfate.experiments.plan import default_per_round
from fairfate.experiments.prepare import check_metric
from fairfate.fairness.metrics import Metric, selection_rate
from fairfate.fairness.objective import FAIRNESS, bind, individual_terms, metrics_by, parse_objective
from fairfate.federation.individual import check_measurable
from fairfate.federation.partition import FORMS, Partition, parse_partition
from fairfate.federation.seeds import Streams
from fairfate.federation.split import Federation, RowAssignment, assign, encode
from fairfate.federation.weights import copies
from fairfate.models.fair_model import FairModel, Scored
from fairfate.models.mlp import Mlp, parse_hidden
from fairfate.models.model import Model
from fairfate.models.rows import PackedRows
from fairfate.models.training import Training
from fairfate.strategies import RULES, THRESHOLDS, Setup, Spec, Strategy, parse_spec
from fairfate.strategies.strategy import ON_VALIDATION

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = ("accuracy", "balanced_accuracy", "f1", "mcc")
"""In `FairFederatedClassifier.history_`, beside those of fairness."""


_COUNT = [Interval(Integral, 1, None, closed="left")]
_MODEL_METHODS = ("train", "initial", "count", "statistics", "margins", "arrays", "flat")


class FairFederatedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier that is trained by clients who keep their rows, with group fairness in mind.

    The clients are simulated in this process: each round some of them train the server's model on their own
    rows, and a strategy makes the next model of what they send back.

    Parameters
    ----------
    strategy : a strategy with its settings and steps, such as ``fedavg`` or ``fair_fate:metric=sp``. The
        default takes the metrics ``sp``, ``eo`` and ``eqo``, and predicts without the group. With thresholds,
        as in ``fedavg+average+thresholds``, `predict` decides by the group and needs ``sensitive_features``
    metric : the fairness objective, where the strategy names none
    pos_label : the favourable outcome; the second of ``classes_`` if None
    partition : how rows are dealt out to clients, unless ``clients`` says who holds them: ``random``,
        ``dirichlet:SIGMA`` for clients that differ, ``value-biased:STRENGTH`` or
        ``attribute-biased:STRENGTH`` for clients that are each biased against others
    n_clients : how many clients there are, likewise
    per_round : how many of them train in a round; a third if None
    max_iter : rounds
    epochs, batch_size, learning_rate : the clients' SGD in a round
    hidden : widths of the hidden layers, ``10`` or ``"32,16"``; 0 for logistic regression
    model : a model of one's own: an object with the methods of `fairfate.models.model.Model`, or a function
        of the number of inputs that makes one, or a ``torch.nn.Module``
    validation_fraction : of the rows of each group and label, kept from the clients for the server, which
        scores models and chooses thresholds on them
    random_state : what all random numbers come from; a number gives the same model every time

    Attributes
    ----------
    classes_ : array of the two labels, sorted
    groups_ : array of the groups' names
    clients_ : array of the clients' names
    history_ : DataFrame of the model's accuracy and fairness on the validation rows after each round
    model_ : `FairModel` that was trained, which can be saved
    strategy_ : str that names what was trained, with every setting
    n_iter_ : int, the rounds
    n_features_in_ : int, the number of inputs
    feature_names_in_ : array of the inputs' names, where X is a DataFrame
    notes_ : list of str on what was done to the columns and groups

    Examples
    --------
    >>> import numpy as np
    >>> from fairfate import FairFederatedClassifier
    >>> rng = np.random.default_rng(0)
    >>> X, sex = rng.normal(size=(400, 3)), rng.choice(["f", "m"], 400)
    >>> y = np.where(X[:, 0] + 0.5 * (sex == "m") > 0, "yes", "no")
    >>> clf = FairFederatedClassifier(max_iter=20, random_state=1).fit(X, y, sensitive_features=sex)
    >>> clf.predict(X[:3]).shape, clf.groups_.tolist()
    ((3,), ['f', 'm'])
    """

    _parameter_constraints: ClassVar = {
        "strategy": [str, Spec, Strategy],
        "metric": [str],
        "pos_label": "no_validation",
        "partition": [str],
        "n_clients": _COUNT,
        "per_round": [*_COUNT, None],
        "max_iter": _COUNT,
        "epochs": _COUNT,
        "batch_size": _COUNT,
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "hidden": [str, Integral],
        "model": [HasMethods([*_MODEL_METHODS]), callable, None],
        "validation_fraction": [Interval(Real, 0, 1, closed="left")],
        "random_state": ["random_state", np.random.Generator],
    }
    __metadata_request__fit: ClassVar = {"sensitive_features": True, "clients": True}
    __metadata_request__predict: ClassVar = {"sensitive_features": True}
    __metadata_request__decision_function: ClassVar = {"sensitive_features": True}
    __metadata_request__score: ClassVar = {"sensitive_features": True}

    def __init__(
        self,
        strategy: str = "fairgrad+average",
        *,
        metric: str = "eqo",
        pos_label: Any = None,
        partition: str = "random",
        n_clients: int = 10,
        per_round: int | None = None,
        max_iter: int = 200,
        epochs: int = 2,
        batch_size: int = 20,
        learning_rate: float = 0.03,
        hidden: str | int = "10",
        model: Any = None,
        validation_fraction: float = 0.2,
        random_state: Any = None,
    ) -> None:
        self.strategy = strategy
        self.metric = metric
        self.pos_label = pos_label
        self.partition = partition
        self.n_clients = n_clients
        self.per_round = per_round
        self.max_iter = max_iter
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.hidden = hidden
        self.model = model
        self.validation_fraction = validation_fraction
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        """Two classes; texts and missing numbers are welcome."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        return tags

    def fit(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        sensitive_features: Any = None,
        clients: Any = None,
    ) -> Self:
        """Train on labelled rows.

        Parameters
        ----------
        X : (rows, columns) an array or a list of rows, or a pandas or polars DataFrame; texts are encoded
        y : (rows,) labels of two kinds
        sample_weight : (rows,) what each row counts, relative to the others: one of weight 2 is trained on,
            counted and held out as two rows are, one of weight 0 not at all. Where weights are no whole
            numbers of a common unit, as many rows as have a weight are drawn in proportion to them
        sensitive_features : (rows,) each person's group, or several columns whose combinations are the
            groups; or names of columns of X, a DataFrame. The model does not see them unless they are columns
            of X. Without them, or with one group only, a fair strategy is trained as FedAvg, with a warning
        clients : (rows,) who holds each row, in the place of a simulated partition

        Returns
        -------
        the classifier itself

        Examples
        --------
        >>> import numpy as np
        >>> from fairfate import FairFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> y, sex = X[:, 0] > 0, np.where(X[:, 1] > 0, "f", "m")
        >>> clf = FairFederatedClassifier(strategy="fedavg", max_iter=2, random_state=0)
        >>> clf = clf.fit(X, y, sensitive_features=sex)
        >>> clf.classes_.tolist()
        [False, True]
        """
        self._validate_params()
        spec = parse_spec(self.strategy, str(parse_objective(self.metric, counted=True)))
        streams = Streams(_seed(self.random_state))
        partition = self._partition() if clients is None else Partition("column", column="clients")
        rows = self._rows(X, y, sensitive_features, clients)
        if sample_weight is not None:
            rows = rows.weighted(_weights(sample_weight, len(rows.labels)), streams)
        label = self._labels(rows.labels)
        self._sensitive: SensitiveFeatures | None = None
        attributes = None
        if rows.sensitive is not None:
            self._sensitive = SensitiveFeatures.select(rows.sensitive, rows.inputs, label)
            attributes = self._sensitive.columns(rows.sensitive)
        table = table_from_arrays(
            rows.inputs,
            label,
            (self.classes_[1 - self._favourable], self.classes_[self._favourable]),
            attributes,
            rows.clients,
            keep=not is_frame(X),
            target=str(getattr(y, "name", None) or "y"),
        )
        self._train(table, _without_groups(spec) if table.groups < 2 else spec, partition, streams)
        return self

    def _train(self, table: Table, spec: Spec, partition: Partition, streams: Streams) -> None:
        """Simulate the federation, and keep what came out of it."""
        federation = self._federation(table, spec, partition, streams)
        model = self._make_model(federation.inputs)
        training = self._training(federation.clients)
        setup = Setup(self.max_iter, groups=table.grouping, learning_rate=training.learning_rate)
        before = [spec.base] if spec.base != spec else []
        *earlier, final = simulate(federation, [*before, spec], model, training, setup, streams)
        rounds = (earlier or [final])[0]
        self._history_rounds = np.array([*rounds.rounds, final.rounds[-1]], dtype=np.int64)
        self._history_counts = np.concatenate([rounds.validation, final.validation[-1:]])
        self.model_ = _fair_model(table, federation, model, final, streams.seed)
        self.strategy_ = spec.text
        own = spec.metric  # None, or of single rows, which counts do not tell
        has_objective = own is not None and not individual_terms(own)
        self._objective = str(own) if has_objective else str(parse_objective(self.metric))
        self.groups_ = np.array(table.group_names, dtype=object)
        self.clients_ = np.array(federation.client_names, dtype=object)
        self.notes_ = list(table.notes)
        self.n_iter_ = training.rounds

    def _rows(self, X: Any, y: Any, sensitive_features: Any, clients: Any) -> _Rows:  # noqa: N803
        """What `fit` is given, checked to be of one length."""
        inputs = self._inputs(X, reset=True)
        labels = _label_column(y, len(inputs), type(self).__name__)
        sensitive = None
        if sensitive_features is not None:
            sensitive = sensitive_frame(sensitive_features, inputs, named=is_frame(X))
        return _Rows(inputs, labels, sensitive, _clients(clients, len(inputs)))

    def _inputs(self, X: Any, *, reset: bool = False) -> pd.DataFrame:  # noqa: N803
        """The inputs as a frame of usable values; columns are those of `fit`, in their order."""
        if is_frame(X):
            frame = as_pandas(X)
            validate_data(self, X, reset=reset, skip_check_array=True)
            check(len(frame) > 0, "X must have a row", "0 sample(s)")
            check(frame.shape[1] > 0, "X must have a column", "0 feature(s)")
        else:
            text = has_text(X)
            values = validate_data(
                self,
                np.asarray(X, dtype=object) if text else X,
                reset=reset,
                ensure_all_finite="allow-nan",
                dtype=object if text else np.float64,
                order="F",
            )
            frame = pd.DataFrame(values, columns=[f"x{number}" for number in range(values.shape[1])])
            frame = frame.infer_objects() if text else frame
        if reset:
            self._columns = list(frame.columns)
        return frame.set_axis(self._columns, axis=1)

    def _labels(self, values: NDArray[Any]) -> NDArray[np.int8]:
        """(rows,) 1 for the favourable outcome; sets ``classes_``."""
        codes, distinct = pd.factorize(values)
        missing = int((codes < 0).sum())
        check(missing == 0, "y must have a label in every row", f"{missing} missing (NaN or None)")
        classes = _sorted_classes(np.asarray(distinct))
        if len(classes) == 1:
            raise InputError(f"y must have two classes, got 1 class: {classes[0]}")
        check_classification_targets(values if len(classes) > 2 else classes)
        if len(classes) > 2:
            raise InputError(
                "Only binary classification is supported. The type of the target is multiclass: y must have"
                f" two classes, got {len(classes)}: {listing(classes)}"
            )
        favourable = 1
        if self.pos_label is not None:
            wanted = self.pos_label if np.ndim(self.pos_label) == 0 else None
            favourable = next((n for n, label in enumerate(classes.tolist()) if label == wanted), -1)
            rule = f"pos_label must be one of the classes {listing(classes)}"
            check(favourable >= 0, rule, repr(self.pos_label))
        self.classes_, self._favourable = classes, favourable
        return np.asarray((np.asarray(distinct) == classes[favourable])[codes], dtype=np.int8)

    def _partition(self) -> Partition:
        partition = parse_partition(self.partition)
        if partition.kind == "column":
            raise InputError(
                f"partition must be {FORMS} (who holds a row is fit's clients), got '{self.partition}'"
            )
        return partition

    def _training(self, clients: int) -> Training:
        """Rounds, cohort size and the clients' SGD."""
        per_round = default_per_round(clients) if self.per_round is None else int(self.per_round)
        check(per_round <= clients, f"per_round must be <= the {clients} clients", per_round)
        epochs, batch_size = int(self.epochs), int(self.batch_size)
        return Training(int(self.max_iter), per_round, epochs, batch_size, float(self.learning_rate))

    def _federation(self, table: Table, spec: Spec, partition: Partition, streams: Streams) -> Federation:
        """The rows with their clients; some are held out for the server."""
        share, clients = float(self.validation_fraction), int(self.n_clients)
        train, validation = streams.hold_out(table.cell, share)
        check(len(train) > 0, "validation_fraction must leave a row for training", f"{share} of {len(table)}")
        is_named = partition.kind == "column"
        check(is_named or clients <= len(table), f"n_clients must be <= the {len(table)} rows", clients)
        _check_metrics(spec, table, {"training": train, "validation": validation}, int(self.max_iter))
        client, names = assign(table, train, partition, clients, streams)
        return encode(table, RowAssignment(train, client, names, validation, np.arange(0)), streams)

    def _make_model(self, inputs: int) -> Model:
        """The kind of model that is trained."""
        if self.model is None:
            return Mlp(inputs, parse_hidden(self.hidden))
        if _is_model(self.model):
            model: Model = self.model
            expected = getattr(model, "inputs", inputs)
            rule = f"model must be made for the {inputs} inputs that the columns become"
            check(expected == inputs, rule, expected)
            return model
        made = self.model(inputs)
        return made if _is_model(made) else _torch_model(partial(self.model, inputs), made, inputs)

    def predict(self, X: Any, *, sensitive_features: Any = None) -> NDArray[Any]:  # noqa: N803
        """Decide on new rows; with thresholds, by each person's group.

        Parameters
        ----------
        X : rows as in `fit`
        sensitive_features : each person's group as in `fit`; needed if the model has thresholds, unless it is
            a column of X

        Returns
        -------
        (rows,) one of ``classes_`` for each row.

        Examples
        --------
        >>> import numpy as np
        >>> from fairfate import FairFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> y, sex = X[:, 0] > 0, np.where(X[:, 1] > 0, "f", "m")
        >>> clf = FairFederatedClassifier(strategy="fedavg", max_iter=2, random_state=0)
        >>> clf = clf.fit(X, y, sensitive_features=sex)
        >>> clf.predict(X[:3]).shape
        (3,)
        """
        decision = self._score(X, sensitive_features).decision
        favourable = self._favourable
        labels: NDArray[Any] = self.classes_[np.where(decision == 1, favourable, 1 - favourable)]
        return labels

    def decision_function(self, X: Any, *, sensitive_features: Any = None) -> NDArray[np.float64]:  # noqa: N803
        """(rows,) the log-odds of ``classes_[1]``, less the group's threshold if there is one.

        Parameters
        ----------
        X : rows as in `fit`
        sensitive_features : as in `predict`

        Returns
        -------
        (rows,)

        Examples
        --------
        >>> import numpy as np
        >>> from fairfate import FairFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> y, sex = X[:, 0] > 0, np.where(X[:, 1] > 0, "f", "m")
        >>> clf = FairFederatedClassifier(strategy="fedavg", max_iter=2, random_state=0)
        >>> clf = clf.fit(X, y, sensitive_features=sex)
        >>> bool(((clf.decision_function(X) > 0) == clf.predict(X)).all())
        True
        """
        excess = self._score(X, sensitive_features).excess
        return excess if self._favourable == 1 else -excess

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """(rows, 2) the probabilities of ``classes_``, before any threshold.

        Parameters
        ----------
        X : rows as in `fit`

        Returns
        -------
        (rows, 2)

        Examples
        --------
        >>> import numpy as np
        >>> from fairfate import FairFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> y, sex = X[:, 0] > 0, np.where(X[:, 1] > 0, "f", "m")
        >>> clf = FairFederatedClassifier(strategy="fedavg", max_iter=2, random_state=0)
        >>> clf = clf.fit(X, y, sensitive_features=sex)
        >>> clf.predict_proba(X[:3]).sum(axis=1).tolist()
        [1.0, 1.0, 1.0]
        """
        probability = self._score(X, None, decide=False).probability
        columns = [1 - probability, probability]
        return np.stack(columns if self._favourable == 1 else columns[::-1], axis=1)

    def score(
        self,
        X: Any,  # noqa: N803
        y: Any,
        sample_weight: Any = None,
        *,
        sensitive_features: Any = None,
    ) -> float:
        """The accuracy on labelled rows.

        Parameters
        ----------
        X, y, sample_weight : rows as in `fit`
        sensitive_features : as in `predict`

        Returns
        -------
        the share of right decisions

        Examples
        --------
        >>> import numpy as np
        >>> from fairfate import FairFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> y, sex = X[:, 0] > 0, np.where(X[:, 1] > 0, "f", "m")
        >>> clf = FairFederatedClassifier(strategy="fedavg", max_iter=2, random_state=0)
        >>> clf = clf.fit(X, y, sensitive_features=sex)
        >>> bool(clf.score(X, y) == (clf.predict(X) == y).mean())
        True
        """
        predicted = self.predict(X, sensitive_features=sensitive_features)
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _score(self, X: Any, sensitive_features: Any, *, decide: bool = True) -> Scored:  # noqa: N803
        """What the model says of new rows; its notes become warnings for our caller's caller."""
        check_is_fitted(self, "model_")
        inputs, attributes = self._inputs(X), None
        if sensitive_features is not None and self._sensitive is not None:
            known = self._sensitive.given
            frame = sensitive_frame(sensitive_features, inputs, named=is_frame(X), known=known)
            attributes = self._sensitive.columns(frame)
        if attributes is not None:
            _check_shared(inputs, attributes)
        scored = self.model_.score(inputs, sensitive_features=attributes, decide=decide)
        return scored.warn(stacklevel=4)

    @property
    def history_(self) -> pd.DataFrame:
        """The model on the validation rows: after each round of training, and finally with all steps."""
        check_is_fitted(self, "model_")
        last = len(self._history_rounds) - 1
        stage = np.array(["training"] * last + ["final"], dtype=object)
        measured = {name: metric(self._history_counts) for name, metric in self._metrics().items()}
        return pd.DataFrame({"round": self._history_rounds, "stage": stage, **measured})

    def _metrics(self) -> Mapping[str, Metric]:
        """What the history shows; where there are groups, fairness too, and the objective last."""
        grouping = self.model_.schema.grouping
        known = metrics_by(grouping)
        shown = {name: known[name] for name in MEASURES} | {"selection_rate": selection_rate}
        if len(grouping) < 2:
            return shown
        own = {self._objective: bind(self._objective, grouping)}
        return shown | {name: known[name] for name in FAIRNESS if name not in own} | own

    def plot_history(self) -> Figure:
        """Accuracy and fairness over the rounds, on the validation rows.

        Returns
        -------
        a figure of Matplotlib; a notebook shows it

        Examples
        --------
        >>> import numpy as np
        >>> from fairfate import FairFederatedClassifier
        >>> X = np.random.default_rng(0).normal(size=(200, 3))
        >>> y, sex = X[:, 0] > 0, np.where(X[:, 1] > 0, "f", "m")
        >>> clf = FairFederatedClassifier(strategy="fedavg", max_iter=2, random_state=0)
        >>> clf = clf.fit(X, y, sensitive_features=sex)
        >>> len(clf.plot_history().axes)
        3
        """
        from fairfate.report.canvas import Canvas, Style

        history = self.history_
        training, final = history[history["stage"] == "training"], history[history["stage"] == "final"]
        metrics = ["accuracy", "balanced_accuracy", *history.columns[-1:]]
        figure = Canvas(3.4 * len(metrics), 2.9, Style())
        for panel, metric in zip(figure.subplots(1, len(metrics)), metrics, strict=True):
            panel.plot(training["round"], training[metric], linewidth=1.4, label="in training")
            panel.plot(final["round"], final[metric], "D", markersize=6, label="final model", clip_on=False)
            panel.set_xlabel("round")
            panel.set_ylabel(metric.replace("_", " "))
            panel.spines[["top", "right"]].set_visible(False)
        figure.axes[0].legend(frameon=False, fontsize=8)
        figure.suptitle(self.strategy_, fontsize=9)
        return figure


class _Rows(NamedTuple):
    """Labelled rows, column by column."""

    inputs: pd.DataFrame
    labels: NDArray[Any]
    sensitive: pd.DataFrame | None
    clients: NDArray[Any] | None

    def weighted(self, weight: NDArray[np.float64], streams: Streams) -> _Rows:
        """The same rows as often as their weights say, evenly over clients, labels and groups."""
        others = {"label": self.labels} | ({} if self.clients is None else {"client": self.clients})
        frames = [frame for frame in (self.sensitive, pd.DataFrame(others)) if frame is not None]
        order = np.lexsort([pd.factorize(frame[name])[0] for frame in frames for name in frame])
        rows = np.repeat(np.arange(len(weight)), copies(weight, order, streams))
        return _Rows(
            self.inputs.take(rows).reset_index(drop=True),
            self.labels[rows],
            None if self.sensitive is None else self.sensitive.take(rows).reset_index(drop=True),
            None if self.clients is None else self.clients[rows],
        )


class ModelNetwork:
    """How the arrays of a model of one's own score encoded rows."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __call__(self, arrays: Mapping[str, NDArray[Any]], x: NDArray[np.float32]) -> NDArray[Any]:
        """(rows,) the log-odds of the favourable outcome."""
        rows = PackedRows.pack(x, np.zeros(len(x), dtype=np.int64), 1)
        return self.model.margins(self.model.flat(dict(arrays)), rows)[0]


def _fair_model(table: Table, federation: Federation, model: Model, trace: Trace, seed: int) -> FairModel:
    about = {
        "strategy": trace.spec.text,
        "protocol": "paper",
        "seed": seed,
        "data": table.name,
        "data-checksum": f"sha256:{table.checksum}",
        "rows-checksums": table.rows_checksums,
        "model": model.text,
        "validation": trace.validation[-1].tolist(),
    }
    network = None if isinstance(model, Mlp) else ModelNetwork(model)
    schema = Schema.from_table(table, federation.encoder)
    return model_of_trace(model, schema, trace, about, network)


def _without_groups(spec: Spec) -> Spec:
    """What can be trained of a strategy where everybody is in one group; a warning says what cannot."""
    steps = tuple(step for step in spec.steps if step.name not in RULES)
    base = parse_spec("fedavg", "eqo") if _uses_groups(spec.base) else spec.base
    blind = Spec(base.name, base.settings, steps)
    if blind != spec:
        warnings.warn(
            f"strategy '{spec.text}' needs sensitive_features with two groups at least: '{blind.text}' is"
            " trained in its place",
            UserWarning,
            stacklevel=3,
        )
    return blind


def _uses_groups(spec: Spec) -> bool:
    """Whether a strategy does something about groups."""
    if spec.metric is not None:
        return True
    strategy = spec.build(Setup(1, learning_rate=1.0))
    acts = strategy.local_loss is not None or len(strategy.needs) > 0
    return acts and not strategy.group_blind


def _check_metrics(spec: Spec, table: Table, parts: Mapping[str, NDArray[np.int64]], rounds: int) -> None:
    """Find out before anything is trained whether the strategy's objectives are defined where it looks."""
    setup = Setup(max(rounds, 1), groups=table.grouping, learning_rate=1.0)
    check_measurable(spec.individual, table, len(parts["validation"]))
    strategy, step = spec.build(setup), spec.step(THRESHOLDS)
    metrics = [("validation", spec.base.metric)] if strategy.needs & ON_VALIDATION else []
    if step is not None:
        metrics.append(("training" if step["from"] == "clients" else "validation", str(step["metric"])))
    for part, metric in metrics:
        rows = parts[part]
        check(len(rows) > 0, f"validation_fraction must be > 0 for '{spec.text}'", "no rows")
        if metric is not None:
            counts = np.bincount(table.cell[rows], minlength=2 * table.groups).reshape(-1, 2)
            check_metric(metric, counts, setup, f"the {part} rows", table)


def _sorted_classes(distinct: NDArray[Any]) -> NDArray[Any]:
    """The labels in their order, with the type of numbers where they are numbers."""
    if distinct.dtype.kind == "O" and len({type(label) for label in distinct}) == 1:
        plain = np.array(distinct.tolist())
        distinct = plain if plain.dtype.kind in "biuf" else distinct
    try:
        return distinct[np.argsort(distinct, kind="stable")]
    except TypeError:
        raise InputError(f"y must have labels of one kind, got {listing(map(repr, distinct))}") from None


def _label_column(y: Any, rows: int, name: str) -> NDArray[Any]:
    """(rows,) the labels as they were given."""
    if y is None:
        raise InputError(f"This {name} requires y to be passed, but the target y is None")
    if hasattr(y, "to_pandas") and not isinstance(y, pd.Series | pd.DataFrame):
        y = y.to_pandas()
    values: NDArray[Any] = column_or_1d(y, warn=True)
    check(len(values) == rows, f"y must have a label for each of the {rows} rows of X", len(values))
    if values.dtype.kind in "fc":
        assert_all_finite(values, input_name="y")
    return values


def _weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """(rows,) what each row counts."""
    try:
        weight = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"sample_weight must hold numbers, got {sample_weight!r:.60}") from None
    shape = f"shape {weight.shape}"
    check(weight.shape == (rows,), f"sample_weight must have a number for each of the {rows} rows", shape)
    odd = weight[~(np.isfinite(weight) & (weight >= 0))]
    check(len(odd) == 0, "sample_weight must hold finite numbers >= 0", f"{odd[0] if len(odd) else 0:g}")
    check(bool((weight > 0).any()), "sample_weight must be above zero in some row", "zero in all")
    return weight


def _clients(clients: Any, rows: int) -> NDArray[Any] | None:
    """(rows,) the client of each row, if these are named."""
    if clients is None:
        return None
    if isinstance(clients, str):
        raise InputError(f"clients must be an array of labels (see partition for others), got '{clients}'")
    labels = clients.to_numpy() if hasattr(clients, "to_numpy") else np.asarray(clients)
    check(labels.shape == (rows,), f"clients must have a label for each of the {rows} rows", labels.shape)
    missing = int(pd.isna(labels).sum())
    check(missing == 0, "clients must have a label for each row", f"{missing} missing")
    return np.asarray(labels)


def _check_shared(inputs: pd.DataFrame, attributes: pd.DataFrame) -> None:
    """A sensitive feature that was a column of X in fit must still be that column."""
    for name in attributes.columns.intersection(inputs.columns):
        rows = np.flatnonzero(differing_rows(inputs[name], attributes[name]))
        if len(rows):
            given, expected = attributes[name].iloc[rows[0]], inputs[name].iloc[rows[0]]
            raise InputError(
                f"sensitive_features '{name}' must be the column of X, as in fit, got '{given}' for"
                f" '{expected}' in row {rows[0] + 1}"
            )


def _seed(state: Any) -> int:
    """One seed from whatever scikit-learn takes as a random state, or a generator."""
    if isinstance(state, np.random.RandomState):
        return int(state.randint(2**31 - 1))
    return int(state) if isinstance(state, Integral) else int(np.random.default_rng(state).integers(2**32))


def _is_model(value: object) -> bool:
    """Whether something has the methods of a model; a module of PyTorch has some of them."""
    methods = all(callable(getattr(value, name, None)) for name in _MODEL_METHODS)
    return methods and not isinstance(value, type)


def _torch_model(make: Callable[[], Any], made: object, inputs: int) -> Model:
    """A model of PyTorch, if that is what was made."""
    if not hasattr(made, "state_dict"):
        raise InputError(f"model must make a model or a torch.nn.Module, got {type(made).__name__}")
    try:
        model: Model = importlib.import_module("fairfate.models.torch").TorchModel(make, inputs)
    except ImportError as error:
        raise InputError(
            f"A torch.nn.Module cannot be trained here, since PyTorch is missing: {error}"
        ) from None
    return model
