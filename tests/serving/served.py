"""Shared by the tests of the live page: records and folders written down by hand, a server of its own, requests."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import platform
import threading
import time

from isthmus._live import LIVE
from isthmus.discovery._fits import Fit
from isthmus.discovery._walk import Stages
from isthmus.networks import FullyConnected
from isthmus.serving import Watcher
from isthmus.serving import server as serving
from tools import generator


def start(at, **more):
    base = {"kind": "start", "time": at, "pid": os.getpid(), "version": 1, "host": platform.node()}
    return {**base, "sentence": "How many variables?", "command": "discover data.csv", "resolution": "auto", **more}


def step(at, done, total=100, label="discover", **numbers):
    return {"kind": "step", "time": at, "label": label, "done": done, "total": total, "numbers": numbers}


def end(at, state="done", error=""):
    return {"kind": "end", "time": at, "state": state, "error": error}


def write_record(folder, *lines, age=0.0):
    """A record in ``folder`` whose last sign of life is ``age`` seconds old."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LIVE
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(path, (time.time() - age,) * 2)
    return path


def write_stage(folder, name, rank=3, loss=0.25, norm=12.0, family=FullyConnected):
    """A training of a small network, as a discovery keeps it; gives the network."""
    net = family.hourglass([6, 8, rank], [rank, 8, 5], generator=generator(rank))
    Stages(folder, "identity").write(name, Fit(net, loss, loss, norm, 0.0, "at rest"))
    return net


@contextlib.contextmanager
def served(folder):
    """A running server; gives it and its port."""
    listening = serving.bind(0)
    server = serving.LiveServer(Watcher(folder))
    ready, over = threading.Event(), threading.Event()

    async def answer():
        runner = server.runner()
        await runner.setup()
        await serving.web.SockSite(runner, listening).start()
        ready.set()
        await asyncio.to_thread(over.wait)
        await runner.cleanup()

    # In a thread of its own: Playwright keeps a loop in this one.
    thread = threading.Thread(target=asyncio.run, args=(answer(),))
    thread.start()
    try:
        assert ready.wait(20)
        yield server, listening.getsockname()[1]
    finally:
        over.set()
        thread.join()
        listening.close()


def ask(port, path, *, method="GET", headers=None, host=None):
    """One request exactly as written: no part of the path is tidied."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.putrequest(method, path, skip_host=True)
        for value in [f"127.0.0.1:{port}"] if host is None else host:
            connection.putheader("Host", value)
        for name, value in (headers or {}).items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()
