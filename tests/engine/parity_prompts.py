"""The 64 prompts of the small model's parity test: code, prose, many scripts and repetition."""

from __future__ import annotations

import heapq
import inspect
import pydoc_data.topics

# One token, around one block of 16 and one token bucket of 128, and longer than two chunks of 256. Repeated
# lengths make larger batches of equal length for the reference, which takes most of the time.
LENGTHS = (1, 1, 15, 15, 16, 16, 17, 17, 127, 127, 128, 128, 129, 129, 129, 700)

SCRIPTS = (
    "Ένα μικρό βήμα για τον άνθρωπο. Съешь же ещё этих мягких булок. 東京は今日も雨です。 "
    "한국어 문장도 있습니다. नमस्ते दुनिया। مرحبا بالعالم. שלום עולם. Grüße aus Köln, café, naïve, Łódź. "
    "สวัสดีชาวโลก. 你好,世界!🌶🚀👩‍👩‍👧 ∑∫√≠≤ ½ ¾ — “quoted” ‘text’… "
)


def _texts() -> dict[str, str]:
    topics = pydoc_data.topics.topics
    return {
        "code": inspect.getsource(heapq),
        "prose": "\n".join(topics[name] for name in ("assignment", "execmodel", "exceptions")),
        "unicode": SCRIPTS * 8,
        "repeated": "the cat sat on the mat and " * 40 + "abcabcabc " * 400,
    }


def small_model_prompts(tokenizer) -> dict[str, list[int]]:
    """Label to token ids, for each kind of text and each entry of `LENGTHS`; `tokenizer` is a `tokenizers` one.

    Each prompt starts at another place of its text. The texts come from the standard library, so that
    they are the same everywhere with one Python version.
    """
    prompts = {}
    for kind, text in _texts().items():
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        for number, length in enumerate(LENGTHS):
            start = 13 * number + 1
            assert len(ids) >= start + length, f"the {kind} text has only {len(ids)} tokens"
            prompts[f"{kind} from token {start}, {length} tokens"] = ids[start : start + length]
    return prompts
