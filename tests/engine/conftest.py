"""One server and one reference model for all engine tests of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Callable

import numpy as np
import pytest
from server import STOP_SECONDS, Server

from systolic.models.small_model import ensure_small_model

# Small, so that the tests reach what large servers reach rarely: chunked prefill, a full batch, a queue.
OPTIONS = (
    "--max-model-len", 1024, "--max-num-seqs", 8, "--max-num-batched-tokens", 256, "--max-logprobs", -1,
    "--kv-cache-memory-bytes", 2**30, "--logits-processors", "forced_token:ForcedToken",
)  # fmt: skip


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct in float32."""
    return ensure_small_model()


@pytest.fixture(scope="session")
def server(model_folder, tmp_path_factory):
    """A running server. At the end SIGTERM must end it in time and with exit code 0."""
    with Server(tmp_path_factory.mktemp("server") / "log.txt", model_folder, *OPTIONS) as running:
        running.wait_ready()
        yield running
        code, seconds = running.stop()
        assert code == 0, f"exit code {code} after SIGTERM; the log ends:\n{running.text()[-3000:]}"
        assert seconds < STOP_SECONDS
        assert "Traceback" not in running.text()


class Reference:
    """The same model in transformers, float32, as the source of every exact expectation."""

    def __init__(self, folder: Path):
        import torch
        import transformers

        self.torch = torch
        # Its threads would wait for each other whenever the server has a core.
        torch.set_num_threads(1)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.vocabulary = self.model.config.vocab_size
        self.end = self.model.config.eos_token_id

    def ids(self, text: str) -> list[int]:
        """Token ids of `text` as the server's completions API makes them."""
        return self.tokenizer(text)["input_ids"]

    def text(self, ids: list[int]) -> str:
        """`ids` as text, special tokens left out."""
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def logits(self, ids: list[int]) -> np.ndarray:
        """Logits after each of `ids`: float32 [tokens, vocabulary]."""
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids])).logits[0].numpy()

    def logprobs(self, ids: list[int]) -> np.ndarray:
        """Log-probabilities of the token after each of `ids`: float64 [tokens, vocabulary]."""
        return log_softmax(self.logits(ids))

    def generate(
        self, prompt: list[int], count: int, change: Callable | None = None, ignore_eos: bool = False
    ) -> "Generated":
        """Up to `count` tokens, each the best after `change(logits, output so far)` returned new logits."""
        output, gaps, cache = [], [], None
        with self.torch.no_grad():
            for _ in range(count):
                given = prompt if cache is None else output[-1:]
                result = self.model(self.torch.tensor([given]), past_key_values=cache, use_cache=True)
                cache = result.past_key_values
                logits = result.logits[0, -1].double().numpy()
                logits = change(logits.copy(), output) if change else logits
                second, best = np.sort(logits)[-2:]
                output.append(int(logits.argmax()))
                gaps.append(float(best - second))
                if output[-1] == self.end and not ignore_eos:
                    break
        return Generated(output, gaps)


class Generated:
    """Greedy tokens of the reference with the gap between the two best logits at each."""

    def __init__(self, tokens: list[int], gaps: list[float]):
        self.tokens, self.gaps = tokens, gaps

    def check(self, tokens: list[int]) -> None:
        """Fail unless `tokens` are these, up to a place where the reference itself is undecided."""
        for place, (got, expected, gap) in enumerate(zip(tokens, self.tokens, self.gaps)):
            # Below 1e-4 the order of float32 sums decides, and the rest of the text follows from it.
            if got != expected and gap < 1e-4:
                return
            assert got == expected, f"token {place}: {tokens} instead of {self.tokens}; top-2 gap {gap:.2e}"
        assert len(tokens) == len(self.tokens)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.fixture(scope="session")
def reference(model_folder) -> Reference:
    return Reference(model_folder)
