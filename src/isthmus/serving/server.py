"""The server: loopback only, read-only, a token in every address, events for pages that follow a run."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

import isthmus
from isthmus._checks import check_integer, fail
from isthmus.serving.snapshot import badge, revision, sentence, snapshot, verdict
from isthmus.serving.watcher import RunView, Watcher

#: Only what this server sends may run, be shown or be asked for.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: A report brings its own scripts, and with them its own policy. Here it is on an island: no origin, no requests.
REPORT_POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; connect-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_KINDS = {"js": "text/javascript", "css": "text/css"}


@cache
def asset(name: str) -> tuple[bytes, str] | None:
    """Content and type of a file of the page; None if there is none of that name."""
    homes = dict.fromkeys(("report.css", "theme.js", "draw.js"), "isthmus.report")
    homes |= dict.fromkeys(("live.css", "live.js"), "isthmus.serving")
    kind = _KINDS.get(name.rpartition(".")[2], "")
    if name not in homes:
        return None
    return resources.files(homes[name]).joinpath("assets", name).read_bytes(), kind


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("isthmus.serving", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def list_page(title: str, views: list[RunView], token: str) -> str:
    """The page of a folder."""
    rows = [
        {"view": view, "state": badge(view), "verdict": verdict(view), "sentence": sentence(view)} for view in views
    ]
    template = _environment().get_template("list.html")
    return template.render(title=title, rows=rows, token=token, version=isthmus.__version__)


def live_page(view: RunView, token: str) -> str:
    """The page of one run."""
    template = _environment().get_template("live.html")
    return template.render(
        view=view, state=badge(view), sentence=sentence(view), token=token, version=isthmus.__version__
    )


try:
    from aiohttp import web
except ImportError:
    fail("serve", "aiohttp must be there", "none", "Install it: pip install 'isthmus[serve]'.")

HOST = "127.0.0.1"
#: Seconds between two looks at a run that is followed, and between two signs of life of a quiet connection.
LOOK, QUIET = 0.5, 5.0
#: Seconds that a folder may be away: one that starts anew, or is exchanged for its answer, comes back.
GRACE = 5.0
#: Pages that may follow at the same time.
MOST_FOLLOWERS = 32
#: Seconds within which a request must have come whole.
HEADERS = 5.0
#: Milliseconds after which a page that lost its connection tries again.
_RETRY = 1000
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Server": "isthmus",
}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class LiveServer:
    """Answers requests about what ``watcher`` sees, to who knows ``token``.

    No part of an address is ever used as a path: runs have opaque ids, and files have fixed names.
    """

    def __init__(self, watcher: Watcher, token: str | None = None) -> None:
        self.watcher, self.token = watcher, secrets.token_urlsafe(24) if token is None else token
        self._lock = asyncio.Lock()
        self._looked: dict[str, tuple[float, str, str]] = {}
        self._followers = 0

    def application(self) -> web.Application:
        """The aiohttp application: all routes, behind the checks of token and origin."""
        app = web.Application(middlewares=[self._guard])
        one = "/{id:[0-9a-f]{16}}"
        app.router.add_get("/", self._list)
        app.router.add_get(f"/run{one}", self._run)
        app.router.add_get(f"/events{one}", self._events)
        app.router.add_get(f"/report{one}", self._report)
        app.router.add_get("/assets/{name:[a-z]+[.](?:js|css)}", self._asset)
        return app

    def runner(self) -> web.AppRunner:
        """The application with limits of time for slow requests."""
        # The time begins with the connection: whoever says half of a request is not waited for.
        return web.AppRunner(self.application(), access_log=None, shutdown_timeout=0.5, keepalive_timeout=HEADERS)

    @web.middleware
    async def _guard(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Who may ask, and how; the headers of every answer."""
        try:
            self._check(request)
            response = await handler(request)
        except web.HTTPException as problem:
            # Without the details of the library: the number and its name are enough.
            response = web.Response(status=problem.status, text=f"{problem.status} {problem.reason}\n")
            if "Allow" in problem.headers:
                response.headers["Allow"] = "GET, HEAD"
        except (asyncio.CancelledError, ConnectionError):
            raise
        except Exception:  # the boundary to the browser
            traceback.print_exc(file=sys.stderr)
            response = web.Response(status=500, text="500 a bug of isthmus; its terminal says where\n")
        if not response.prepared:
            for name, value in _HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    def _check(self, request: web.Request) -> None:
        # A foreign page may let its own name point here (DNS rebinding); its requests then carry that name.
        hosts = request.headers.getall("Host", [])
        name = hosts[0].rsplit(":", 1)[0] if len(hosts) == 1 else ""
        if name not in (HOST, "localhost"):
            raise web.HTTPForbidden
        # A page of another origin may ask, though it could not read the answer; links and own pages send none or ours.
        origin = request.headers.getall("Origin", [])
        if origin and origin != [f"http://{hosts[0]}"]:
            raise web.HTTPForbidden
        if request.method not in ("GET", "HEAD"):
            raise web.HTTPMethodNotAllowed(request.method, ("GET", "HEAD"))
        given = request.query.getall("token", [])
        if len(given) != 1 or not hmac.compare_digest(given[0].encode(errors="replace"), self.token.encode()):
            raise web.HTTPForbidden

    # ---------------------------------------------------------------- pages

    async def _list(self, request: web.Request) -> web.Response:  # noqa: ARG002
        views = await self._ask(self.watcher.runs)
        return web.Response(text=list_page(self.watcher.title, views, self.token), content_type="text/html")

    async def _run(self, request: web.Request) -> web.Response:
        view = await self._ask(self.watcher.run, request.match_info["id"])
        if view is None:
            raise web.HTTPNotFound
        return web.Response(text=live_page(view, self.token), content_type="text/html")

    async def _report(self, request: web.Request) -> web.Response:
        content = await self._ask(self.watcher.report, request.match_info["id"])
        if content is None:
            raise web.HTTPNotFound
        headers = {"Content-Security-Policy": REPORT_POLICY}
        return web.Response(body=content, content_type="text/html", charset="utf-8", headers=headers)

    async def _asset(self, request: web.Request) -> web.Response:
        found = asset(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        return web.Response(body=found[0], content_type=found[1], charset="utf-8")

    # ---------------------------------------------------------------- events

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Snapshots of a run whenever it has changed; one that the page has already is not sent again."""
        run = request.match_info["id"]
        if await self._snapshot(run) is None:
            raise web.HTTPNotFound
        if self._followers >= MOST_FOLLOWERS:
            raise web.HTTPServiceUnavailable
        response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        self._followers += 1
        try:
            await response.write(f"retry: {_RETRY}\n\n".encode())
            await self._follow(run, response, request.headers.get("Last-Event-ID", ""))
        except ConnectionError:
            # The page was closed.
            pass
        finally:
            self._followers -= 1
        return response

    async def _follow(self, run: str, response: web.StreamResponse, known: str) -> None:
        spoke = seen = time.monotonic()
        while time.monotonic() - seen < GRACE:
            found = await self._snapshot(run)
            now = time.monotonic()
            if found is not None:
                seen = now
            if found is not None and found[0] != known:
                known, text = found
                await response.write(f"id: {known}\nevent: snapshot\ndata: {text}\n\n".encode())
                spoke = now
            elif now - spoke >= QUIET:
                await response.write(b": still here\n\n")
                spoke = now
            await asyncio.sleep(LOOK)
        await response.write(b"event: gone\ndata: {}\n\n")

    async def _snapshot(self, run: str) -> tuple[str, str] | None:
        """Name and JSON of a run's snapshot; pages that look at the same time share one."""
        seen = self._looked.get(run)
        if seen is not None and time.monotonic() - seen[0] < 0.8 * LOOK:
            return seen[1:]
        view = await self._ask(self.watcher.run, run)
        if view is None:
            self._looked.pop(run, None)
            return None
        content = snapshot(view)
        if len(self._looked) > 4 * MOST_FOLLOWERS:
            self._looked.clear()
        # One line of ASCII: an event ends where its line does.
        found = revision(content), json.dumps(content, allow_nan=False)
        self._looked[run] = (time.monotonic(), *found)
        return found

    async def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """In another thread, since files may be slow; one at a time, since the watcher remembers."""
        async with self._lock:
            return await asyncio.to_thread(question, *arguments)


def bind(port: int) -> socket.socket:
    """A socket on the loopback address; port 0 lets the system choose."""
    check_integer("serve", "port", port, low=0, high=65535)
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        if sys.platform != "win32":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
    except OSError as problem:
        listening.close()
        fail("serve", f"port {port} must be free", problem.strerror, "Choose another --port, or 0 for any.")
    return listening


def serve(watcher: Watcher, *, port: int = 0, ready: Callable[[str], object] = print) -> None:
    """Serve until interrupted.

    Parameters
    ----------
    watcher : Watcher
    port : int
        0 for any that is free.
    ready : callable
        Called with the address, token included, once it answers.
    """
    listening = bind(port)
    with contextlib.closing(listening):
        asyncio.run(_serve(watcher, listening, ready))


async def _serve(watcher: Watcher, listening: socket.socket, ready: Callable[[str], object]) -> None:
    server = LiveServer(watcher)
    runner = server.runner()
    await runner.setup()
    try:
        await web.SockSite(runner, listening).start()
        ready(f"http://{HOST}:{listening.getsockname()[1]}/?token={server.token}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
