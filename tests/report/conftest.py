"""A small run to report on, and a real browser to look at the page with."""

import dataclasses
import os
import shutil

import numpy as np
import pytest

from fedmixtures import GTVMin, NetworkGaussianMixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.data.scenarios import shifted_blocks
from fedmixtures.data.transform import Transform
from fedmixtures.estimators.atlas import Atlas
from fedmixtures.estimators.names import profiles
from fedmixtures.estimators.problem import Problem
from fedmixtures.graph.generate import stochastic_blocks
from fedmixtures.metrics import Scores
from fedmixtures.report.content import Findings, build_content

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def found() -> Findings:
    """Nine nodes in three blocks after six rounds, one local step each."""
    s = shifted_blocks(3, 3, n_components=3, n_train=40, n_validation=30, seed=2)
    names = np.array([f"{block}{i}" for block in "abc" for i in range(3)])
    network = stochastic_blocks([3, 3, 3], 1.0, 0.2, seed=0, labels=names.tolist())
    snapshots, method = {}, GTVMin(n_local_steps=1)
    data = NodeData.from_rows(s.X, names[s.nodes])
    problem = Problem.of(data, network, method, 3)
    look = lambda progress: snapshots.update({progress.round: progress.theta})
    solution = problem.solve(n_rounds=6, report_every=2, watch=look)
    model = NetworkGaussianMixture(3).adopt(solution, problem.network).align_components()
    held = names[s.nodes_validation]
    own = NetworkGaussianMixture(3, method="local", random_state=0).fit(s.X, nodes=names[s.nodes])
    scores = Scores.of(
        tuple(names.tolist()),
        NodeData.from_rows(s.X_validation, held),
        model.score_samples(s.X_validation, held),
        own.score_samples(s.X_validation, held),
    )
    return Findings(
        atlas=Atlas.of(model.solution_, ("age", "<b>dose</b>")),
        theta=model.solution_.theta,
        theta_scaled=model.solution_.theta,
        network=model.network_,
        data=data,
        features=("age", "<b>dose</b>"),
        history=model.history_,
        method=method,
        scores=scores,
        snapshots=snapshots,
        held_out={0: -5.0, 6: -4.5},
        certificate=model.certificate_,
        traffic=model.traffic_,
        settings={"method": "gtv-mmd", "status": "completed", "data": "table.csv"},
    )


@pytest.fixture(scope="session")
def content(found) -> dict:
    return build_content(found)


@pytest.fixture(scope="session")
def content_with_rows(found) -> dict:
    return build_content(found, include_rows=True)


@pytest.fixture(scope="session")
def lifted(found):
    """The same run in four features, two of them noise, so that there are several planes."""
    rng = np.random.default_rng(0)
    rows = np.hstack([found.data.rows, rng.standard_normal((len(found.data.rows), 2))])
    n, k = found.theta.weights.shape
    means = np.concatenate([found.theta.means, np.zeros((n, k, 2))], -1)
    covariances = np.tile(np.eye(4), (n, k, 1, 1))
    covariances[..., :2, :2] = found.theta.covariances
    theta = type(found.theta)(found.theta.weights, means, covariances)
    data = dataclasses.replace(found.data, rows=rows)
    return reshaped(found, theta, data, tuple("abcd"))


def reshaped(found, theta, data, features) -> Findings:
    """The same run with other mixtures and rows, and the clusters of these."""
    share = data.counts / data.counts.sum()
    atlas = dataclasses.replace(
        found.atlas,
        profiles=profiles(theta, share),
        shares=theta.weights,
        centres=theta.means,
        features=features,
        transform=Transform.none(len(features)),
    )
    known = {"theta": theta, "theta_scaled": theta, "data": data, "features": features}
    return dataclasses.replace(found, **known, atlas=atlas, snapshots={})


@pytest.fixture(scope="session")
def wide(found) -> dict:
    """Content with twelve clusters, one with a long name, in twenty features with long names."""
    rng = np.random.default_rng(1)
    n, k, d = 9, 12, 20
    means = np.tile(rng.normal(0, 300, (k, d)), (n, 1, 1)) + rng.normal(0, 9, (n, k, d))
    theta = type(found.theta)(
        rng.dirichlet(np.ones(k), n), means, np.tile(400 * np.eye(d), (n, k, 1, 1))
    )
    data = dataclasses.replace(found.data, rows=rng.normal(0, 300, (len(found.data.rows), d)))
    features = tuple(f"laboratory value number {j} measured at admission" for j in range(d))
    run = reshaped(found, theta, data, features)
    names = ("septic shock of unknown origin", *(f"kind {c}" for c in range(1, k)))
    return build_content(
        dataclasses.replace(run, atlas=dataclasses.replace(run.atlas, names=names))
    )


@pytest.fixture(scope="session")
def chromium():
    """A headless Chromium; where there is none the tests are skipped, but never in CI."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        message = "no Chromium found: install the package 'chromium' to test the report page"
        if os.environ.get("CI") == "true":
            pytest.fail(message)
        pytest.skip(message)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium, tmp_path):
    """Open a page of this text; collects what it asks for and what it complains about."""
    contexts = []

    def show(text: str, **options):
        file = tmp_path / "report.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(**({"viewport": {"width": 1200, "height": 850}} | options))
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda m: page.complaints.append(m.text))
        page.on("pageerror", lambda e: page.complaints.append(str(e)))
        page.on("request", lambda r: page.requests.append(r.url))
        page.goto(file.as_uri())
        return page

    yield show
    for context in contexts:
        context.close()
