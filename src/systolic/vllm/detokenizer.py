"""Streaming text after a prompt that ends inside a character.

A token may hold a part of a character's bytes.  When such tokens end a prompt, upstream's stream has
nothing to compare with and its first delta repeats the whole prompt.  Here they are the first tokens of
the stream instead: they show nothing until the answer completes the character.
"""

from __future__ import annotations

import tokenizers.decoders

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# A character has at most four bytes, hence at most three tokens of it without its end.
LONGEST_TAIL = 3


def incomplete_tail(tokenizer, ids: list[int]) -> int:
    """How many of the last tokens of ``ids`` hold only the beginning of a character; 0 when none do."""
    for count in range(LONGEST_TAIL + 1):
        head = ids[max(len(ids) - count - 2 * LONGEST_TAIL, 0) : len(ids) - count]
        if not tokenizer.decode(head, skip_special_tokens=False).endswith(INCOMPLETE):
            return count
    return 0  # bytes that are no text at all: there is no character to complete


def starting_inside_a_character(original):
    """``FastIncrementalDetokenizer.__init__`` for every prompt."""

    def __init__(self, tokenizer, request):
        original(self, tokenizer, request)
        ids = request.prompt_token_ids
        count = incomplete_tail(self.tokenizer, ids) if ids else 0
        if count:
            self.stream = tokenizers.decoders.DecodeStream(
                ids=ids[:-count], skip_special_tokens=self.skip_special_tokens
            )
            for token in ids[-count:]:
                self._protected_step(token)

    return __init__
