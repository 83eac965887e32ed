"""The page that a site's administrator reads before a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmixtures.federation.explain import explain
from fedmixtures.federation.job import read_job
from fedmixtures.federation.node.site import SiteConfig

JOB = """
name = "bmi-groups"
features = ["age", "bmi"]
sites = ["hospital-1", "hospital-2", "hospital-3"]
edges = [["hospital-1", "hospital-2"], ["hospital-2", "hospital-3", 0.5]]
components = 3
rounds = 40
seed = 0
shift = [50.0, 25.0]
scale = [20.0, 5.0]
method = "gtv-mmd"
collector = "researcher@uni.example"
"""
SITE = """
name = "hospital-2"
[data]
path = "patients.csv"
columns = ["age", "bmi"]
person = "patient"
[limits]
max_rounds = 200
"""


@pytest.fixture
def page(tmp_path):
    (tmp_path / "job.toml").write_text(JOB)

    def written(site: str, job: str = JOB) -> str:
        (tmp_path / "job.toml").write_text(job)
        (tmp_path / "site.toml").write_text(site)
        given = read_job(tmp_path / "job.toml")
        return explain(given, SiteConfig.load(tmp_path / "site.toml")).replace(given.key, "KEY")

    return written


@pytest.mark.parametrize("method", ["gtv", "trust"])
def test_the_page_as_it_is_printed(page, method):
    """The default method is trust."""
    job = JOB if method == "gtv" else JOB.replace('method = "gtv-mmd"', "")
    assert page(SITE, job) == (Path(__file__).parent / f"explain-{method}.txt").read_text()


def test_the_covariance_type_says_how_many_numbers_leave(page):
    text = " ".join(page(SITE, JOB + 'covariance = "diag"\n').split())
    assert "3 covariances (diag) of 2 features, 15 numbers." in text


def test_a_refused_job_says_why(page):
    text = " ".join(page(SITE.replace("200", "20")).split())
    assert "Verdict REFUSED. site 'hospital-2' refuses the job: 40 rounds are asked for" in text


def test_privacy_is_explained_by_its_noise(page):
    text = " ".join(page(SITE, JOB + "privacy = { clip = 1.0, noise = 30.0 }\n").split())
    assert "each person's gradient is shortened to 1" in text
    assert "a public start" in text
    assert "Epsilon in all jobs together: at most 3." in text


def test_private_sums_are_explained(page):
    job = JOB.replace('method = "gtv-mmd"', "").replace("40", "10")
    site = SITE + "[privacy]\nepsilon = 3.0\n"
    text = " ".join(page(site, job + "privacy = { clip = 3.0, noise = 5.0 }\n").split())
    assert "allowed by this site's file" in text
    assert "10 noisy sums" in text
    assert "its part of sums of clipped statistics over all sites, with noise; no model." in text
    assert "How often parts of 10 sums. To whom all members of the sum" in text
    assert "even if 1 of the 3 sites give theirs away" in text
    assert "Its sums alone cost epsilon 2.59 at delta 1e-05." in text
    assert "REFUSED" in page(site, job)  # with [privacy] no other job is run


def test_members_are_told_that_they_must_trust_each_other():
    """Until a dishonest member gets nothing, the first lines say that it does."""
    from fedmixtures.cli.federate import WARNING, federate

    assert str(federate.help).startswith(WARNING)
    pages = Path(__file__).parents[2] / "docs"
    for name in ("privacy.md", "federation.md"):
        first = (pages / name).read_text().splitlines()[:3]
        assert any(
            "Members should trust each other to follow the protocol" in line for line in first
        )
