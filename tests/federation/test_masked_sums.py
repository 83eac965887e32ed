"""Masked sums: to the bit the plain ones, and nothing to be seen on the way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedmixtures.federation.masked_sums import (
    OpenedSets,
    SumName,
    SumRefused,
    from_fixed,
    masked,
    to_fixed,
    total,
)
from fedmixtures.federation.wire.sealing import SiteKey

NAMES = ("aachen", "bergen", "cork", "delft")


def secrets_of(names=NAMES):
    """What every pair of sites shares, from their sealing keys."""
    keys = {name: SiteKey.generate() for name in names}
    pair = lambda a, b: keys[a].shared(keys[b].public, b"fedmixtures masks v1")
    return {a: {b: pair(a, b) for b in names if b != a} for a in names}


def test_masked_equals_plain_to_the_bit():
    rng = np.random.default_rng(0)
    secrets = secrets_of()
    for number, shape in enumerate([(3,), (3, 2), (5, 3, 3), ()]):
        values = {name: rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 6) for name in NAMES}
        name = SumName("job", "run", number, 0, NAMES)
        shares = [masked(values[site], site, secrets[site], name) for site in NAMES]
        plain = from_fixed(sum(to_fixed(np.ravel(values[site])) for site in NAMES))
        np.testing.assert_array_equal(total(shares), plain)
        np.testing.assert_allclose(plain, np.ravel(sum(values.values())), atol=2**-22)


def test_any_order_gives_the_same_bits():
    rng, secrets = np.random.default_rng(1), secrets_of()
    name = SumName("job", "run", 0, 0, NAMES)
    shares = [masked(rng.standard_normal(7), site, secrets[site], name) for site in NAMES]
    found = [total(list(order)) for order in itertools.permutations(shares)]
    assert all(np.array_equal(found[0], other) for other in found)


def test_a_share_and_sums_short_of_one_look_like_noise():
    secrets, zeros = secrets_of(), np.zeros(4000)
    name = SumName("job", "run", 0, 0, NAMES)
    shares = {site: masked(zeros, site, secrets[site], name) for site in NAMES}
    for some in (NAMES[:1], NAMES[:2], NAMES[1:]):
        part = np.zeros(4000, np.uint64)
        for site in some:
            part = part + shares[site]
        top = (part >> np.uint64(60)).astype(int)
        counts = np.bincount(top, minlength=16)
        # Chi-square with 15 degrees of freedom: above 44 once in ten thousand times.
        assert ((counts - 250) ** 2 / 250).sum() < 44
        assert len(np.unique(part)) == 4000


@pytest.mark.parametrize(
    "change", [{"number": 1}, {"attempt": 1}, {"run": "next"}, {"job": "other"}]
)
def test_every_sum_has_masks_of_its_own(change):
    secrets = secrets_of()
    name = {"job": "job", "run": "run", "number": 0, "attempt": 0, "members": NAMES}
    share = lambda entries: masked(np.zeros(3), "cork", secrets["cork"], SumName(**entries))
    assert not (share(name) == share(name | change)).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
def test_what_does_not_fit_is_not_added(bad):
    with pytest.raises(SumRefused, match="not finite or too large"):
        to_fixed(np.array([0.0, bad]))


def test_two_sites_open_no_sum():
    pair = NAMES[:2]
    secrets = secrets_of(pair)
    with pytest.raises(SumRefused, match="fewer than 3"):
        masked(np.zeros(2), "aachen", secrets["aachen"], SumName("job", "run", 0, 0, pair))


def test_members_must_be_those_whose_secrets_are_here():
    secrets = secrets_of()
    with pytest.raises(SumRefused, match="members"):
        masked(np.zeros(2), "aachen", secrets["aachen"], SumName("job", "run", 0, 0, NAMES[:3]))


def test_sets_differ_by_nobody_or_by_three():
    opened = OpenedSets()
    everyone = frozenset("abcdefgh")
    opened.admit(everyone)
    opened.admit(everyone)
    opened.admit(frozenset("abcde"))  # the others are three
    with pytest.raises(SumRefused, match="about 1 of them"):
        opened.admit(frozenset("abcd"))
    with pytest.raises(SumRefused, match="about 2 of them"):
        opened.admit(frozenset("abcdef"))
    opened.admit(frozenset("fgh"))
