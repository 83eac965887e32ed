"""Methods and discrepancies by name: what a user writes, a file stores and a job carries.

A method or discrepancy of your own takes part once it is registered:

    register_discrepancy("bures", Bures)              # also as the method "gtv-bures"
    register_method("gossip", lambda: Gossip(0.3))

From then on the estimator's ``method="gossip"``, the command line, stored models and jobs between
silos know it, in every process that has registered it. An installed package does so everywhere, by
an entry point of the group `PLUGINS`; between silos a method must also say what it `sends`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from fedmixtures import _checks
from fedmixtures.data.node_data import NodeData
from fedmixtures.discrepancy import KL, MMD, AbstractDiscrepancy, Euclidean, UnscentedKL
from fedmixtures.methods.base import Method
from fedmixtures.methods.compared.averaging import CColME, FedeRiCo, GraphFedEM
from fedmixtures.methods.compared.baselines import Centralized, FedGenGMM, Local
from fedmixtures.methods.compared.consensus_em import ConsensusEM
from fedmixtures.methods.compared.dfmr import DFMR
from fedmixtures.methods.compared.fedgem import FedGEM
from fedmixtures.methods.compared.fedgrem import FedGrEM
from fedmixtures.methods.compared.fedkmeans import FedKMeans
from fedmixtures.methods.compared.hub_em import IFCA, FedEM
from fedmixtures.methods.gtvmin import GTVMin
from fedmixtures.methods.trust_then_pool import TrustThenPool

_methods: dict[str, Callable[[], Method]] = {}
_discrepancies: dict[str, type[AbstractDiscrepancy]] = {}

PLUGINS = "fedmixtures.methods"
"""Entry points of this group are modules that register methods or discrepancies on import."""


@cache
def _load_plugins() -> None:
    """Import what installed packages register, once, when a name is not known otherwise."""
    for plugin in entry_points(group=PLUGINS):
        plugin.load()


class _Registered(Mapping[str, Any]):
    """Entries by name, those of installed packages among them."""

    def __init__(self, entries: dict[str, Any]):
        self._entries = entries

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries:
            _load_plugins()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        _load_plugins()
        return iter(self._entries)

    def __len__(self) -> int:
        _load_plugins()
        return len(self._entries)


METHODS: Mapping[str, Callable[[], Method]] = _Registered(_methods)
"""What makes the method of each name, with its default settings."""
DISCREPANCIES: Mapping[str, type[AbstractDiscrepancy]] = _Registered(_discrepancies)
"""The class of each discrepancy that has a name."""


def register_method(name: str, factory: Callable[[], Any]) -> None:
    """Let `name` stand for the method that `factory` makes; a class will do."""
    if _methods.get(name, factory) is not factory:
        raise ValueError(f"`name` is {name!r}, which names a method already. Choose another.")
    made = factory()
    if not isinstance(made, Method):
        raise ValueError(f"`factory` made {made!r}. Give what makes a Method.")
    _methods[name] = factory


def register_discrepancy(name: str, kind: type) -> None:
    """Let `name` stand for this class, and ``gtv-<name>`` for Algorithm 1 with it."""
    if _discrepancies.get(name, kind) is not kind:
        raise ValueError(f"`name` is {name!r}, which names a discrepancy already. Choose another.")
    if not issubclass(kind, AbstractDiscrepancy):
        raise ValueError(f"`kind` is {kind!r}. Give a subclass of AbstractDiscrepancy.")
    if name not in _discrepancies:
        register_method(f"gtv-{name}", lambda: GTVMin(kind()))
    _discrepancies[name] = kind


def method_named(name: str) -> Method:
    """The method of this name, with its default settings."""
    _checks.one_of("method", name, METHODS)
    return _methods[name]()


def name_of(method: Method) -> str | None:
    """The name that a method is registered by, whatever its settings; None if it has none."""
    kind = lambda one: (type(one), type(getattr(one, "discrepancy", None)))
    return next((name for name, made in METHODS.items() if kind(made()) == kind(method)), None)


def remedy_for_gaps() -> str:
    """What to do where a method cannot fit rows with missing cells: those that can, by name."""
    able = [name for name, factory in METHODS.items() if factory().supports_missing]
    return f"take a method that fits rows with missing cells: {', '.join(sorted(able))}"


def check_gaps(method: Method, data: NodeData) -> None:
    """Missing cells only for methods that fit them, and no column without any."""
    if not data.has_gaps:
        return
    missing = np.isnan(data.rows)
    if not method.supports_missing:
        raise ValueError(
            f"cells are missing ({int(missing.sum())} are NaN), and {type(method).__name__} cannot "
            f"fit such rows. Drop or fill these rows, or {remedy_for_gaps()}."
        )
    empty = np.flatnonzero(missing.all(0))
    if len(empty):
        raise ValueError(f"column {empty[0]} of X has no value in any row. Leave it out.")


def check_categories(method: Method, data: NodeData) -> None:
    """Categories only for methods that know them, beside a continuous column."""
    if not data.categories:
        return
    if not method.supports_categories:
        able = sorted(name for name, made in _methods.items() if made().supports_categories)
        raise ValueError(
            f"there are categorical columns, and {type(method).__name__} is defined for Gaussians "
            f"alone. Leave them out, or take a method that knows categories: {', '.join(able)}."
        )
    if not data.n_continuous:
        raise ValueError(
            "all columns are categorical. Mixtures here need a continuous column beside them."
        )


def registered_classes() -> dict[str, type]:
    """Classes of all methods and discrepancies that have a name, by the name of the class."""
    kinds = [type(factory()) for factory in METHODS.values()]
    return {kind.__name__: kind for kind in (*kinds, *DISCREPANCIES.values())}


for _name, _kind in {
    "euclidean": Euclidean,
    "kl": KL,
    "mmd": MMD,
    "unscented": UnscentedKL,
}.items():
    register_discrepancy(_name, _kind)
for _name, _factory in {
    "local": Local,
    "centralized": Centralized,
    "fedkmeans": FedKMeans,
    "fedgrem": FedGrEM,
    "consensus-em": ConsensusEM,
    "fedem": FedEM,
    "fedgengmm": FedGenGMM,
    "ifca": IFCA,
    "c-colme": CColME,
    "dfmr": DFMR,
    "fedgem": FedGEM,
    "graphfed-em": GraphFedEM,
    "federico": FedeRiCo,
    "trust": TrustThenPool,
}.items():
    register_method(_name, _factory)
