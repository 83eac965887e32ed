"""Federated soft clustering: one Gaussian mixture per node, coupled over a graph."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fedmixtures._version import __version__ as __version__

if TYPE_CHECKING:
    from fedmixtures.discrepancy import KL as KL
    from fedmixtures.discrepancy import MMD as MMD
    from fedmixtures.discrepancy import AbstractDiscrepancy as AbstractDiscrepancy
    from fedmixtures.discrepancy import Euclidean as Euclidean
    from fedmixtures.discrepancy import UnscentedKL as UnscentedKL
    from fedmixtures.engine.solution import Certificate as Certificate
    from fedmixtures.engine.solution import FitWarning as FitWarning
    from fedmixtures.engine.solution import History as History
    from fedmixtures.engine.solution import Solution as Solution
    from fedmixtures.engine.solve import solve as solve
    from fedmixtures.estimators.network_mixture import (
        NetworkGaussianMixture as NetworkGaussianMixture,
    )
    from fedmixtures.estimators.persist import load as load
    from fedmixtures.estimators.selection import NodeKFold as NodeKFold
    from fedmixtures.estimators.selection import select_alpha as select_alpha
    from fedmixtures.estimators.selection import select_components as select_components
    from fedmixtures.estimators.sklearn_api import from_sklearn as from_sklearn
    from fedmixtures.estimators.sklearn_api import to_sklearn as to_sklearn
    from fedmixtures.graph.generate import erdos_renyi_ring as erdos_renyi_ring
    from fedmixtures.graph.generate import nearest_neighbours as nearest_neighbours
    from fedmixtures.graph.generate import stochastic_blocks as stochastic_blocks
    from fedmixtures.graph.network import Network as Network
    from fedmixtures.graph.network import complete as complete
    from fedmixtures.init import KMeansStart as KMeansStart
    from fedmixtures.methods.base import Backtracking as Backtracking
    from fedmixtures.methods.compared.averaging import CColME as CColME
    from fedmixtures.methods.compared.averaging import FedeRiCo as FedeRiCo
    from fedmixtures.methods.compared.averaging import GraphFedEM as GraphFedEM
    from fedmixtures.methods.compared.baselines import Centralized as Centralized
    from fedmixtures.methods.compared.baselines import FedGenGMM as FedGenGMM
    from fedmixtures.methods.compared.baselines import Local as Local
    from fedmixtures.methods.compared.consensus_em import ConsensusEM as ConsensusEM
    from fedmixtures.methods.compared.dfmr import DFMR as DFMR
    from fedmixtures.methods.compared.fedgem import FedGEM as FedGEM
    from fedmixtures.methods.compared.fedgrem import FedGrEM as FedGrEM
    from fedmixtures.methods.compared.fedkmeans import FedKMeans as FedKMeans
    from fedmixtures.methods.compared.hub_em import IFCA as IFCA
    from fedmixtures.methods.compared.hub_em import FedEM as FedEM
    from fedmixtures.methods.gtvmin import GTVMin as GTVMin
    from fedmixtures.methods.registry import register_discrepancy as register_discrepancy
    from fedmixtures.methods.registry import register_method as register_method
    from fedmixtures.methods.trust_then_pool import TrustThenPool as TrustThenPool
    from fedmixtures.mixture.feasible import FeasibleSet as FeasibleSet
    from fedmixtures.mixture.m_step import ShapePrior as ShapePrior
    from fedmixtures.mixture.mixture import Mixture as Mixture

# Where every public name lives; loaded on first use, so that importing us stays quick.
_HOMES = {
    name: home
    for home, names in {
        "discrepancy": "AbstractDiscrepancy Euclidean KL MMD UnscentedKL",
        "engine.solution": "Certificate FitWarning History Solution",
        "engine.solve": "solve",
        "estimators.sklearn_api": "from_sklearn to_sklearn",
        "estimators.network_mixture": "NetworkGaussianMixture",
        "estimators.persist": "load",
        "estimators.selection": "NodeKFold select_alpha select_components",
        "graph.network": "Network complete",
        "graph.generate": "erdos_renyi_ring nearest_neighbours stochastic_blocks",
        "init": "KMeansStart",
        "methods.base": "Backtracking",
        "methods.gtvmin": "GTVMin",
        "methods.registry": "register_discrepancy register_method",
        "methods.compared.baselines": "Local Centralized FedGenGMM",
        "methods.compared.fedkmeans": "FedKMeans",
        "methods.compared.hub_em": "FedEM IFCA",
        "methods.compared.consensus_em": "ConsensusEM",
        "methods.compared.fedgrem": "FedGrEM",
        "methods.compared.averaging": "CColME FedeRiCo GraphFedEM",
        "methods.compared.dfmr": "DFMR",
        "methods.compared.fedgem": "FedGEM",
        "methods.trust_then_pool": "TrustThenPool",
        "mixture.m_step": "ShapePrior",
        "mixture.feasible": "FeasibleSet",
        "mixture.mixture": "Mixture",
    }.items()
    for name in names.split()
}
__all__ = [*_HOMES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
