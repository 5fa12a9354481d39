"""The display: one line on a terminal, whole lines elsewhere, nothing said that is not known."""

import fcntl
import io
import os
import pty
import re
import struct
import termios

import pytest

from hessalign.report import progress as progress_module
from hessalign.report.progress import Pace, Progress, _describe_pace, duration, whole_lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def now(monkeypatch):
    """A clock that stands until it is moved."""
    clock = [0.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: clock[0])
    return clock


def test_a_terminal_gets_one_line_that_is_rewritten():
    stream = Terminal()
    progress = Progress("hgp", "steps", stream)
    for done in (1, 2, 3):
        progress(done, 3, "OOD 20.0 %", seconds=4.0 * done)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    first, second, third = text.split("\r")[1:]
    assert first == "hgp 1/3 steps  OOD 20.0 %"
    assert second == "hgp 2/3 steps  15 steps/min  4 s left  OOD 20.0 %"
    assert third.rstrip() == "hgp 3/3 steps  15 steps/min  OOD 20.0 %"
    assert len(third) == len(second) + 1  # blanks over what it was before


def test_a_log_gets_whole_lines_now_and_then_and_the_last(now):
    stream = io.StringIO()
    progress = Progress("hgp", "steps", stream)
    for done, clock in ((1, 1.0), (2, 11.0), (3, 12.0), (4, 13.0)):
        now[0] = clock
        progress(done, 4)
    lines = stream.getvalue().splitlines()
    assert "\r" not in stream.getvalue()
    assert [line.split()[1] for line in lines] == ["2/4", "4/4"]


def test_counting_says_how_long_it_takes_once_it_knows(now):
    stream = Terminal()
    progress = Progress("extracting", "images", stream, bar=True)
    progress(64, 6400)  # continued
    now[0] = 20.0  # the processes start
    progress(128, 6400)
    assert "left" not in stream.getvalue()
    for done in range(192, 6400, 64):
        now[0] += 2.0
        progress(done, 6400)
        *_, line = stream.getvalue().split("\r")
        for found in re.findall(r"(\d+) s left", line):
            true = (6400 - done) / 32
            assert true / 2 <= float(found) <= 2 * true
    assert "31 images/s" in stream.getvalue()
    assert "extracting [#####---------------]  1600/6400 images  " in stream.getvalue()


def test_the_first_report_does_not_count_as_speed():
    """It may take as long as a hundred steps."""
    stream = Terminal()
    progress = Progress("erm", "steps", stream)
    progress(1, 1000, seconds=100.0)
    assert "left" not in stream.getvalue()
    for step in range(300, 1000, 300):
        progress(step + 1, 1000, seconds=100.0 + step)
    *_, last = stream.getvalue().split("\r")
    assert re.search(r"\d+ steps/min  \d+ s left", last)


def test_the_time_left_may_be_known_better(now):
    stream = io.StringIO()
    Progress("", "runs", stream)(1, 4, "2 running", left=300.0, now=True)
    assert stream.getvalue() == "1/4 runs  5 min left  2 running\n"


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_every_stage_is_shown_with_the_time_so_far(kind, now):
    stream = kind()
    progress = Progress("diagnosing", stream=stream, stages=True)
    for done, stage in enumerate(("a long first stage", "second", "done")):
        progress(done, 2, stage)
        now[0] += 3.0
    written = stream.getvalue()
    if kind is Terminal:
        assert written.count("\n") == 1
        assert written.split("\r")[2].startswith("diagnosing 1/2  second  3 s ")
    else:
        assert written.splitlines()[1] == "diagnosing 1/2  second  3 s"
    assert written.endswith("\n")


def test_what_is_said_stays_above_the_line():
    stream = Terminal()
    with Progress("", "runs", stream) as progress:
        progress(1, 4)
        progress.say("failed: one")
        progress(2, 4)
    above, below, end = stream.getvalue().split("\n")
    assert above.endswith("\rfailed: one")
    assert below.split("\r")[1:] == ["1/4 runs", "2/4 runs"]
    assert end == ""
    log = io.StringIO()
    Progress("head", stream=log).say("rates of the machine")
    assert log.getvalue() == "head: rates of the machine\n"


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_an_error_leaves_a_whole_line_with_the_last_that_was_known(kind):
    stream = kind()

    def fail():
        with Progress("checking", "images", stream) as progress:
            progress(1, 9)
            progress(7, 9)
            raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011 - it has no text
        fail()
    assert stream.getvalue().endswith("checking 7/9 images\n")
    assert stream.getvalue().count("\n") == 1


def test_nothing_counted_is_shown_with_the_time(now):
    stream = io.StringIO()
    progress = Progress("head", stream=stream)
    for clock in (1.0, 12.0, 13.0):
        now[0] = clock
        progress.note("warming up")
    assert stream.getvalue() == "head: warming up  12 s\n"


def test_a_line_is_cut_to_the_width_of_the_terminal():
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
    with os.fdopen(secondary, "w") as stream:
        progress = Progress("checking", "images", stream)
        progress(1, 2, "a" * 100)
        shown = ""
        while "…" not in shown:  # a terminal hands over what it has by now, not all
            shown += os.read(primary, 4096).decode()
    os.close(primary)
    assert shown == "\rchecking 1/2 images  " + "a" * 7 + "…"


@pytest.mark.parametrize("kind", [Terminal, io.StringIO])
def test_what_comes_after_a_display_has_a_line_of_its_own(kind):
    stream, before = kind(), kind()
    Progress("before", "images", before)(1, 9)

    def fail():
        progress = Progress("checking", "images", stream)
        progress(1, 9)
        progress(7, 9)
        raise ValueError

    with pytest.raises(ValueError), whole_lines():  # noqa: PT011 - it has no text
        fail()
    assert stream.getvalue().endswith("checking 7/9 images\n")
    assert not before.getvalue().endswith("\n")  # it is not ours


def test_a_speed_is_told_once_two_ways_to_measure_it_agree():
    pace = Pace()
    early = [pace.rate(done, seconds) for done, seconds in ((1, 60.0), (2, 60.5), (200, 150.0))]
    assert early == [None, None, None]
    assert pace.rate(500, 300.0) == pytest.approx(1.87, abs=0.005)


def test_times_and_speeds_are_in_units_that_people_use():
    assert [duration(seconds) for seconds in (90, 1800, 9000)] == ["90 s", "30 min", "2.5 h"]
    speeds = ((50.0, "50 images/s"), (3.3, "3.3 images/s"), (0.2, "12 images/min"))
    for rate, words in (*speeds, (0.001, "3.6 images/h")):
        assert _describe_pace(1, 1, "images", rate) == words
    assert _describe_pace(500, 2000, "images", 50.0) == "50 images/s  30 s left"
    assert _describe_pace(1, 2000, "images", None) == ""
