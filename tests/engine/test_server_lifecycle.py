"""Starting that cannot work ends with one clear line; SIGTERM ends a server in time, whatever it does."""

import re
import signal
import socket
import subprocess
import threading
import time

import httpx
import psutil
import pytest
from server import STOP_SECONDS, Server, command, environment, free_port


# Importing vLLM and loading the model take 20 seconds; a busy machine is many times slower.
REFUSE_SECONDS = 240
SMALL = ("--max-model-len", 256, "--max-num-seqs", 2, "--kv-cache-memory-bytes", 2**28)


def refused(*arguments: object, expect: str) -> None:
    """`systolic serve ARGUMENTS` fails with one line that matches `expect` and shows no traceback."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=REFUSE_SECONDS, env=environment()
    )
    assert done.returncode not in (0, None) and done.returncode > 0, (done.returncode, done.stderr[-2000:])
    everything = done.stdout + done.stderr
    assert "Traceback" not in everything and 'File "' not in everything, everything[-3000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("systolic serve:")]
    assert len(lines) == 1, done.stderr[-2000:]
    assert re.search(expect, lines[0]), lines[0]


def test_model_path_that_does_not_exist():
    refused("/nowhere/model", expect="/nowhere/model does not exist; give an existing folder")


def test_model_folder_without_a_model(tmp_path):
    refused(tmp_path, expect=f"{re.escape(str(tmp_path))} has no config.json; give the folder")


def test_port_in_use(model_folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        refused(model_folder, "--host", "127.0.0.1", "--port", port, expect=rf"port {port}.*in use.*--port")


def test_option_that_is_not_supported(model_folder):
    # 3 divides the model's 9 heads, so that it is this platform which refuses.
    options = ("--port", free_port(), "--tensor-parallel-size", 3)
    expect = "--tensor-parallel-size 3 .* use --tensor-parallel-size 1"
    refused(model_folder, *options, expect=expect)


def test_combination_that_cannot_work(model_folder):
    options = ("--port", free_port(), "--max-num-batched-tokens", 128, "--no-enable-chunked-prefill")
    expect = r"max_num_batched_tokens.*128.*max_model_len"
    refused(model_folder, *options, "--max-model-len", 1024, expect=expect)


def test_context_longer_than_the_model(model_folder):
    refused(model_folder, "--port", free_port(), "--max-model-len", 999_999, expect="999999.*8192")


def test_out_of_memory_at_start(model_folder):
    options = ("--port", free_port(), "--kv-cache-memory-bytes", 10**15)
    refused(model_folder, *options, expect="--kv-cache-memory-bytes 1000000000000000 .* ask for less")


def test_cache_too_small_for_one_request(model_folder):
    options = ("--port", free_port(), "--max-model-len", 2048, "--kv-cache-memory-bytes", 10**6)
    refused(model_folder, *options, expect=r"\(2048\).*KV cache.*decreasing `max_model_len`")


# Before and in imports, and while the engine starts (which prints the line).
MOMENTS = [0, 2, "Initializing a V1 LLM engine"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)], ids=["TERM", "INT"])
def test_signal_during_start(model_folder, tmp_path, moment, number, code):
    """Python would raise KeyboardInterrupt somewhere in an import, and vLLM would swallow it elsewhere."""
    log = tmp_path / "log.txt"
    with log.open("wb") as out:
        arguments = command(model_folder, "--port", free_port())
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.STDOUT, env=environment())
    try:
        if isinstance(moment, str):
            limit = time.monotonic() + REFUSE_SECONDS
            while moment not in log.read_text(errors="replace") and time.monotonic() < limit:
                time.sleep(0.1)
        else:
            while not log.stat().st_size:  # its first line says that the start begins
                time.sleep(0.01)
            time.sleep(moment)
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        assert process.wait(STOP_SECONDS) == code
    finally:
        process.kill()
    assert "Traceback" not in log.read_text(errors="replace")
    assert not psutil.wait_procs(family, timeout=5)[1]


@pytest.fixture(scope="module")
def eager_server(model_folder, tmp_path_factory):
    """A server that compiles nothing ahead."""
    log = tmp_path_factory.mktemp("eager") / "log.txt"
    with Server(log, model_folder, "--enforce-eager", *SMALL) as running:
        running.wait_ready()
        yield running


def test_eager_mode_answers_like_the_reference(eager_server, reference):
    assert "eager mode: nothing is compiled ahead" in eager_server.text()
    prompt = "The capital of France is"
    expected = reference.generate(reference.ids(prompt), 6)
    expected.check(eager_server.choice(prompt, max_tokens=6)["token_ids"])


def test_sigterm_ends_a_busy_server_and_its_processes(eager_server):
    """The last test of the module: it ends the eager server while two requests run."""
    family = psutil.Process(eager_server.process.pid).children(recursive=True)
    assert family, "the engine runs in a process of its own"
    outcomes = []

    def ask():
        try:
            body = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
            outcomes.append(eager_server.post(body).status_code)
        except httpx.TransportError:
            outcomes.append("closed")

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    limit = time.monotonic() + 30
    while eager_server.metric("vllm:num_requests_running") < 2 and time.monotonic() < limit:
        time.sleep(0.1)
    code, seconds = eager_server.stop()
    for thread in threads:
        thread.join()
    assert code == 0 and seconds < STOP_SECONDS
    assert "Traceback" not in eager_server.text()
    assert len(outcomes) == 2
    assert not psutil.wait_procs(family, timeout=5)[1]
