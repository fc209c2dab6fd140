"""Progress: plain lines off a terminal, nothing unless asked, never on stdout."""

from __future__ import annotations

import io
import re
from functools import partial

from torch import nn

from isthmus._progress import progress
from isthmus.training import Phase
from small import network, quiet, task

PHASES = [Phase("adam", 30, 1e-3), Phase("lbfgs", 40)]


def test_lines(capsys):
    quiet(network(), *task(), phases=PHASES, progress=partial(progress, every=0.0))
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.strip().splitlines()
    number = r"[-+.e\d]+"
    assert re.fullmatch(
        rf"train: \d+/70, loss {number}, cost {number}, ‖θ‖²/L {number}, rank \d+, \d+:\d\d left", lines[-2]
    )
    assert re.search(r"70/70.*done in 0:\d\d$", lines[-1])


def test_silent_unless_asked(capsys):
    quiet(network(), *task(), phases=PHASES)
    assert capsys.readouterr() == ("", "")


def test_phases_that_end_early_count_as_done():
    stream = io.StringIO()
    show = partial(progress, stream=stream, every=0.0)
    net = nn.Linear(4, 3).double()
    result = quiet(net, *task(), phases=[Phase("lbfgs", 500)], progress=show)
    assert result.steps < 500
    last = stream.getvalue().strip().splitlines()[-1]
    assert "500/500" in last
    assert "rank" not in last  # a plain module has none to show
