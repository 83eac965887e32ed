"""A member that gives signs of life and sends nothing: the others go on without it, in time."""

from __future__ import annotations

import time

import pytest

from federated import SITES, Sites, a_job, site_rows
from fedmixtures import TrustThenPool
from fedmixtures.federation.segment import Segment
from fedmixtures.federation.wire.frames import Frame, request

A, B, C, LIAR = SITES


def a_segment(tmp_path, **times) -> Segment:
    signed = Sites(tmp_path, site_rows((20,) * 4)).signed(a_job(TrustThenPool()))

    def tell(name, frame, here):
        if name == "hello":
            for site in here:
                segment.replied(site, request("hello", site=site, rounds=[0], gone=[]).encode())

    segment = Segment(signed, tell, **({"stall_after": 0.3} | times))
    return segment


def signs(segment: Segment, stands: dict[str, tuple[int, list[str]]]) -> None:
    for site, (t, waiting) in stands.items():
        segment.told(Frame({"site": site, "round": t, "waiting_for": waiting}).encode())


@pytest.mark.parametrize("says", [(7, []), (7, [A]), (9, [A, B, C]), (0, [])])
def test_whom_two_others_wait_for_is_left_out(tmp_path, says):
    segment = a_segment(tmp_path)
    signs(segment, {name: (7, [LIAR]) for name in (A, B, C)} | {LIAR: says})
    outcome = segment.run(SITES, lambda: False)
    assert (outcome["outcome"], outcome["sites"]) == ("lost", [LIAR])
    assert outcome["silent"] == [LIAR]


@pytest.mark.parametrize("says", [(7, [A]), (8, [A]), (0, [A])])
def test_one_word_against_another_leaves_no_honest_site_out(tmp_path, says):
    """The liar has sent to all but one, who cannot go on: the others wait for that one."""
    segment = a_segment(tmp_path)
    signs(segment, {A: (7, [LIAR]), B: (8, [A]), C: (8, [A]), LIAR: says})
    outcome = segment.run(SITES, lambda: False)
    assert outcome["outcome"] == "refused"
    assert set(outcome["reasons"]) == {A, LIAR}


def test_one_alone_does_not_make_it_look_like_progress(tmp_path):
    segment = a_segment(tmp_path)
    signs(segment, {name: (7, [LIAR]) for name in (A, B, C)})
    began, rounds = time.monotonic(), iter(range(7, 10**6))

    def stopped():
        signs(segment, {LIAR: (next(rounds), [])})
        return time.monotonic() - began > 5

    assert segment.run(SITES, stopped)["silent"] == [LIAR]
