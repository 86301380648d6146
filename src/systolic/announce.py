"""Says when a server is ready: a small process of its own, so that the server has no thread to fork.

`python -m systolic.announce PID HOST PORT MODEL KEY STARTED` waits until the server of process PID answers
/health, prints how to use it, and ends; it also ends when PID does.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import subprocess
import sys
import time

# How often to look whether the server answers, seconds.
POLL_SECONDS = 0.25


def start(host: str | None, port: int, name: str, key: bool, started: float) -> None:
    """Announce the server that this process is about to run; `started` is time.monotonic() of its start."""
    arguments = [str(os.getpid()), host or "", str(port), name, str(int(key)), str(started)]
    subprocess.Popen([sys.executable, "-m", "systolic.announce", *arguments], start_new_session=True)


def curl_line(base: str, name: str, key: bool = False) -> str:
    """A command to copy that asks the server at `base` for a completion of model `name`."""
    prompt = {"model": name, "prompt": "The capital of France is"}
    body = shlex.quote(json.dumps({**prompt, "max_tokens": 16, "temperature": 0}))
    login = " -H 'Authorization: Bearer YOUR_KEY'" if key else ""
    return f"curl {base}/v1/completions -H 'Content-Type: application/json'{login} -d {body}"


def _listens(pid: int, port: int) -> bool:
    """True when process `pid` or one it started listens on `port`: another server may have taken it."""
    import psutil

    try:
        server = psutil.Process(pid)
        family = [server, *server.children(recursive=True)]
    except psutil.Error:
        return False
    for process in family:
        try:
            sockets = process.net_connections("inet")
        except psutil.Error:
            continue
        if any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets):
            return True
    return False


def _answers(address: str, port: int) -> bool:
    connection = http.client.HTTPConnection(address, port, timeout=2)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    """Wait for the server and print one line; 1 when the server's process ended first."""
    pid, host, port, name, key, started = arguments
    wildcard = host in ("", "0.0.0.0", "::")
    address = "127.0.0.1" if wildcard else host
    while not (_answers(address, int(port)) and _listens(int(pid), int(port))):
        # A process that ended leaves this one to another parent.
        if os.getppid() != int(pid):
            return 1
        time.sleep(POLL_SECONDS)
    shown = "localhost" if wildcard else f"[{host}]" if ":" in host else host
    text = curl_line(f"http://{shown}:{port}", name, key == "1")
    print(f"\nReady after {time.monotonic() - float(started):.0f} s. Try:\n  {text}\n", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
