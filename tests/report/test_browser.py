"""The report page in a real browser."""

import re

import pytest

from fedmixtures.report.page import render


@pytest.fixture
def page(opened, content):
    return opened(render(content))


def background(page) -> tuple[int, ...]:
    text = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(int(n) for n in re.findall(r"\d+", text)[:3])


def ellipses(page) -> list[str]:
    return page.eval_on_selector_all(
        "#portrait ellipse", "es => es.map(e => e.getAttribute('transform') + e.getAttribute('rx'))"
    )


def test_opens_without_complaint_and_without_asking_anyone(page):
    assert page.evaluate("document.documentElement.dataset.ready") == "yes"
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith(("file:", "data:"))] == []
    assert len([url for url in page.requests if url.startswith("file:")]) == 1


def test_the_first_screen_says_what_the_clusters_are(page, content):
    box = page.locator("h1").bounding_box()
    assert box["y"] + box["height"] < 300
    assert page.locator("h1").inner_text() == "3 clusters in 360 rows of 9 nodes"
    cards = page.locator(".card")
    assert cards.count() == 3
    assert cards.last.bounding_box()["y"] < 700
    assert content["atlas"]["words"][1] in cards.nth(1).inner_text()
    assert "gained" in page.locator("header").inner_text()


def test_the_way_from_a_cluster_to_a_node_and_back(page, content):
    page.locator("#cluster-1 h3 a").click()
    assert page.locator("#clusters.alone").count() == 1
    page.locator("#cluster-1.picked").wait_for()
    assert page.locator("input[value=cluster]").is_checked()
    assert page.locator("#pick-cluster").input_value() == "1"
    first = content["atlas"]["nodes"][1][0]
    page.locator("#cluster-1 .where a").first.click()
    name = content["nodes"]["label"][first]
    assert page.locator("#detail-name").inner_text() == f"Node {name}"
    assert page.locator("#detail").is_visible()
    page.locator("#bars a").first.click()
    assert page.evaluate("location.hash") == "#cluster-0"
    page.locator("#cluster-0.picked").wait_for()
    page.locator("#cluster-0 h3 a").click()  # once more: all again
    assert page.locator("#clusters.alone").count() == 0
    page.locator("svg.heat:visible a[href='#node-4'] text").click()
    assert page.locator("#detail-name").inner_text() == f"Node {content['nodes']['label'][4]}"
    assert page.complaints == []


def test_a_link_to_a_cluster_opens_the_page_there(opened, content):
    page = opened(render(content))
    page.goto(page.url + "#cluster-2")
    page.locator("#cluster-2.picked").wait_for()


def test_the_map_shows_the_clusters_where_they_are(page, content, found):
    """Middles of the ellipses are the centres of the profiles, on whatever screen."""
    import numpy as np

    low, high = (np.array(content["views"][0][key]) for key in ("low", "high"))
    frame = page.locator("svg.map:visible > rect.paper").bounding_box()
    for c in range(3):
        box = page.locator(f"svg.map:visible a[href='#cluster-{c}'] path").bounding_box()
        middle = np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
        shown = (middle - [frame["x"], frame["y"]]) / [frame["width"], frame["height"]]
        place = (np.asarray(found.atlas.profiles.means)[c] - low) / (high - low)
        assert shown == pytest.approx([place[0], 1 - place[1]], abs=0.02)


