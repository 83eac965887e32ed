"""What goes into the page: numbers by an independent route, and no rows unless asked for."""

import dataclasses
import json

import numpy as np
import pytest

from fedmixtures import MMD, Mixture
from fedmixtures.data.node_data import NodeData
from fedmixtures.estimators.atlas import Atlas
from fedmixtures.graph import from_edges
from fedmixtures.methods.base import Diagnostics, Levels, Trust
from fedmixtures.metrics import Scores
from fedmixtures.report import geometry
from fedmixtures.report.content import build_content
from fedmixtures.report.geometry import matched_to_last, positions
from fedmixtures.report.numbers import decimals, percent, plain
from fedmixtures.report.page import embedded, render
from fedmixtures.report.sentences import headline, story
from tests.report.conftest import reshaped


def test_edges_carry_the_discrepancy_of_their_ends(found):
    values = geometry.edge_discrepancies(MMD(), found.theta, found.network)
    mixtures = [found.theta.at(i) for i in range(9)]
    for value, a, b in zip(values, found.network.source, found.network.target, strict=True):
        assert value == pytest.approx(MMD().between(mixtures[a], mixtures[b]), rel=1e-9)


def test_groups_are_the_blocks_where_discrepancies_part(content):
    group = dict(zip(content["nodes"]["label"], content["nodes"]["group"], strict=True))
    assert len({group[f"{b}{i}"] for b in "abc" for i in range(3)}) == 3
    for block in "abc":
        assert len({group[f"{block}{i}"] for i in range(3)}) == 1


