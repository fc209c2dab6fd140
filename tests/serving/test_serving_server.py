"""The server: who may ask for what, what is refused, what every answer says, and events that can be resumed."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import psutil
import pytest

from isthmus import IsthmusError, cli, files
from isthmus.serving import server as serving
from served import ask, served, start, step, write_record, write_stage

SECRET = "what nobody may see"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A running discovery, a finished one, and things outside that a link or a path might reach."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text(SECRET)
    (outside / "report.html").write_text(SECRET)
    root = outside / "runs"
    now = time.time()
    write_record(root / "busy" / ".progress", start(now), step(now, 1, error=0.5))
    write_stage(root / "busy" / ".progress", "main-3")
    (root / "found").mkdir()
    document = {"sentence": "Two & <b>.", "verdict": "determined", "profile": None, "replicas": []}
    files.write_json(root / "found" / "discovery.json", document)
    (root / "found" / "report.html").write_text("<p>the report</p>")
    (root / "link").symlink_to(outside)
    return root


@pytest.fixture(scope="module")
def running(root):
    with served(root) as (server, port):
        yield server, port


@pytest.fixture(scope="module")
def get(running):
    """Ask with the token."""
    server, port = running

    def get(path, **options):
        mark = "&" if "?" in path else "?"
        return ask(port, f"{path}{mark}token={server.token}", **options)

    return get


@pytest.fixture(scope="module")
def ids(running):
    return {view.name: view.id for view in running[0].watcher.runs()}


def test_pages(get, ids):
    answer, body = get("/")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/html")
    text = body.decode()
    assert "3 runs, 1 running" in text
    assert "Two &amp; &lt;b&gt;." in text and "<b>" not in text
    answer, body = get(f"/run/{ids['busy']}")
    assert answer.status == 200 and f"/events/{ids['busy']}" in body.decode()
    answer, body = get(f"/report/{ids['found']}")
    assert (answer.status, body) == (200, b"<p>the report</p>")
    assert "sandbox" in answer.headers["Content-Security-Policy"]
    for name in ("draw.js", "theme.js", "live.js", "live.css", "report.css"):
        answer, body = get(f"/assets/{name}")
        assert answer.status == 200 and len(body) > 100


def test_every_answer_has_the_headers(get, ids, running):
    answers = [get("/"), get("/nothing"), get("/", method="POST"), ask(running[1], "/"), get(f"/report/{ids['found']}")]
    answers.append(get(f"/events/{ids['busy']}", method="HEAD"))
    for answer, _ in answers:
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Server"] == "isthmus"
        assert "Set-Cookie" not in answer.headers and "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("token", ["", "?token=", "?token=wrong", "?token={0}x", "?token={0}&token={0}", "?token=%ff"])
def test_the_token_is_needed(running, ids, token):
    server, port = running
    for path in ("/", f"/run/{ids['busy']}", f"/events/{ids['busy']}", "/assets/live.js", f"/report/{ids['found']}"):
        answer, body = ask(port, path + token.format(server.token))
        assert answer.status == 403
        assert body == b"403 Forbidden\n"


@pytest.mark.parametrize("host", [["evil.example"], ["127.0.0.1.evil.example:80"], [], ["[::1]"], ["127.0.0.1", "x"]])
def test_other_names_of_this_machine_are_refused(get, host):
    try:
        answer, body = get("/", host=host)
    except http.client.HTTPException:
        return
    assert answer.status in (400, 403)
    assert SECRET not in body.decode()


def test_localhost_is_a_name_too(get, running):
    assert get("/", host=[f"localhost:{running[1]}"])[0].status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:1"])
def test_pages_of_other_origins_are_refused(get, running, origin):
    assert get("/", headers={"Origin": origin})[0].status == 403
    assert get("/", headers={"Origin": f"http://127.0.0.1:{running[1]}"})[0].status == 200


def test_half_of_a_request_is_not_waited_for(root, monkeypatch):
    monkeypatch.setattr(serving, "HEADERS", 0.5)
    with served(root) as (_, port), socket.create_connection(("127.0.0.1", port), timeout=20) as half:
        half.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1")
        # Closed by the server; a connection that is kept would run into the time-out.
        assert half.recv(1000) == b""


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading(get, ids, method):
    for path in ("/", f"/run/{ids['busy']}", "/nothing"):
        answer, _ = get(path, method=method)
        assert answer.status == 405
        assert answer.headers["Allow"] == "GET, HEAD"


def test_head(get, ids):
    for path in ("/", f"/run/{ids['busy']}", f"/events/{ids['busy']}"):
        answer, body = get(path, method="HEAD")
        assert (answer.status, body) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/secret",
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/run/../../secret",
        "/run/%2e%2e%2f%2e%2e%2fsecret",
        "/report/..%2f..%2fsecret",
        "/report/../outside",
        "/report//etc/passwd",
        "//etc/passwd",
        "/report/%2fetc%2fpasswd",
        "/assets/../server.py",
        "/assets/..%2fserver.py",
        "/assets/%2e%2e/%2e%2e/secret",
        "/assets/unknown.js",
        "/run/busy",
        "/run/0000000000000000",
        "/report/0000000000000000",
        "/events/0000000000000000",
        "/run/" + "0" * 10_000,
        "/run/0000000000000000/../../secret",
        "/found/report.html",
        "/busy/.progress/live.jsonl",
        "/link/secret",
        "/run/%00",
        "/favicon.ico",
    ],
)
def test_nothing_else_is_there(get, path):
    answer, body = get(path)
    # A very long address is refused before it is looked at.
    assert answer.status == 404 or (len(path) > 8000 and answer.status in (400, 414))
    assert SECRET.encode() not in body and b"root:" not in body


def test_links_lead_nowhere(get, ids):
    assert get(f"/report/{ids['link']}")[0].status == 404
    answer, body = get(f"/run/{ids['link']}")
    assert answer.status == 200 and SECRET.encode() not in body


def events(port, path, count, **headers):
    """The first so many events of a stream, as dictionaries, and the comments before the last."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        found, comments, event = [], [], {}
        while len(found) < count:
            line = answer.readline().decode().rstrip("\n")
            if line.startswith(":"):
                comments.append(line)
            elif line:
                name, _, value = line.partition(": ")
                event[name] = value
            else:
                found += [event] if event else []
                event = {}
        return found, comments
    finally:
        connection.close()