def words_overlap(page, within: str) -> list:
    """Pairs of texts in a picture that stand on one another."""
    return page.evaluate(
        """within => [...document.querySelectorAll(within)].flatMap(svg => {
        const all = [...svg.querySelectorAll("text")]
            .map(t => [t.textContent, t.getBoundingClientRect()])
            .filter(([text, r]) => text.trim() && r.width);
        return all.flatMap(([a, p], i) => all.slice(i + 1).filter(([, q]) =>
            Math.min(p.right, q.right) - Math.max(p.left, q.left) > 1 &&
            Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 3).map(([b]) => [a, b]));
        })""",
        within,
    )


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_of_many_clusters_and_long_names_is_cut_or_overlaps(opened, wide, width):
    page = opened(render(wide), viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for picture in ("svg.heat", "svg.profile", "svg.map"):
        assert words_overlap(page, picture) == []
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut = page.evaluate(
        "[...document.querySelectorAll('.card, .card *')].filter(e => "
        "e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline').length"
    )
    assert cut == 0
    assert page.complaints == []


def test_the_slider_moves_the_ellipses(page):
    before = ellipses(page)
    assert len(before) == 3
    page.locator("#round").focus()
    page.keyboard.press("Home")
    assert page.locator("#round-number").inner_text() == "0"
    assert page.locator("#round").get_attribute("aria-valuetext") == "round 0"
    at_start = ellipses(page)
    assert all(a != b for a, b in zip(before, at_start, strict=True))
    page.keyboard.press("End")
    assert ellipses(page) == before


def test_ellipses_show_the_components(page, content, found):
    """Centres and areas on the page are those of the fitted mixture."""
    import numpy as np

    page.select_option("#pick", "4")
    low, high = (np.array(content["views"][0][key]) for key in ("low", "high"))
    shown = page.eval_on_selector_all(
        "#portrait ellipse",
        "es => es.map(e => [...e.getAttribute('transform').match(/[-.\\d]+/g).map(Number),"
        " +e.getAttribute('rx'), +e.getAttribute('ry')])",
    )
    for (x, y, _, rx, ry), mean, covariance in zip(
        shown, found.theta.means[4], found.theta.covariances[4], strict=True
    ):
        place = (mean - low) / (high - low)
        assert [x / 400, 1 - y / 400] == pytest.approx(place.tolist(), abs=2e-4)
        area = 4 * np.sqrt(np.linalg.det(covariance)) / np.prod(high - low)
        assert rx * ry / 400**2 == pytest.approx(area, rel=5e-3)


def test_a_click_on_a_node_changes_the_detail_panel(page, content):
    name = page.locator("#detail-name").inner_text()
    other = next(i for i, lab in enumerate(content["nodes"]["label"]) if f"Node {lab}" != name)
    drawn = ellipses(page)
    page.locator(f".network .node[data-i='{other}']").click()
    assert page.locator("#detail-name").inner_text() == f"Node {content['nodes']['label'][other]}"
    assert ellipses(page) != drawn
    degree = content["nodes"]["degree"][other]
    assert page.locator("#neighbours button").count() == degree
    nearest = page.locator("#neighbours button b").first.inner_text()
    page.locator("#neighbours button").first.click()
    assert page.locator("#detail-name").inner_text() == f"Node {nearest}"
    assert page.complaints == []


def test_arrow_keys_walk_through_the_nodes(page, content):
    page.locator(".network .node.picked").focus()
    first = page.locator("#detail-name").inner_text()
    page.keyboard.press("ArrowRight")
    second = page.locator("#detail-name").inner_text()
    assert first != second
    assert page.evaluate("document.activeElement.classList.contains('picked')")
    assert page.locator(".network .node[tabindex='0']").count() == 1


def test_nodes_can_be_coloured_by_group(page):
    fill = "getComputedStyle(document.querySelector('.network .node circle, .node rect')).fill"
    by_gain = page.evaluate(fill)
    page.check("input[value=group]")
    assert page.evaluate(fill) != by_gain
    page.check("input[value=gain]")
    assert page.evaluate(fill) == by_gain


def test_the_table_sorts(page, content):
    cells = "#node-table tbody tr th"
    page.click("#node-table button[data-key=label]")
    down = page.locator(cells).all_inner_texts()
    assert down == sorted(content["nodes"]["label"], reverse=True)
    page.click("#node-table button[data-key=label]")
    assert page.locator(cells).all_inner_texts() == sorted(content["nodes"]["label"])


def test_dark_mode(opened, content):
    light = background(opened(render(content)))
    page = opened(render(content), color_scheme="dark")
    dark = background(page)
    assert sum(light) > 600
    assert sum(dark) < 150
    ink = page.evaluate("getComputedStyle(document.querySelector('h1')).color")
    assert sum(int(n) for n in re.findall(r"\d+", ink)[:3]) > 500
    assert page.complaints == []


def test_a_phone_needs_no_sideways_scrolling(opened, content):
    page = opened(render(content), viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator("svg.gains").last.is_visible()


def test_names_from_the_data_are_text_not_markup(page):
    assert page.locator("main b:text('dose')").count() == 0
    assert "<b>dose</b>" in page.locator("#y-label").inner_text()


def test_other_planes_can_be_chosen(opened, lifted):
    from fedmixtures.report.content import build_content

    page = opened(render(build_content(lifted)))
    assert page.locator("#plane option").count() == 7
    drawn = ellipses(page)
    page.select_option("#plane", "3")
    assert ellipses(page) != drawn
    assert page.complaints == []


def test_rows_are_shown_only_on_request(opened, content, content_with_rows):
    assert opened(render(content)).locator("#portrait .dots").count() == 0
    page = opened(render(content_with_rows))
    assert page.locator("#portrait .dots").get_attribute("d").count("M") == 40
    assert "contains the place of every row" in page.locator("footer").inner_text()


def test_the_static_page_needs_no_script(opened, content):
    page = opened(render(content, static=True), java_script_enabled=False)
    assert page.locator("script").count() == 0
    assert page.locator("svg.portrait").count() == 9
    assert page.locator("#node-table tbody tr").count() == 9
    assert page.complaints == []
