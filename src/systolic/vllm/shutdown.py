"""Ending the API server: requests that still wait get an error instead of nothing."""

from __future__ import annotations


def answering_the_rest(original):
    """``AsyncLLM.shutdown`` that ends every waiting request.

    Upstream cancels the task that would pass on the engine's end; whether it did so before is a race.
    """

    def shutdown(self, timeout: float | None = None) -> None:
        from vllm.v1.engine.exceptions import EngineDeadError

        original(self, timeout)
        handler = getattr(self, "output_handler", None)
        if handler is not None and not (loop := handler.get_loop()).is_closed():
            # Upstream calls this from a thread; the requests' queues belong to the loop.
            loop.call_soon_threadsafe(self.output_processor.propagate_error, EngineDeadError())

    return shutdown


def of_others(original):
    """``find_process_using_port`` that leaves out this process's own children.

    They inherit the server's socket. Upstream prints the command of whom it finds and fails if that one is ending.
    """

    def find_process_using_port(port: int):
        import os

        import psutil

        process = original(port)
        try:
            if process is None or os.getpid() in (parent.pid for parent in process.parents()):
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.Error:  # it has ended meanwhile
            return None

    return find_process_using_port