def test_trust_is_read_off_the_account_of_whatever_method(found):
    network, n = found.network, found.data.n_nodes
    trusted = np.repeat(np.arange(network.n_edges)[:, None] > 0, 2, axis=1)
    diagnostics = Diagnostics({"group": 7 + np.arange(n) // 6}, {"trusted": trusted})
    trust = Trust.of(diagnostics, network)
    content = build_content(dataclasses.replace(found, trust=trust))
    assert content["nodes"]["group"] == (np.arange(n) // 6).tolist()
    assert content["edges"]["n_trusted"] == network.n_edges - 1
    words = " ".join(render(content, static=True).split())
    assert f"({network.n_edges - 1} of {network.n_edges} edges)" in words
    assert "2 groups of nodes joined by trusted edges" in words


def test_one_bunch_of_discrepancies_makes_one_group():
    rng = np.random.default_rng(0)
    assert geometry.two_bunches(rng.normal(0, 1, 60)) is None
    two = np.concatenate([rng.normal(0, 0.3, 30), rng.normal(5, 0.3, 30)])
    assert 1.5 < geometry.two_bunches(two) < 3.5


def test_scores_by_hand():
    nodes = np.array(["a", "b", "a", "a", "b"])
    network, local = np.array([1.0, 2, 3, 5, 6]), np.array([0.0, 2, 1, 1, 7])
    scores = Scores.of(("a", "b", "c"), NodeData.from_rows(np.zeros((5, 1)), nodes), network, local)
    assert scores.n_held_out.tolist() == [3, 2, 0]
    assert scores.network[:2].tolist() == [3.0, 4.0]
    assert scores.gain[:2] == pytest.approx([7 / 3, -0.5])
    assert np.isnan(scores.gain[2])
    assert np.isnan(scores.pooled).all()
    assert scores.error[0] == pytest.approx(np.std([1, 2, 4], ddof=1) / np.sqrt(3))
    assert scores.verdict.tolist() == [1, 0, 0]


def test_packed_components_are_the_projected_moments(lifted):
    theta = lifted.theta
    plane = geometry.choose_planes(theta, lifted.features, 1)[0]
    packed = geometry.pack_components(theta, plane)[2, 1] / np.array(
        [32767, 1e4, 1e4, *[32767] * 3]
    )
    mean = (plane.axes @ theta.means[2, 1] - plane.low) / plane.span
    covariance = plane.axes @ theta.covariances[2, 1] @ plane.axes.T
    deviation = np.sqrt(np.diag(covariance))
    assert packed[0] == pytest.approx(theta.weights[2, 1], abs=1e-4)
    assert packed[1:3] == pytest.approx(mean, abs=1e-4)
    assert packed[3:5] == pytest.approx(deviation / plane.span, abs=1e-4)
    assert packed[5] == pytest.approx(covariance[0, 1] / deviation.prod(), abs=1e-4)


def _moments(theta):
    """Covariances within clusters and between their centres, by loops."""
    n, k = theta.weights.shape
    weight = theta.weights / n
    mean = sum(weight[i, c] * theta.means[i, c] for i in range(n) for c in range(k))
    within, between = np.zeros((2, theta.n_features, theta.n_features))
    for c in range(k):
        share = weight[:, c].sum()
        centre = sum(weight[i, c] * theta.means[i, c] for i in range(n)) / share
        between += share * np.outer(centre - mean, centre - mean)
        for i in range(n):
            off = theta.means[i, c] - centre
            within += weight[i, c] * (theta.covariances[i, c] + np.outer(off, off))
    return within, between


def test_the_plane_separates_clusters_best_whatever_the_units(lifted):
    within, between = _moments(lifted.theta)
    ratio = lambda axis: (axis @ between @ axis) / (axis @ within @ axis)
    plane = geometry.choose_planes(lifted.theta, lifted.features, 1)[0]
    assert np.abs(plane.axes[:, 2:]).max() < 0.1 * np.abs(plane.axes).max()  # noise is left out
    best = np.linalg.eigvals(np.linalg.solve(within, between)).real.max()
    assert ratio(plane.axes[0]) == pytest.approx(best, rel=1e-4)
    assert plane.axes[0] @ within @ plane.axes[1] == pytest.approx(0, abs=1e-4)
    units = np.array([1.0, 1e-4, 1e6, 10.0])
    theta = lifted.theta
    other = Mixture(theta.weights, theta.means * units, theta.covariances * np.outer(units, units))
    same = geometry.choose_planes(other, lifted.features, 1)[0]
    assert same.axes * units == pytest.approx(plane.axes, abs=1e-4 * np.abs(plane.axes).max())
    assert same.x_label == plane.x_label


def test_two_clusters_and_one_have_a_plane_too():
    means = np.zeros((1, 2, 3))
    means[0, :, 1] = [-3, 3]
    covariances = np.tile(np.diag([1.0, 1, 9]), (1, 2, 1, 1))
    theta = Mixture(np.full((1, 2), 0.5), means, covariances)
    axes = geometry.separating_directions(theta)
    assert np.abs(axes[0]).argmax() == 1
    assert axes[0] @ covariances[0, 0] @ axes[1] == pytest.approx(0, abs=1e-6)
    one = Mixture(np.ones((1, 1)), means[:, :1], covariances[:, :1])
    assert np.isfinite(geometry.separating_directions(one)).all()
    plane = geometry.choose_planes(theta, "abc", 1)[0]
    assert plane.x_label == "more b"


def test_numbers_are_written_as_people_write_them():
    written = [plain(value, decimals(spread)) for value, spread in NUMBERS]
    assert written == ["4,207", "47.5", "0.12", "1,300", "0", "−0.0046", "12,345,678"]
    assert [percent(p) for p in (0, 4.6e-5, 0.5, 0.9999, 1.0)] == [
        "0%",
        "under 1%",
        "50%",
        "over 99%",
        "100%",
    ]


NUMBERS = [
    (4207.2, 800),
    (47.46, 5.4),
    (0.1234, 0.2),
    (1300.4, 300),
    (-0.2, 15),
    (-0.0046, 0.002),
    (12345678, 1e6),
]


def test_the_clusters_of_the_page_are_those_of_the_atlas(found, content):
    atlas, shown = found.atlas, content["atlas"]
    assert shown["names"] == ["0", "1", "2"]
    assert shown["share"] == pytest.approx(np.asarray(atlas.profiles.weights).tolist(), rel=1e-6)
    assert shown["words"] == [atlas.words(c) for c in range(3)]
    for c in range(3):
        labels = [content["nodes"]["label"][i] for i in shown["nodes"][c]]
        assert sorted(labels) == sorted(atlas.nodes_of(c))
        assert shown["from"][c][0] <= shown["mean"][c][0] <= shown["to"][c][0]
        low, high = shown["interval"][c]
        assert low < shown["share"][c] < high
    page = render(content, static=True)
    assert "<h1>3 clusters in 360 rows of 9 nodes</h1>" in page
    for c in range(3):
        assert f'id="cluster-{c}"' in page
    for i in range(9):
        assert f'href="#node-{i}"' in page
        assert f'id="node-{i}"' in page


def test_names_set_by_the_user_are_on_the_page(found):
    atlas = dataclasses.replace(found.atlas, names=("<i>septic</i> shock", "b", "c"))
    page = render(build_content(dataclasses.replace(found, atlas=atlas)))
    assert "&lt;i&gt;septic&lt;/i&gt; shock" in page
    assert "<i>septic" not in page


def test_a_cluster_that_is_nowhere_is_not_shown(found):
    weights = found.theta.weights.copy()
    weights[:, 0] += weights[:, 2]
    weights[:, 2] = 0
    theta = Mixture(weights, found.theta.means, found.theta.covariances)
    content = build_content(reshaped(found, theta, found.data, found.features))
    assert content["atlas"]["names"] == ["0", "1"]
    assert "2 clusters in 360 rows" in render(content)


def test_many_nodes_stand_in_columns(found):
    page = render(build_content(_thousand_nodes()))
    picture = page[page.index('class="heat"') :].split("</svg>")[0]
    assert picture.count('<path class="cell"') < 5 * 13
    assert "a column for each node" in page


def test_a_page_of_an_earlier_version_still_opens(content):
    old = {name: value for name, value in content.items() if name != "atlas"}
    assert "Did listening help?" in render(old)
    assert 'id="clusters"' not in render(old)


def test_density_lies_where_the_rows_are_and_hides_small_nodes():
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(2, 0.1, (50, 2)), rng.normal(-2, 0.1, (9, 2))])
    data = NodeData.from_rows(rows, ["a"] * 50 + ["b"] * 9)
    plane = geometry.Plane("", "", "", np.eye(2), np.full(2, -4.0), np.full(2, 4.0))
    images = geometry.densities(data, plane, 16)
    centre = np.stack(np.unravel_index(images[0].argmax(), (16, 16)))
    assert np.abs(centre + 0.5 - 12).max() <= 0.5  # 2 lies three quarters of the way from -4 to 4
    assert images[0][:8, :8].sum() == 0
    assert images[1].sum() == 0  # nine rows: nothing is shown


@pytest.mark.parametrize("count", [12, 50, 400])
def test_a_lone_row_leaves_no_trace_in_the_density(count):
    """The picture with an outlier is the picture without it, up to the width of the blur."""
    rng = np.random.default_rng(1)
    cloud = rng.normal(-2, 0.5, (count, 2))
    plane = geometry.Plane("", "", "", np.eye(2), np.full(2, -4.0), np.full(2, 4.0))
    for outlier in ([3.1, 2.7], [3.9, -3.9]):
        data = NodeData.from_rows(np.vstack([cloud, outlier]), ["a"] * (count + 1))
        image = geometry.densities(data, plane, 40)[0]
        assert image.max() == 255
        assert image[:, 30:].sum() == 0
    pair = NodeData.from_rows(np.vstack([cloud, [[3.0, 3.0]] * 4]), ["a"] * (count + 4))
    assert geometry.densities(pair, plane, 40)[0][30:, 30:].sum() == 0
    five = NodeData.from_rows(np.vstack([cloud, [[3.0, 3.0]] * 5]), ["a"] * (count + 5))
    assert geometry.densities(five, plane, 40)[0][30:, 30:].sum() > 0


@pytest.mark.parametrize(
    ("recipients", "simulated", "words"),
    [
        (
            "neighbours",
            True,
            "to the neighbours, and to nobody else; no row left its node. In this",
        ),
        ("hub", True, "to a hub, which sees what every node sends and answers all; no row left"),
        ("neighbours", False, "These bytes were sent: every node was a process of its own"),
    ],
)
def test_the_page_says_who_received_what(found, recipients, simulated, words):
    traffic = dataclasses.replace(found.traffic, recipients=recipients, simulated=simulated)
    page = " ".join(render(build_content(dataclasses.replace(found, traffic=traffic))).split())
    assert words in page
    assert ("counted, not sent" in page) == simulated
    assert ("to nobody else" in page) == (recipients == "neighbours")


def test_where_nobody_listened_the_headline_says_so(found):
    silent = dataclasses.replace(found.traffic, sent=dict.fromkeys(found.traffic.sent, 0))
    content = build_content(dataclasses.replace(found, traffic=silent))
    assert headline(content) == "One mixture for each of 9 nodes. Nobody listened to anybody."
    assert "every node learned from its own rows alone" in story(content)


def test_levels_say_who_is_relied_on(found):
    n = found.data.n_nodes
    levels = _levels(found, ("own", "everyone"), [0.25, 0.75])
    page = render(build_content(dataclasses.replace(found, levels=levels)), static=True)
    assert "Whom nodes rely on" in page
    assert "own 25%, everyone 75%" in page
    picture = page[page.index('class="levels"') :].split("</svg>")[0]
    assert picture.count("<g data-node") == n
    assert picture.count('height="48"') == n  # three quarters of 64
    alone = dataclasses.replace(levels, weights=np.tile([1.0, 0.0], (n, 1)))
    content = build_content(dataclasses.replace(found, levels=alone))
    assert "Nobody listened to anybody" in headline(content)


def test_one_feature_has_a_page_too(found):
    theta = Mixture(
        found.theta.weights, found.theta.means[..., :1], found.theta.covariances[..., :1, :1]
    )
    data = dataclasses.replace(found.data, rows=found.data.rows[:, :1])
    one = reshaped(found, theta, data, ("age",))
    assert "components stand one above the other" in render(build_content(one))


def test_components_keep_their_colour_through_the_rounds(found):
    shuffled = found.theta.relabel(np.array([2, 0, 1]))
    first, last = matched_to_last([shuffled, found.theta])
    assert np.array_equal(first.means, found.theta.means)
    assert np.array_equal(last.weights, found.theta.weights)


def test_alike_neighbours_stand_near_each_other():
    network = from_edges(
        [(a, b) for g in (0, 5) for a in range(g, g + 5) for b in range(a + 1, g + 5)] + [(0, 5)]
    )
    place = positions(network, np.ones(network.n_edges))
    assert place.min() >= 0
    assert place.max() <= 1
    inside = np.linalg.norm(place[:5] - place[:5].mean(0), axis=1).mean()
    apart = np.linalg.norm(place[:5].mean(0) - place[5:].mean(0))
    assert apart > 2 * inside


def test_no_row_is_in_the_page_unless_asked_for(content, content_with_rows):
    assert all("rows" not in view for view in content["views"])
    assert all("rows" in view for view in content_with_rows["views"])
    assert "no rows" in render(content)


def test_the_static_page_is_light(content):
    static = render(content, static=True)
    assert len(static.encode()) < 500_000
    assert "<script" not in static
    assert "http" not in static.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_embedded_json_cannot_end_its_element():
    text = embedded({"label": "</script><script>alert(1)"})
    assert "</" not in text
    assert json.loads(text)["label"] == "</script><script>alert(1)"


@pytest.mark.parametrize(
    ("interval", "gained", "words"),
    [
        ((0.3, 0.2, 0.4), 9, "helped: all 9 nodes gained over own rows alone"),
        ((0.3, 0.1, 0.4), 7, "helped: 7 of 9 nodes gained over"),
        ((-0.3, -0.4, -0.1), 2, "Own rows alone would have been better: 7 of 9 nodes lost"),
        ((0.1, -0.1, 0.3), 6, "no clear difference: 6 of 9 nodes gained"),
    ],
)
def test_headlines_do_not_flatter(content, interval, gained, words):
    scores = content["scores"] | {"gain": interval, "gained": gained, "helped": gained}
    assert words in headline(content | {"scores": scores})


def test_the_headline_tells_gains_from_gains_beyond_noise(content):
    scores = content["scores"] | {"gain": (0.3, 0.2, 0.4), "gained": 9, "helped": 7}
    assert headline(content | {"scores": scores}).endswith(
        "all 9 nodes gained over own rows alone, 7 of them beyond noise."
    )


def test_gains_are_taken_over_the_better_alternative():
    """Own fits are hopeless at two of three nodes: pooled rows are what there is to beat."""
    labels, rows = ("a", "b", "c"), np.zeros((6, 1))
    held = NodeData.from_rows(rows, np.repeat(labels, 2))
    network, pooled = np.full(6, -3.0), np.full(6, -3.5)
    local = np.array([-900.0, -800, -2, -3, -400, -500])
    scores = Scores.of(labels, held, network, local, pooled)
    assert scores.baseline == "pooled"
    assert scores.gain.tolist() == [0.5, 0.5, 0.5]
    assert scores.error.tolist() == [0, 0, 0]
    assert Scores.of(labels, held, network, local).baseline == "local"
    one_worse = Scores.of(labels, held, network, np.repeat([-9.0, -2, -2], 2), pooled)
    assert one_worse.baseline == "local"
    assert one_worse.gain.tolist() == [6, -1, -1]


def test_the_headline_names_who_helped_against_what(found):
    n = found.data.n_nodes
    held = NodeData.from_rows(np.zeros((n, 1)), list(found.network.labels))
    known = found.network.labels, held
    scores = Scores.of(*known, np.full(n, -3.0), np.full(n, -500.0), np.full(n, -3.5))
    levels = _levels(found, ("own", "near", "personal"), [0.5, 0.1, 0.4])
    told = dataclasses.replace(found, scores=scores, levels=levels)
    assert headline(build_content(told)) == (
        "Everyone's mixture moved to own rows helped: all 9 nodes gained over all rows pooled, "
        "none of them beyond noise."
    )
    assert "in one mixture of all rows pooled, the better alternative" in story(build_content(told))
    assert "488" not in story(build_content(told))
    worse = Scores.of(*known, np.full(n, -4.0), np.full(n, -500.0), np.full(n, -3.5))
    assert headline(build_content(dataclasses.replace(told, scores=worse))) == (
        "All rows pooled would have been better: all 9 nodes lost by listening."
    )


def _levels(found, names, weights) -> Levels:
    n, level = found.data.n_nodes, len(names)
    stack = Mixture(*(np.stack([part] * level) for part in found.theta.parts))
    tiled, nothing = np.tile(weights, (n, 1)), np.zeros((n, level))
    return Levels(names, stack, tiled, nothing, np.zeros(n, int), np.zeros((n, 3)))


def test_without_held_out_rows_nothing_is_claimed(found):
    nobody = Scores.of(found.scores.labels, None)
    quiet = build_content(dataclasses.replace(found, scores=nobody))
    assert headline(quiet) == "One mixture for each of 9 nodes."
    assert "cannot say" in story(quiet)
    assert "cannot say" in render(quiet)


def test_losers_are_named(content):
    nodes = content["nodes"] | {"verdict": [-1, *content["nodes"]["verdict"][1:]]}
    page = render(content | {"nodes": nodes, "scores": content["scores"] | {"lost": 1}})
    assert "Lost beyond noise:\n    a0." in page


def test_a_thousand_nodes_open_in_a_second(opened):
    """Rendered, opened and drawn; the page stays small enough to mail."""
    text = render(build_content(_thousand_nodes()))
    assert len(text) < 5_000_000
    page = opened(text)
    ready = page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart")
    assert page.complaints == []
    assert ready < 10_000  # on a machine that does other things too


def _thousand_nodes():
    from fedmixtures.engine.solution import History, Solution, Status, Traffic
    from fedmixtures.graph.generate import sparse_random
    from fedmixtures.report.content import Findings

    rng = np.random.default_rng(0)
    n, k, d = 1000, 5, 2
    network = sparse_random(n, 8.0, seed=0)
    means = rng.normal(0, 5, (1, k, d)) + rng.normal(0, 0.3, (n, k, d))
    theta = Mixture(rng.dirichlet(np.full(k, 9.0), n), means, np.tile(np.eye(d), (n, k, 1, 1)))
    rows = rng.normal(0, 5, (20 * n, d))
    labels = np.repeat(np.arange(n), 20)
    values = rng.normal(-4, 0.3, 20 * n)
    data, zeros = NodeData.from_rows(rows, labels), np.zeros(11)
    history = History(zeros, zeros, zeros, zeros)
    solution = Solution(
        data.labels,
        theta,
        history,
        Status.COMPLETED,
        10,
        "",
        None,
        Traffic(0, {}),
        rows=data.counts,
    )
    return Findings(
        atlas=Atlas.of(solution, ("x", "y")),
        theta=theta,
        theta_scaled=theta,
        network=network,
        data=data,
        features=("x", "y"),
        history=history,
        method=None,
        scores=Scores.of(network.labels, NodeData.from_rows(rows, labels), values, values - 0.1),
        snapshots=dict.fromkeys(range(10), theta),
        settings={"method": "gtv-mmd", "status": "completed"},
    )


def test_long_names_lose_their_middle():
    from fedmixtures.report.svg import shortened

    assert shortened("ward 7") == "ward 7"
    name = shortened("University Hospital of the Northern Region, ward 103")
    assert len(name) == 24
    assert name.startswith("University H")
    assert name.endswith(", ward 103")


def test_names_that_would_look_alike_lose_what_they_share():
    from fedmixtures.report.svg import told_apart

    names = [f"laboratory value number {j} measured at admission" for j in (3, 12)]
    assert told_apart([*names, "age"]) == ["…number 3…", "…number 12…", "age"]


def test_features_that_tell_components_apart_come_first(found):
    """Of twenty features, only number 13 differs between components."""
    n, k = found.theta.weights.shape
    means, covariances = np.zeros((n, k, 20)), np.tile(np.eye(20), (n, k, 1, 1))
    means[..., 13] = 9 * np.arange(k)
    covariances[..., 4, 4] = 1e6  # spread is not separation
    theta = Mixture(found.theta.weights, means, covariances)
    rows = np.random.default_rng(0).normal(size=(len(found.data.rows), 20))
    names = tuple(f"laboratory value number {j}" for j in range(20))
    wide = reshaped(found, theta, dataclasses.replace(found.data, rows=rows), names)
    content = build_content(wide)
    assert content["shape"]["telling"][0] == 13
    assert any("number 13" in view["name"] for view in content["views"][1:])
    page = render(content)
    assert "The other 8 features" in page
    assert page.index("number 13 by cluster") < page.index("number 0 by cluster")


def test_missing_cells_are_shown_where_there_are_any(found, content):
    rows = found.data.rows.copy()
    rows[found.data.offsets[4] : found.data.offsets[5], 1] = np.nan
    rows[found.data.offsets[0], 1] = np.nan
    incomplete = build_content(
        dataclasses.replace(found, data=dataclasses.replace(found.data, rows=rows))
    )
    own = incomplete["missing"]
    assert (own["cells"], own["features"]) == (41, [1])
    assert [share[0] for share in own["of_node"]] == [1 / 40, 0, 0, 0, 1, 0, 0, 0, 0]
    page = render(incomplete)
    assert "41 of 720 cells (6%) are missing" in page
    assert "b1: 100%, &lt;b&gt;dose" in page
    assert content["missing"] is None
    assert "issing cells" not in render(content)


def test_rounding_makes_no_groups(found):
    """Nodes that share one mixture differ by nothing but rounding."""
    rng = np.random.default_rng(0)
    tiny = 10.0 ** rng.choice([-17.0, -14.5], found.network.n_edges)
    assert geometry.groups_by_gap(tiny, found.network)[1] is None
