"""Fit a mixture per node by any method: the one entry for estimator, command line and scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fedmixtures import _checks
from fedmixtures._types import Device, Label
from fedmixtures.data.node_data import NodeData
from fedmixtures.engine.layout.blocks import without_edges
from fedmixtures.engine.options import ROUNDS, Options, refuse_idle
from fedmixtures.engine.run.loop import Run
from fedmixtures.engine.run.protocols import ProtocolRun, fit_once
from fedmixtures.engine.run.spread import SpreadRun
from fedmixtures.engine.run.watch import Checkpoint, Progress
from fedmixtures.engine.solution import Solution
from fedmixtures.engine.start import start_of
from fedmixtures.graph.network import Network
from fedmixtures.init import KMeansStart, Start
from fedmixtures.kernels.compiling import compilation_cache
from fedmixtures.methods.base import Method, OneShot
from fedmixtures.methods.programs import HubProgram
from fedmixtures.methods.protocol import Protocol
from fedmixtures.methods.registry import check_categories, check_gaps, method_named
from fedmixtures.mixture.arithmetic import precision
from fedmixtures.mixture.covariance_types import of_type
from fedmixtures.mixture.mixture import Mixture


def solve(
    method: Method | str,
    data: NodeData,
    network: Network | None = None,
    init: Start | Mixture | Mapping[Label, Mixture] | None = None,
    *,
    n_components: int | Sequence[int] | None = None,
    n_rounds: int | None = None,
    seed: int = 0,
    dtype: str = "float64",
    tol: float | None = None,
    watch: Callable[[Progress], Any] | None = None,
    announce: Callable[[str], Any] | None = None,
    report_every: int | None = None,
    checkpoint: Callable[[Checkpoint], Any] | None = None,
    resume: Checkpoint | None = None,
    keep_nodes: bool = False,
    keep_interrupted: bool = False,
    devices: Sequence[Device] = (),
    block_size: int | None = None,
) -> Solution:
    """Fit the mixtures of all nodes.

    Options that play no part in the method are refused by name.

    Parameters
    ----------
    method
        By itself or by name; what it leaves open (the feasible set) is taken from the rows.
    data
        The rows, grouped by node: ``NodeData.from_rows(X, nodes)``.
    network
        Who neighbours whom, on exactly the nodes of `data`, in their order; None: nobody.
    init
        Where nodes start: mixtures by label or stacked in the order of the nodes, or how to make
        them. None is k-means of each node's own rows.
    n_components
        Of each node, or of all; may be left out where `init` is stacked mixtures.
    n_rounds
        Exchanges; None is 40. Only of methods in rounds: with neighbours or with a hub.
    seed
        With the same seed the same numbers come out, whatever the order of rows and nodes.
    dtype
        ``"float64"`` or ``"float32"``; methods that are done at once compute in float64.
    tol
        Stop once no node's parameters change by more than this in a round, relative to their norm.
        Zero runs all rounds, as does None. Only of methods in rounds.
    watch
        Called with a `Progress`: in rounds before the first, then every `report_every` rounds and
        at the end, with the records of the rounds since the last call and, if asked for, the
        mixtures. A protocol shows its exchanges, ``{"round": 3, "step": "sum"}``, then its end; a
        method that is done at once its end alone.
    announce
        Called with a few words on what the fit is at, where `watch` would not be called for long.
    report_every
        Rounds between two calls of `watch` and of `checkpoint`; None runs as many as fit in one
        device call. Of a protocol: exchanges between two calls of `watch`; None is one.
    checkpoint
        Called with a `Checkpoint`, which has all that `resume` needs: in rounds after `watch`, of
        a protocol after every stage that it has finished.
    resume
        Go on from a checkpoint of a run with the same settings: the same numbers come out, bit for
        bit. What a protocol had begun after its last stage it does again.
    keep_nodes
        Whether the history keeps every node's fit and pull; without rounds it has them anyway.
    keep_interrupted
        What Ctrl-C does: return the last finished round, or raise KeyboardInterrupt. A protocol
        returns the mixtures of its last finished stage that has some: of the default method each
        node's own fit, later everyone's mixture moved to its rows.
    devices
        Where to run: over all of these if they are several, else where JAX runs by default. Of
        methods in rounds without a hub, and of the default method.
    block_size
        None lets the engine choose; 1 runs every node as a federation would. Only of methods in
        rounds, on one device.
    """
    method = method_named(method) if isinstance(method, str) else method
    devices = tuple(devices)
    refuse_idle(
        method,
        n_rounds=n_rounds,
        tol=tol,
        report_every=report_every,
        checkpoint=checkpoint,
        resume=resume,
        keep_interrupted=keep_interrupted,
        devices=devices,
        block_size=block_size,
        dtype=dtype,
    )
    options = Options(
        seed,
        dtype,
        ROUNDS if n_rounds is None else n_rounds,
        0.0 if tol is None else tol,
        watch,
        announce,
        report_every,
        checkpoint,
        resume,
        keep_nodes,
        keep_interrupted,
        devices,
        block_size,
    )
    _check_devices(devices, block_size, method)
    network = without_edges(data.labels) if network is None else network
    components = _components(n_components, init, data, method)
    method.check(components, network)
    check_gaps(method, data)
    check_categories(method, data)
    method = method.bounded(data, components)
    with compilation_cache():
        init = KMeansStart() if init is None else init
        if announce is not None and not isinstance(method, Protocol):
            announce("making starts" if method.needs_start else "fitting all nodes at once")
        components, theta = start_of(init, data, components, seed, method)
        theta = None if theta is None else of_type(theta, method.covariance_type)
        solution = _run(method.program(), data, network, components, theta, options)
    return replace(solution, rows=data.total_weights())


def _run(
    program: Method,
    data: NodeData,
    network: Network,
    n_components: list[int],
    theta: Mixture | None,
    options: Options,
) -> Solution:
    if isinstance(program, OneShot):
        return fit_once(program, data, n_components, theta, options)
    if isinstance(program, Protocol):
        kind = SpreadRun if len(options.devices) > 1 else ProtocolRun
        return kind(program, data, network, n_components, theta, options).solution()
    # With a hub it plays no part who neighbours whom.
    around = without_edges(data.labels) if isinstance(program, HubProgram) else network
    assert theta is not None  # programs in rounds begin somewhere
    with precision(options.dtype):
        return Run(program, data, around, theta, options).solution()


def _check_devices(devices: tuple[Device, ...], block_size: int | None, method: Method) -> None:
    """Several are laid out by themselves, and a single one is the one JAX runs on."""
    elsewhere = [device for device in devices if device.process_index != jax.process_index()]
    if elsewhere and isinstance(method, Protocol):
        raise ValueError(
            f"{len(elsewhere)} of `devices` belong to another process, where only methods in "
            f"rounds reach them. Give {type(method).__name__} `jax.local_devices()`."
        )
    if len(devices) > 1 and block_size is not None:
        raise ValueError(
            f"`block_size` is {block_size}, but nodes that are spread over {len(devices)} devices "
            "are laid out by them. Leave out `block_size` or `devices`."
        )
    if len(devices) == 1:
        usual = getattr(jax.config, "jax_default_device", None) or jax.devices()[0]
        if isinstance(usual, jax.Device) and devices[0] != usual:
            raise ValueError(
                f"`devices` is {devices[0]} alone, but JAX runs on {usual}. Leave it out and run "
                "inside `with jax.default_device(...)`."
            )


def _components(n_components: Any, init: Any, data: NodeData, method: Method) -> list[int]:
    """Number of components of every node."""
    if n_components is None and isinstance(init, Mixture):
        return (np.asarray(init.weights) > 0).sum(-1).tolist()
    if n_components is None:
        raise ValueError(
            f"`n_components` is missing: {type(method).__name__} is given no mixtures to start "
            "from. Give the number of components of each node."
        )
    if isinstance(n_components, Sequence | np.ndarray):
        return [int(k) for k in n_components]
    _checks.whole("n_components", n_components)
    return [int(n_components)] * data.n_nodes
