"""How often the page is updated while models wait for it."""

from __future__ import annotations

import pytest

from cactus.ui import cadence
from cactus.ui.cadence import LONGEST, PLOT_SECONDS, SHARE, TEXT_SECONDS, Cadence


class Clock:
    """Stands still until told."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(cadence, "time", made)
    return made


def update(paces: Cadence, clock: Clock, seconds: float) -> bool:
    with paces.update() as with_plots:
        clock.now += seconds
    return with_plots


def test_cheap_updates_come_as_often_as_can_be_read(clock):
    paces = Cadence()
    assert paces.due and update(paces, clock, 0.0)
    assert not paces.due
    clock.now += TEXT_SECONDS + 1e-6
    assert paces.due and not update(paces, clock, 0.0)  # the plots come less often
    clock.now += PLOT_SECONDS
    assert update(paces, clock, 0.0)


def test_slow_updates_take_no_more_than_their_share_of_the_time(clock):
    paces = Cadence()
    update(paces, clock, 0.005)
    clock.now += 0.005 / SHARE - 0.001
    assert not paces.due
    clock.now += 0.002
    assert paces.due


def test_even_the_slowest_updates_come(clock):
    paces = Cadence()
    update(paces, clock, 3.0)
    clock.now += LONGEST + 1e-6
    assert paces.due


def test_an_update_that_is_broken_off_counts(clock):
    paces = Cadence()
    with pytest.raises(GeneratorExit), paces.update():
        raise GeneratorExit
    assert not paces.due
