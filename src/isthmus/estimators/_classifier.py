"""BottleneckClassifier: classes through as few variables as it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d
from torch import Tensor

from isthmus._checks import as_tensor, fail
from isthmus._cite import cites
from isthmus._deprecations import renamed
from isthmus.estimators._base import Array, Bottleneck, put_together, take_apart
from isthmus.files import register
from isthmus.measures import Topology, tripoints

#: Labels that a file can hold: how NumPy calls their kind, and the type of each in JSON.
_KINDS: dict[str, type] = {"b": bool, "i": int, "f": float, "U": str}

#: Room around the data of a picture, as a share of their range.
MARGIN = 0.15


@cites("rank2023", "§5, 'Classification'", ids=("Q-topology",))
class BottleneckClassifier(ClassifierMixin, Bottleneck):
    """Classification through as few variables as the task needs: p(y|x) = softmax(h(g(x))), the meeting place found.

    The logits are trained by cross-entropy with a ridge. Of K of them one is free, so K classes need at most K − 1
    variables; where one suffices, the classes lie side by side as on a line, and no three of them meet.

    Parameters
    ----------
    rank : "auto" or int, default "auto"
        How many coordinates; found from the data unless given.
    depth : int, default 6
        Layers of the network, an even number.
    width : int, default 128
        Neurons in each.
    activation : {"auto", "smooth", "kinked"}, default "auto"
        SiLU or ReLU; "auto" is ReLU: boundaries between classes have kinks.
    resolution : "auto" or float, default "auto"
        A coordinate must explain at least about this share of the labels' entropy. "auto" takes the largest of 0.1,
        0.03 and 0.01 at which held-out rows are predicted about as well as at any.
    units : {"auto", "own", "common"}, default "auto"
        Columns divided by their own standard deviation, or all by one number; "auto" asks what predicts better where
        many neighbouring columns are alike, as pixels are.
    max_rank : int, optional
        The largest rank to look for; by default what the data allow, at most 15.
    cv : None, int, splitter or pairs of rows
        How rows are held out to judge each rank: a quarter of each class by default.
    replicas : int, default 1
        Further trainings, from other seeds, divisions and depths, that must agree with the first.
    steps : int, default 50
        Quasi-Newton steps after each narrowing.
    learning_rate, init_scale : float
        Of the first steps; the answer does not depend on them.
    max_samples : int, default 5000
        Training rows beyond this number are used only for the last fit.
    missing : {"error", "median"}
        What to do with NaN in X.
    n_jobs : int, optional
        Processes for trainings that do not depend on each other: None is 1 unless a joblib context says otherwise, −1
        one for each core. The answer does not depend on it.
    random_state : int, RandomState or None, default 0
    verbose : bool, default False
        Show progress on stderr.
    ridge : float
        The former name of ``resolution``; it goes in the next version.

    Attributes
    ----------
    classes_ : array (K,)
    rank_ : int
    verdict_ : {"determined", "undetermined", "trivial", "given"}
    reasons_ : list of str
    rank_profile_ : RankProfile or None
        Held-out log loss relative to the entropy of the labels, and the rest, for each rank; None for a single class.
    encoder_, decoder_ : nn.Module
        g in the units of X, and h, whose K logits are calibrated: divided by the temperature that suits best the rows
        that were held out while the rank was looked for. It changes no prediction, only how sure they are.
    discovery_ : Discovery
        Everything that was found.
    n_features_in_ : int
    feature_names_in_ : array of str
        Only when X has names.

    Examples
    --------
    >>> import isthmus
    >>> data = isthmus.problems.inverted_s_classes(samples=200)
    >>> model = isthmus.BottleneckClassifier(depth=8, width=32, replicas=0).fit(data.X, data.labels)
    >>> model.rank_, model.score(data.X, data.labels)
    (1, 1.0)
    """

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect of it."""
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def fit(self, X: Any, y: Any, groups: Any = None, time: Any = None) -> BottleneckClassifier:
        """Discover how many variables the classes depend on, and learn the maps.

        Parameters
        ----------
        X : array (n, n_features)
        y : array (n,)
            Class labels: integers, truth values or texts.
        groups : array (n,), optional
            Rows of one group are never on both sides of a division.
        time : array (n,), optional
            Numbers or dates that order the rows in time: the last are held out.
        """
        self._check_parameters()
        X, y = self._validated(X, y, ensure_min_samples=2)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        self.classes_: NDArray[Any] = np.unique(y)
        self._box = _box(X)
        return self._discover(X, y, groups=groups, time=time, loss="cross_entropy")

    def _logits(self, X: Any) -> Array:
        X = self._checked(X)
        return self.discovery_.predict(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        likely = self._logits(X).argmax(axis=1)
        return self.classes_[likely]

    def predict_proba(self, X: Any) -> Array:
        """softmax(h(g(X))), (n, K), in the order of ``classes_``: calibrated on rows that were held out."""
        return softmax(self._logits(X), axis=1)

    def decision_function(self, X: Any) -> Array:
        """Logits (n, K); of two classes their difference (n,), positive for the second."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    @renamed(resolution="points")
    def tripoints(self, box: Any = None, *, points: int = 256, smallest: float = 1e-6) -> Topology:
        """Points of the plane where three classes meet, and which classes touch, for two inputs.

        Parameters
        ----------
        box : ((x_low, x_high), (y_low, y_high)), optional
            Where to look; by default around the data of the fit.
        points, smallest : int, float
            As in :func:`isthmus.measures.tripoints`.
        """
        where = self._plane("tripoints") if box is None else box
        self._plane("tripoints")
        return tripoints(self.discovery_.predict, where, points=points, smallest=smallest)

    def plot_boundary(self, axes: Any = None, X: Any = None, y: Any = None, *, box: Any = None) -> Any:
        """Draw the regions of the classes in the plane, for two inputs, with rows X and their labels y if given.

        Parameters
        ----------
        axes : matplotlib Axes, optional
            By default new ones.
        X, y : array (n, 2) and (n,), optional
        box : as in :meth:`tripoints`

        Returns
        -------
        Axes
        """
        from isthmus.plotting.boundary import draw_boundary
        from isthmus.plotting.style import new_figure

        where = self._plane("plot_boundary") if box is None else as_tensor("plot_boundary", "box", box).numpy()
        axes = new_figure(6.4, 5.4).subplots() if axes is None else axes
        names = [str(name) for name in self.classes_.tolist()]
        points = None if X is None else self._checked(X)
        index = None if y is None else np.searchsorted(self.classes_, np.asarray(y))
        draw_boundary(axes, self.discovery_.predict, where, names, points, index, self.discovery_.feature_names)
        return axes

    def _plane(self, who: str) -> Array:
        check_is_fitted(self)
        if len(self.discovery_.feature_names) != 2:
            got = f"{len(self.discovery_.feature_names)} inputs"
            fail(who, "the classifier must have two inputs", got, "Fit it on two columns.")
        return self._box


def _box(X: Array) -> Array:
    """Low and high of each column, (n_features, 2), with some room around."""
    low, high = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    room = MARGIN * np.where(high > low, high - low, 1.0)
    return np.stack([low - room, high + room], axis=1)


def _to_parts(model: BottleneckClassifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
    classes = getattr(model, "classes_", np.zeros(0, dtype=np.int64))
    kind = {"u": "i", "O": "U"}.get(classes.dtype.kind, classes.dtype.kind)
    values = [str(label) for label in classes.tolist()] if kind == "U" else classes.tolist()
    if kind not in _KINDS or (classes.dtype.kind == "O" and not all(isinstance(c, str) for c in classes.tolist())):
        do = "Encode the labels as integers or texts."
        fail("save", "class labels must be integers, truth values, numbers or texts", str(classes.dtype), do)
    return take_apart(model, classes=values, kind=kind, box=getattr(model, "_box", np.zeros((0, 2))).tolist())


def _from_parts(config: Any, tensors: dict[str, Tensor]) -> BottleneckClassifier:
    more = {"classes": list, "kind": str, "box": list}
    model = put_together(BottleneckClassifier, config, tensors, more, "cross_entropy")
    values, kind, names = config["classes"], config["kind"], model.discovery_.target_names
    plain = _KINDS.get(kind)
    if plain is None or any(type(label) is not plain for label in values):
        fail("load", f"classes must be of a kind among {', '.join(_KINDS)}", ascii(values)[:200], "Save it again.")
    try:
        classes = np.array(values, dtype=None if kind == "U" else {"b": np.bool_, "i": np.int64, "f": np.float64}[kind])
        box = np.array(config["box"], dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        fail("load", "classes and box must be arrays", ascii(config["box"])[:200], "Save it again.")
    if len(np.unique(classes)) != len(values) or not np.array_equal(np.unique(classes), classes):
        fail("load", "classes must be different and in order", ascii(values)[:200], "Save it again.")
    if len(values) != len(names):
        fail("load", f"there must be {len(names)} classes, one for each output", len(values), "Save it again.")
    if box.shape != (len(model.discovery_.feature_names), 2) or not np.isfinite(box).all():
        fail("load", "the box must have two finite numbers for each input", box.shape, "Save it again.")
    model.classes_, model._box = classes, box
    model._take()
    return model


register("BottleneckClassifier", BottleneckClassifier, _to_parts, _from_parts)
