"""Who uses the server's port: children of the server and those that are ending are not reported."""

import os
import subprocess
import sys

import psutil

from systolic.vllm.shutdown import of_others


def test_children_and_zombies_are_left_out():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert of_others(lambda port: psutil.Process(child.pid))(8000) is None
    finally:
        child.kill()
    while psutil.Process(child.pid).status() != psutil.STATUS_ZOMBIE:  # killed, not waited for
        pass
    assert of_others(lambda port: psutil.Process(child.pid))(8000) is None
    child.wait()


def test_others_are_found():
    other = psutil.Process(os.getppid())
    assert of_others(lambda port: other)(8000) == other
    assert of_others(lambda port: None)(8000) is None
