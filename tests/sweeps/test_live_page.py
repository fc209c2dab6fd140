"""The live page follows a sweep: while it runs, when it stops, when it is finished."""

from __future__ import annotations

import pytest
from inline import Inline
from tiny import Tiny

from isthmus.serving import Watcher
from isthmus.serving.snapshot import snapshot
from isthmus.sweeps import sweep

GRID = {"depth": "4:7"}


class Watched(Inline):
    """Looks at the page when a result is written and the next task comes."""

    def __init__(self, folder, **more):
        super().__init__(**more)
        self.folder, self.seen = folder, []

    def submit(self, fn, task):
        if self.tasks:
            (view,) = Watcher(self.folder).runs()
            self.seen.append((view.kind, view.state, snapshot(view)))
        return super().submit(fn, task)


@pytest.mark.parametrize("inside", [False, True])
def test_followed(tmp_path, inside):
    out = tmp_path / "norms"
    engine = Watched(out if inside else tmp_path, stop_after=3)
    with pytest.raises(KeyboardInterrupt):
        sweep(Tiny, GRID, out=out, engine=engine)
    assert [seen[:2] for seen in engine.seen] == [("sweep", "running")] * 3
    last = engine.seen[-1][2]
    assert "T-tiny" in last["sentence"]
    assert last["facts"][0]["label"] == "done"
    (view,) = Watcher(engine.folder).runs()
    assert (view.kind, view.state) == ("sweep", "interrupted")
    assert "goes on with what is not finished" in snapshot(view)["meaning"]
    sweep(Tiny, GRID, out=out, engine=Inline())
    (view,) = Watcher(engine.folder).runs()
    assert (view.kind, view.state) == ("sweep", "finished")
    assert view.answer is not None
    assert view.answer.sentence == "Sweep of T-tiny: A tiny experiment."