def test_events_begin_follow_and_resume(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "LOOK", 0.05)
    monkeypatch.setattr(serving, "QUIET", 0.1)
    folder, now = tmp_path / "busy" / ".progress", time.time()
    write_record(folder, start(now), step(now, 1))
    with served(tmp_path) as (server, port):
        (view,) = server.watcher.runs()
        path = f"/events/{view.id}?token={server.token}"
        (retry, first), _ = events(port, path, 2)
        assert retry == {"retry": "1000"}
        assert first["event"] == "snapshot"
        assert json.loads(first["data"])["progress"]["done"] == 1
        # The same again to who has nothing; nothing, but a sign of life, to who has it; then what is new.
        (_, again), _ = events(port, path, 2)
        assert again["id"] == first["id"]

        def go_on():
            time.sleep(0.5)
            with (folder / "live.jsonl").open("a") as file:
                file.write(json.dumps(step(now, 2)) + "\n")

        writer = threading.Thread(target=go_on)
        writer.start()
        (_, second), comments = events(port, path, 2, **{"Last-Event-ID": first["id"]})
        writer.join()
        assert second["id"] != first["id"]
        assert json.loads(second["data"])["progress"]["done"] == 2
        assert ": still here" in comments


def test_a_folder_that_goes_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(serving, "LOOK", 0.05)
    now = time.time()
    path = write_record(tmp_path / "busy" / ".progress", start(now))
    with served(tmp_path) as (server, port):
        (view,) = server.watcher.runs()
        path.unlink()
        connection = ask(port, f"/events/{view.id}?token={server.token}")[0]
        assert connection.status == 404
        write_record(path.parent, start(now))
        monkeypatch.setattr(server, "_looked", {})
        monkeypatch.setattr(serving, "snapshot", lambda _: path.unlink(missing_ok=True) or {})
        monkeypatch.setattr(serving, "GRACE", 0.2)
        found, _ = events(port, f"/events/{view.id}?token={server.token}", 3)
        assert found[1]["event"] == "snapshot"
        assert found[-1] == {"event": "gone", "data": "{}"}


def test_not_too_many_at_once(get, ids, monkeypatch):
    monkeypatch.setattr(serving, "MOST_FOLLOWERS", 0)
    assert get(f"/events/{ids['busy']}")[0].status == 503


def test_a_bug_is_not_shown_to_the_browser(get, monkeypatch, running, capsys):
    def broken():
        raise RuntimeError(SECRET)

    monkeypatch.setattr(running[0].watcher, "runs", broken)
    answer, body = get("/")
    assert answer.status == 500 and SECRET not in body.decode()
    assert SECRET in capsys.readouterr().err


def test_the_folder_is_left_as_it_was(root, get, ids):
    before = {path: path.lstat().st_mtime_ns for path in root.rglob("*")}
    for path in ("/", f"/run/{ids['busy']}", f"/report/{ids['found']}"):
        get(path)
    assert {path: path.lstat().st_mtime_ns for path in root.rglob("*")} == before


# --- the command


def test_a_taken_port_is_said(tmp_path, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(IsthmusError, match=f"port {port} must be free"):
            serving.bind(port)
        assert cli.main(["serve", str(tmp_path), "--port", str(port)]) == 2
    assert "must be free" in capsys.readouterr().err
    assert cli.main(["serve", str(tmp_path / "none")]) == 3
    assert "must be an existing folder" in capsys.readouterr().err


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal here")
def test_the_command_binds_loopback_only_and_ends_by_ctrl_c(root):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A shell may start processes deaf to Ctrl-C.
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from isthmus.cli import main; "
    command = [sys.executable, "-c", program + "raise SystemExit(main())", "serve", str(root)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        address = process.stdout.readline().split()[-1]
        assert address.startswith("http://127.0.0.1:")
        listening = [c.laddr for c in psutil.Process(process.pid).net_connections() if c.status == psutil.CONN_LISTEN]
        assert [one.ip for one in listening] == ["127.0.0.1"]
        with urllib.request.urlopen(address, timeout=20) as answer:
            assert answer.status == 200
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err


def test_help_has_an_example(capsys):
    assert cli.main(["serve", "--help"]) == 0
    assert "isthmus serve runs --open" in capsys.readouterr().out
