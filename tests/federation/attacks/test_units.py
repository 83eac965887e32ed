"""N5: a member that adds anything to the sums that units are made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from federated import SITES, Sites, a_job, site_rows
from fedmixtures.federation.node.release import ApprovedMessage
from fedmixtures.federation.node.summing import Promise
from fedmixtures.federation.node.whereabouts import FARTHEST, Place, bounds
from fedmixtures.federation.wire.message import PlaceMessage, encode_message
from fedmixtures.fits.units import UnitBounds
from helpers import QUICK_TRUST

LIAR = "delft"
UNIT_SUMS = {2: "first", 3: "first", 4: "squares", 5: "squares"}
"""Exchanges of the two sums: what is promised, and what is shown."""


def inflated(kind, values):
    return values * 1e6 if kind == "squares" else values


def far(kind, values):
    return values + 1e6 if kind == "first" else values


def nothing(kind, values):
    return -3.0 * values if kind == "squares" else values


def few_cells(kind, values):
    return (
        np.where(np.arange(len(values)) < 2, -4.0 * values, values) if kind == "first" else values
    )


LIES = {"inflated": inflated, "far": far, "nothing": nothing, "few cells": few_cells}
TOLD = {
    "as it is": lambda place: place,
    "wide": lambda place: replace(place, spread=place.spread * 1e6),
    "narrow": lambda place: replace(place, spread=place.spread * 1e-6),
    "far": lambda place: replace(place, centre=place.centre + 1e3),
}
ROWS = site_rows((60, 60, 60, 60))
JOB = a_job(QUICK_TRUST)


def densities(folder, lie=lambda kind, values: values, told=lambda place: place):
    """Held-out log-density at the honest sites after a job in which one lies about units."""
    sites = Sites(folder, ROWS)
    point = sites.nodes[LIAR].point
    passed = point.passed

    def lying(message, session):
        kind = UNIT_SUMS.get(session.reached)
        if isinstance(message, Place):
            message = told(message)
        elif kind is not None and isinstance(message, Promise):
            share = replace(message.share, values=lie(kind, message.share.values))
            message = replace(message, share=share)
        elif kind is not None:
            message = replace(message, values=lie(kind, message.values))
        return passed(message, session)

    point.passed = lying
    sites.run(JOB)
    noise, found = np.random.default_rng(9), []
    for name in SITES:
        test = ROWS[name] + 0.3 * noise.standard_normal(ROWS[name].shape)
        if name != LIAR:
            outcome = sites.nodes[name].sessions[JOB.key].outcome
            assert outcome is not None
            assert outcome.levels is not None
            found.append(float(outcome.levels.density.at(0).log_density(test).mean()))
    return np.array(found)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    return densities(tmp_path_factory.mktemp("honest"))


@pytest.mark.parametrize("lie", LIES)
def test_n5_who_lies_in_units_spoils_nothing(tmp_path, honest, lie):
    """An inflated sum of squares cost .86 to 6.6 nats, and a far centre ended the job for all."""
    assert (honest - densities(tmp_path, LIES[lie])).max() < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("told", TOLD)
@pytest.mark.parametrize("lie", LIES)
def test_n5_who_lies_in_what_it_tells_too_spoils_nothing(tmp_path, honest, lie, told):
    assert (honest - densities(tmp_path, LIES[lie], TOLD[told])).max() < 0.01


def test_bounds_hold_the_units_of_all_and_nobody_moves_them_far():
    rng = np.random.default_rng(0)
    for n in (3, 4, 10):
        centres, scales = rng.standard_normal((n, 1)), np.exp(0.3 * rng.standard_normal((n, 1)))
        centre, scale = centres.mean(), np.sqrt((scales**2).mean() + centres.var())
        others = centres[1:, 0], scales[1:, 0]
        widest = np.hypot(others[1].max(), np.ptp(others[0]))
        for lie in ((centres[0], scales[0]), (1e9, 1.0), (-1e9, 1e9), (0.0, 1e-9)):
            centres[0], scales[0] = lie
            found = UnitBounds.of(centres, scales)
            assert found.widest <= 1.25 * widest + 1e-12
            assert found.narrowest >= others[1].min() / 1.25 / np.sqrt(n)
            assert found.lowest >= others[0].min() - 5 * widest
            assert found.highest <= others[0].max() + 5 * widest
            assert found.lowest < centre < found.highest
            assert found.narrowest < scale


def test_two_sites_bound_nothing():
    found = UnitBounds.of(np.array([[0.0], [1.0], [np.nan]]), np.array([[1.0], [1.0], [np.nan]]))
    assert (found.lowest, found.highest) == (-np.inf, np.inf)
    assert (found.narrowest, found.widest) == (0.0, np.inf)


def test_places_are_coarse_and_tell_nothing_of_few_cells():
    place = Place(np.array([40.0, 40.0, 10.0, 40.0]), np.array([3.0, -7.0, 1.0, 2.0]),
                  np.array([0.5, 20.0, 1.0, 0.0]))  # fmt: skip
    told = [place.coarse(11, bytes([i]) * 32) for i in range(200)]
    assert (np.array(told).reshape(200, 2, 4)[:, :, 2:] == FARTHEST).all()  # few, all alike
    spreads = np.exp2(np.array(told).reshape(200, 2, 4)[:, 0, :2] / 4.0)
    assert len(np.unique(spreads[:, 0])) <= 2
    assert (np.abs(np.log2(spreads / place.spread[:2])) < 0.25 + 1e-9).all()
    # Secret offsets: on average they say what is.
    at = np.array(told).reshape(200, 2, 4)[:, 1, :2] * spreads / 2
    np.testing.assert_allclose(at.mean(0), place.centre[:2], atol=0.1 * place.spread[:2].max())
    found = bounds([told[0], told[1], told[2]])
    assert (found.lowest[:2] < place.centre[:2]).all()
    assert np.isinf(found.widest[2:]).all()


def test_who_tells_others_something_else_is_found_out(tmp_path):
    """Sites that have heard different things of one would take different units: no sum begins."""
    sites = Sites(tmp_path, ROWS)
    exchange = sites.rounds(JOB)
    exchange.begin()
    point, session = sites.nodes[LIAR].point, sites.nodes[LIAR].sessions[JOB.key]
    said = point._all

    def differently(session):
        found = said(session)
        if session.reached == 1:
            other = PlaceMessage(np.zeros(4, np.int64))
            found["aachen"] = ApprovedMessage(other, encode_message(other), 0)
        return found

    point._all = differently
    for t in range(3):
        exchange.round(t)
    assert session.reached == 3
    reply = exchange.sites["aachen"].take(exchange.parcels_for("aachen"))
    assert {entry["source"] for entry in reply} == {"bergen", "cork", LIAR}
    assert all("has seen other totals" in entry["reason"] for entry in reply)
