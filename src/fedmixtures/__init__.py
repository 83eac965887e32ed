"""Federated soft clustering: one Gaussian mixture per node, coupled over a graph."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedmixtures.discrepancy.base import AbstractDiscrepancy as AbstractDiscrepancy
    from fedmixtures.discrepancy.euclidean import Euclidean as Euclidean
    from fedmixtures.discrepancy.kl import KL as KL
    from fedmixtures.discrepancy.kl import UnscentedKL as UnscentedKL
    from fedmixtures.discrepancy.mmd import MMD as MMD
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
    from fedmixtures.graph.generate import complete as complete
    from fedmixtures.graph.generate import erdos_renyi_ring as erdos_renyi_ring
    from fedmixtures.graph.generate import nearest_neighbours as nearest_neighbours
    from fedmixtures.graph.generate import stochastic_blocks as stochastic_blocks
    from fedmixtures.graph.network import Network as Network
    from fedmixtures.init.kmeans import KMeansStart as KMeansStart
    from fedmixtures.methods.base import Backtracking as Backtracking
    from fedmixtures.methods.compared.baselines import Centralized as Centralized
    from fedmixtures.methods.compared.baselines import Local as Local
    from fedmixtures.methods.compared.c_colme import CColME as CColME
    from fedmixtures.methods.compared.consensus_em import ConsensusEM as ConsensusEM
    from fedmixtures.methods.compared.dfmr import DFMR as DFMR
    from fedmixtures.methods.compared.fedem import FedEM as FedEM
    from fedmixtures.methods.compared.federico import FedeRiCo as FedeRiCo
    from fedmixtures.methods.compared.fedgem import FedGEM as FedGEM
    from fedmixtures.methods.compared.fedgengmm import FedGenGMM as FedGenGMM
    from fedmixtures.methods.compared.fedgrem import FedGrEM as FedGrEM
    from fedmixtures.methods.compared.fedkmeans import FedKMeans as FedKMeans
    from fedmixtures.methods.compared.graphfed_em import GraphFedEM as GraphFedEM
    from fedmixtures.methods.compared.ifca import IFCA as IFCA
    from fedmixtures.methods.gtvmin import GTVMin as GTVMin
    from fedmixtures.methods.registry import register_discrepancy as register_discrepancy
    from fedmixtures.methods.registry import register_method as register_method
    from fedmixtures.methods.trust_then_pool import TrustThenPool as TrustThenPool
    from fedmixtures.mixture.em import ShapePrior as ShapePrior
    from fedmixtures.mixture.feasible import FeasibleSet as FeasibleSet
    from fedmixtures.mixture.mixture import Mixture as Mixture

# Every public name and where it lives; loaded on first use, so that importing us stays quick.
_HOMES = {
    "AbstractDiscrepancy": "discrepancy.base",
    "Euclidean": "discrepancy.euclidean",
    "KL": "discrepancy.kl",
    "MMD": "discrepancy.mmd",
    "UnscentedKL": "discrepancy.kl",
    "Certificate": "engine.solution",
    "FitWarning": "engine.solution",
    "History": "engine.solution",
    "Solution": "engine.solution",
    "solve": "engine.solve",
    "from_sklearn": "estimators.sklearn_api",
    "to_sklearn": "estimators.sklearn_api",
    "NetworkGaussianMixture": "estimators.network_mixture",
    "load": "estimators.persist",
    "NodeKFold": "estimators.selection",
    "select_alpha": "estimators.selection",
    "select_components": "estimators.selection",
    "Network": "graph.network",
    "complete": "graph.generate",
    "erdos_renyi_ring": "graph.generate",
    "nearest_neighbours": "graph.generate",
    "stochastic_blocks": "graph.generate",
    "KMeansStart": "init.kmeans",
    "Backtracking": "methods.base",
    "GTVMin": "methods.gtvmin",
    "register_discrepancy": "methods.registry",
    "register_method": "methods.registry",
    "Local": "methods.compared.baselines",
    "Centralized": "methods.compared.baselines",
    "FedKMeans": "methods.compared.fedkmeans",
    "FedEM": "methods.compared.fedem",
    "IFCA": "methods.compared.ifca",
    "ConsensusEM": "methods.compared.consensus_em",
    "FedGrEM": "methods.compared.fedgrem",
    "FedGenGMM": "methods.compared.fedgengmm",
    "CColME": "methods.compared.c_colme",
    "DFMR": "methods.compared.dfmr",
    "FedGEM": "methods.compared.fedgem",
    "GraphFedEM": "methods.compared.graphfed_em",
    "FedeRiCo": "methods.compared.federico",
    "TrustThenPool": "methods.trust_then_pool",
    "ShapePrior": "mixture.em",
    "FeasibleSet": "mixture.feasible",
    "Mixture": "mixture.mixture",
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
