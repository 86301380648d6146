"""The command line: early errors, the call of vLLM (a stand-in here), and what is printed."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from systolic import announce, cli_errors, cli_serve
from systolic.models import small_model

SOURCES = Path(__file__).resolve().parents[2] / "src"
# A stand-in for vLLM's command: says how it was called, then does what STAND_IN asks for.
STAND_IN = """
import http.server, os, signal, sys, threading, time
print("called with", sys.argv, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass

def main():
    action = os.environ["STAND_IN"]
    if action == "serve":
        port = int(sys.argv[sys.argv.index("--port") + 1])
        server = http.server.HTTPServer(("127.0.0.1", port), Handler)
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever()
    elif action == "fail":
        raise ValueError("max_model_len 99999 is above\\n  the limit 8192")
    elif action == "terminated":
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
"""


@pytest.fixture
def environment(tmp_path):
    """Environment in which `import vllm` finds the stand-in and the cache is empty."""
    folder = tmp_path / "stand-in/vllm/entrypoints/cli"
    folder.mkdir(parents=True)
    (tmp_path / "stand-in/vllm/entrypoints/launchers/api_server").mkdir(parents=True)
    packages = ("cli", "launchers", "launchers/api_server")
    for package in ("vllm", "vllm/entrypoints", *(f"vllm/entrypoints/{name}" for name in packages)):
        (tmp_path / "stand-in" / package / "__init__.py").touch()
    (tmp_path / "stand-in/vllm/entrypoints/launchers/api_server/entry.py").write_text("import signal")
    (folder / "main.py").write_text(STAND_IN)
    path = os.pathsep.join([str(tmp_path / "stand-in"), str(SOURCES)])
    changes = {"PYTHONPATH": path, "SYSTOLIC_CACHE_DIR": str(tmp_path / "cache"), "STAND_IN": "return"}
    return {**os.environ, **changes}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return str(folder)


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def systolic(environment, *arguments):
    command = [sys.executable, "-m", "systolic.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def assert_one_line(done, code, *words):
    """`done` ended with `code` and said why in one line on stderr that holds all `words`."""
    assert done.returncode == code, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    for word in words:
        assert str(word) in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["serve", "--help"], ["config"]])
def test_light_commands_do_not_import_torch(environment, arguments):
    program = textwrap.dedent("""
        import sys
        from systolic.cli import main
        try:
            code = main(sys.argv[1:])
        except SystemExit as stop:
            code = stop.code
        heavy = {"torch", "jax", "numpy", "vllm", "transformers"} & set(sys.modules)
        sys.exit(f"imported {heavy}" if heavy else code)
    """)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "systolic" in done.stdout


def test_config_lists_each_setting_as_json(environment, tmp_path):
    done = systolic(environment, "config", "--json")
    entries = {entry["name"]: entry for entry in json.loads(done.stdout)}
    assert entries["cache_dir"]["value"] == str(tmp_path / "cache")
    assert entries["cache_dir"]["source"] == "environment variable SYSTOLIC_CACHE_DIR"
    assert all(entry["help"] for entry in entries.values())


def test_invalid_setting_is_one_line(environment):
    done = systolic({**environment, "SYSTOLIC_LOG_LEVEL": "LOUD"}, "config")
    assert_one_line(done, 2, "SYSTOLIC_LOG_LEVEL", "LOUD")


def test_missing_model_path(environment):
    assert_one_line(systolic(environment, "serve", "./no/such/model"), 2, "./no/such/model", "does not exist")


def test_folder_without_a_model(environment, tmp_path):
    assert_one_line(systolic(environment, "serve", str(tmp_path)), 2, tmp_path, "config.json")


@pytest.mark.parametrize("option", ["--port=70000", "--port=web"])
def test_invalid_port(environment, model, option):
    assert_one_line(systolic(environment, "serve", model, option), 2, option.partition("=")[2], "65535")


def test_port_in_use(environment, model):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = systolic(environment, "serve", model, "--host", "127.0.0.1", "--port", str(port))
    assert_one_line(done, 2, port, "in use", "--port")


def test_port_in_use_is_read_from_the_config_file(environment, model, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "serve.yaml").write_text(f"model: {model}\nport: {port}\n")
        done = systolic(environment, "serve", "--config", str(tmp_path / "serve.yaml"))
    assert_one_line(done, 2, port, "in use")


def test_arguments_reach_vllm_unchanged(environment, model, free_port):
    options = ["--port", str(free_port), "--max_model_len", "64", "-tp", "1", "--enforce-eager"]
    done = systolic(environment, "serve", model, *options)
    assert done.returncode == 0, done.stderr
    assert f"called with {['vllm', 'serve', model, *options]}" in done.stdout


def test_model_given_as_option_is_moved_to_the_front(environment, model, free_port):
    done = systolic(environment, "serve", f"--port={free_port}", "--model", model, "--enforce-eager")
    assert f"called with {['vllm', 'serve', model, f'--port={free_port}', '--enforce-eager']}" in done.stdout


def test_vllm_failure_is_one_line_and_the_traceback_is_there_on_request(environment, model, free_port):
    failing = {**environment, "STAND_IN": "fail"}
    done = systolic(failing, "serve", model, "--port", str(free_port))
    assert_one_line(done, 1, "max_model_len 99999 is above the limit 8192", "SYSTOLIC_LOG_LEVEL=DEBUG")
    done = systolic({**failing, "SYSTOLIC_LOG_LEVEL": "DEBUG"}, "serve", model, "--port", str(free_port))
    assert done.returncode == 1 and "Traceback" in done.stderr


def test_sigterm_during_start_exits_cleanly(environment, model, free_port):
    done = systolic({**environment, "STAND_IN": "terminated"}, "serve", model, "--port", str(free_port))
    assert done.returncode == 0 and done.stderr == ""


def test_ready_line_names_server_and_model_and_sigterm_still_works(environment, model, free_port):
    command = [sys.executable, "-m", "systolic.cli", "serve", model, "--port", str(free_port)]
    command += ["--served-model-name", "mine", "alias"]
    serving = {**environment, "STAND_IN": "serve"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=serving, **pipes) as server:
        lines = iter(server.stdout.readline, "")
        curl = next(line for line in lines if "curl " in line)
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=10) == 0
        assert server.stderr.read() == ""
    assert f"http://localhost:{free_port}/v1/completions" in curl
    assert '"model": "mine"' in curl


def test_another_server_on_the_port_is_not_taken_for_ours():
    program = textwrap.dedent("""
        import socket
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        input()
    """)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    # Started by this process, so the server counts as ours; the port of its parent does not.
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as child:
        assert announce._listens(os.getpid(), int(child.stdout.readline()))
        child.communicate("\n")
    looks = "import os, sys; from systolic import announce; print(announce._listens(os.getpid(), int(sys.argv[1])))"
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        assert announce._listens(os.getpid(), port)
        command = [sys.executable, "-c", looks, str(port)]
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def make_cached_small_model(folder, **changes):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    manifest = {
        "conversion": small_model.CONVERSION,
        "gguf": {"sha256": small_model.GGUF_SHA256},
        "files": {"config.json": {"bytes": 2}},
    }
    (folder / small_model.MANIFEST).write_text(json.dumps({**manifest, **changes}))


def test_without_a_model_the_cached_small_one_is_served_by_name_and_path(environment, tmp_path, free_port):
    folder = tmp_path / "cache/models" / small_model.NAME
    make_cached_small_model(folder)
    done = systolic(environment, "serve", "--port", str(free_port))
    names = ["--served-model-name", small_model.NAME, str(folder)]
    expected = ["vllm", "serve", str(folder), "--port", str(free_port), *names]
    assert f"called with {expected}" in done.stdout, done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"conversion": small_model.CONVERSION - 1},
        {"gguf": {"sha256": "0"}},
        {"files": {"config.json": {"bytes": 3}}},
        {"files": {"model.safetensors": {"bytes": 3}}},
    ],
)
def test_a_cached_model_that_is_old_or_incomplete_is_not_used(tmp_path, changes):
    make_cached_small_model(tmp_path / "good")
    assert small_model.is_ready(tmp_path / "good")
    make_cached_small_model(tmp_path / "bad", **changes)
    assert not small_model.is_ready(tmp_path / "bad")


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "gpt2", "s3://bucket/model"])
def test_hub_names_and_remote_places_are_left_to_vllm(name):
    cli_serve.check_model(name)


def test_curl_line_can_be_pasted_into_a_shell():
    line = announce.curl_line("http://localhost:8000", "it's")
    echoed = subprocess.run(
        ["bash", "-c", line.replace("curl", "printf '%s\\n'", 1)], capture_output=True, text=True, check=True
    )
    assert json.loads(echoed.stdout.splitlines()[-1])["model"] == "it's"


@pytest.mark.parametrize(
    "error, line",
    [
        (ValueError("a\n b"), "a b"),
        (KeyError("parser"), "KeyError: 'parser'"),
        (OSError(98, "Address already in use"), "the port is in use; choose another with --port"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_explain_is_one_line(error, line):
    assert cli_errors.explain(error) == line


def test_explain_takes_the_message_out_of_a_validation_error():
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        port: int

    with pytest.raises(pydantic.ValidationError) as caught:
        Model(port="x")
    text = cli_errors.explain(caught.value)
    assert text.startswith("port: ") and "integer" in text and "\n" not in text and "http" not in text


def test_engine_failure_is_one_log_line_without_traceback():
    program = textwrap.dedent("""
        import logging, multiprocessing, sys
        from systolic.cli_errors import install_engine_failure_filter
        def child():
            logging.basicConfig(format="%(message)s")
            install_engine_failure_filter()
            try:
                raise MemoryError("no room")
            except MemoryError:
                logging.getLogger("vllm.v1.engine.core").exception("EngineCore failed to start.")
                raise
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start(); process.join()
        sys.exit(process.exitcode)
    """)
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "EngineCore failed to start. MemoryError: no room" in done.stderr
    assert "Traceback" not in done.stderr
