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
