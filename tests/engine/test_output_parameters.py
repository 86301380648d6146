"""Every parameter that decides what is returned: where text stops, logprobs, echo, streams."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest


FRANCE = "The capital of France is"
# Float32 sums in another order, through 30 layers and a log-softmax over 49152 tokens.
NEAR = 2e-4


def by_id(entry: dict[str, float]) -> dict[int, float]:
    """A map from "token_id:5" as one from 5."""
    return {int(name.removeprefix("token_id:")): value for name, value in entry.items()}


def top(logprobs: np.ndarray, count: int) -> set[int]:
    return set(np.argsort(-logprobs)[:count].tolist())


# Where the text stops


@pytest.fixture(scope="module")
def plain(server):
    """The greedy continuation of FRANCE, 24 tokens."""
    return server.choice(FRANCE, max_tokens=24)


def test_stop_string_inside_and_across_tokens(server, plain):
    text = plain["text"]
    # From the middle of one word into the next, so that no token ends where the string does.
    place = next(i for i in range(12, len(text) - 6) if text[i : i + 4].replace(" ", "x", 1).isalpha())
    stop = text[place : place + 4]
    expected = text[: text.index(stop)]
    cut = server.choice(FRANCE, max_tokens=24, stop=["never in it", stop])
    assert (cut["text"], cut["finish_reason"], cut["stop_reason"]) == (expected, "stop", stop)
    kept = server.choice(FRANCE, max_tokens=24, stop=stop, include_stop_str_in_output=True)
    assert kept["text"] == expected + stop


def test_stop_strings_leave_the_next_run_unchanged(server, plain):
    """Greedy text once changed after a batch that ended on a stop string."""
    stops = [plain["text"][10:13], plain["text"][20:23]]
    before = [server.choice(FRANCE, max_tokens=24, stop=stop)["text"] for stop in stops]
    again = [server.choice(FRANCE, max_tokens=24, stop=stop)["text"] for stop in stops]
    assert before == again
    assert server.choice(FRANCE, max_tokens=24)["text"] == plain["text"]


def test_stop_token_ids(server, plain):
    tokens = plain["token_ids"]
    place = next(i for i in range(4, 20) if tokens[i] not in tokens[:i])
    cut = server.choice(FRANCE, max_tokens=24, stop_token_ids=[tokens[place]])
    assert cut["token_ids"] == tokens[: place + 1]
    assert (cut["finish_reason"], cut["stop_reason"]) == ("stop", tokens[place])


def test_repetition_detection_ends_a_loop(server, reference):
    token = reference.ids(" Rome")[0]
    rule = {"max_pattern_size": 2, "min_count": 4}
    choice = server.choice(FRANCE, max_tokens=40, logit_bias={str(token): 100}, repetition_detection=rule)
    assert choice["finish_reason"] != "length" and set(choice["token_ids"]) == {token}
    assert 4 <= len(choice["token_ids"]) < 12


def test_special_tokens_are_skipped_or_shown(server, reference):
    body = {"max_tokens": 3, "ignore_eos": True, "logit_bias": {str(reference.end): 100}}
    assert server.choice(FRANCE, **body)["text"] == ""
    shown = server.choice(FRANCE, skip_special_tokens=False, **body)["text"]
    assert shown.replace(" ", "") == reference.tokenizer.convert_ids_to_tokens(reference.end) * 3


# Logprobs


@pytest.mark.parametrize("count", [0, 1, 3, 5, 50])
def test_logprobs_are_those_of_transformers(server, reference, count):
    ids = reference.ids(FRANCE)
    choice = server.choice(FRANCE, max_tokens=6, logprobs=count, return_tokens_as_token_ids=True)
    tokens = choice["token_ids"]
    expected = reference.logprobs(ids + tokens)[len(ids) - 1 : -1]
    values = choice["logprobs"]["token_logprobs"]
    np.testing.assert_allclose(values, expected[np.arange(6), tokens], rtol=0, atol=NEAR)
    for token, entry, row in zip(tokens, choice["logprobs"]["top_logprobs"], expected):
        given = by_id(entry)
        np.testing.assert_allclose(list(given.values()), row[list(given)], rtol=0, atol=NEAR)
        best = np.sort(row)[::-1]
        # Two tokens closer than rounding may change places at the edge of the list.
        if count == 0 or best[count - 1] - best[count] > NEAR:
            assert set(given) == top(row, count) | {token}
        assert count <= len(given) <= count + 1


def test_all_logprobs(server, reference):
    choice = server.choice(FRANCE, max_tokens=1, logprobs=-1, return_tokens_as_token_ids=True)
    given = by_id(choice["logprobs"]["top_logprobs"][0])
    assert sorted(given) == list(range(reference.vocabulary))
    values = np.array([given[token] for token in range(reference.vocabulary)])
    expected = reference.logprobs(reference.ids(FRANCE))[-1]
    np.testing.assert_allclose(values, expected, rtol=0, atol=NEAR)


def test_logprobs_are_raw(server):
    """Temperature, top_p, penalties and bias must not change the values."""
    base = server.choice(FRANCE, max_tokens=1, logprobs=5)["logprobs"]["top_logprobs"][0]
    changes = {"temperature": 0.5, "top_p": 0.0001, "repetition_penalty": 1.5, "logit_bias": {"100": 3.0}}
    changed = server.choice(FRANCE, max_tokens=1, logprobs=5, **changes)["logprobs"]["top_logprobs"][0]
    assert set(base) <= set(changed)
    np.testing.assert_allclose([changed[name] for name in base], list(base.values()), rtol=0, atol=NEAR)


def test_logprob_token_ids_beside_a_companion_with_logprobs(server, reference):
    row = reference.logprobs(reference.ids(FRANCE))[-1]
    wanted = [5, 700, 40000]
    asks = [{"logprobs": len(wanted), "logprob_token_ids": wanted}, {"logprobs": 4}]
    prompts = [FRANCE, FRANCE]
    def ask(prompt, body):
        body = {"max_tokens": 8, "return_tokens_as_token_ids": True, **body}
        return by_id(server.choice(prompt, **body)["logprobs"]["top_logprobs"][0])

    with ThreadPoolExecutor(2) as pool:
        specific, companion = pool.map(ask, prompts, asks)
    assert set(wanted) <= set(specific) and len(specific) <= len(wanted) + 1
    np.testing.assert_allclose(list(specific.values()), row[list(specific)], rtol=0, atol=NEAR)
    assert set(companion) == top(row, 4)
    np.testing.assert_allclose(list(companion.values()), row[list(companion)], rtol=0, atol=NEAR)


@pytest.mark.parametrize("count", [0, 3])
def test_prompt_logprobs_over_several_chunks(server, reference, count):
    """300 tokens are prefilled in two chunks and scored 32 rows at a time."""
    ids = (reference.ids("The quick brown fox, the lazy dog and 17 other animals met in Paris. ") * 20)[:300]
    choice = server.choice(ids, max_tokens=1, prompt_logprobs=count)
    entries = choice["prompt_logprobs"]
    assert len(entries) == len(ids) and entries[0] is None
    expected = reference.logprobs(ids)
    for place, entry in enumerate(entries[1:], start=1):
        row = expected[place - 1]
        given = {int(token): value["logprob"] for token, value in entry.items()}
        np.testing.assert_allclose(list(given.values()), row[list(given)], rtol=0, atol=NEAR)
        own = entry[str(ids[place])]
        assert own["rank"] == pytest.approx(1 + (row > row[ids[place]]).sum(), abs=1)
        assert count <= len(given) <= count + 1
        if count:
            assert row[list(given)].max() == row.max()


# Echo and streams


def test_echo(server, reference):
    ids = reference.ids(FRANCE)
    plain = server.choice(FRANCE, max_tokens=4)
    # With return_token_ids the API leaves the prompt's text out.
    echo = {"echo": True, "return_token_ids": False}
    echoed = server.choice(FRANCE, max_tokens=4, logprobs=1, **echo)
    assert echoed["text"] == FRANCE + plain["text"]
    expected = reference.logprobs(ids + plain["token_ids"])[:-1]
    values = echoed["logprobs"]["token_logprobs"]
    assert values[0] is None
    after = (ids + plain["token_ids"])[1:]
    np.testing.assert_allclose(values[1:], expected[np.arange(len(after)), after], rtol=0, atol=NEAR)
    assert server.choice(FRANCE, max_tokens=0, **echo)["text"] == FRANCE


def test_streamed_deltas_join_to_the_whole_answer(server):
    body = {"prompt": FRANCE, "temperature": 1.0, "seed": 5, "max_tokens": 20}
    whole = server.complete(FRANCE, **{k: v for k, v in body.items() if k != "prompt"})
    chunks = server.stream({**body, "stream_options": {"include_usage": True}})
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"]) == whole["choices"][0]["text"]
    assert len([c for c in chunks if c["choices"]]) > 5, "the answer came in one piece"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 20
    assert chunks[-1]["usage"]["prompt_tokens"] == whole["usage"]["prompt_tokens"]
    assert all(c.get("usage") is None for c in chunks[:-1])


def test_stream_never_shows_a_part_of_a_stop_string(server, plain):
    stop = plain["text"][15:22]
    chunks = server.stream({"prompt": FRANCE, "temperature": 0, "max_tokens": 24, "stop": stop})
    joined = "".join(c["choices"][0]["text"] for c in chunks if c["choices"])
    assert joined == plain["text"][: plain["text"].index(stop)]


def test_stream_after_a_prompt_that_ends_inside_a_character(server, reference):
    """The first delta must hold new text only, not the prompt again."""
    whole = reference.ids("Hello world \N{HOT PEPPER}")
    for cut in (1, 2):
        body = {"temperature": 0, "max_tokens": 8}
        chunks = server.stream({"prompt": whole[:-cut], **body})
        joined = "".join(c["choices"][0]["text"] for c in chunks if c["choices"])
        assert "Hello" not in chunks[0]["choices"][0]["text"]
        assert joined == server.choice(whole[:-cut], **body)["text"]


def test_chat_with_logprobs_and_stream(server, reference):
    messages = [{"role": "user", "content": "Name a colour."}]
    apply = reference.tokenizer.apply_chat_template
    prompt = apply(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = reference.generate(prompt, 12)
    body = {"messages": messages, "temperature": 0, "max_completion_tokens": 12}
    answer = server.post(
        {**body, "logprobs": True, "top_logprobs": 2, "return_token_ids": True}, "/v1/chat/completions"
    ).json()
    (choice,) = answer["choices"]
    expected.check(choice["token_ids"])
    content = choice["logprobs"]["content"]
    assert len(content) == len(choice["token_ids"]) and all(len(c["top_logprobs"]) == 2 for c in content)
    rows = reference.logprobs(prompt + choice["token_ids"])[len(prompt) - 1 : -1]
    for token, entry, row in zip(choice["token_ids"], content, rows):
        assert entry["logprob"] == pytest.approx(row[token], abs=NEAR)
    chunks = server.stream(body, "/v1/chat/completions")
    joined = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
    assert joined == choice["message"]["content"]


def test_prompts_in_a_list_and_truncation(server, reference):
    ids = reference.ids(FRANCE)
    answers = server.complete([FRANCE, "2 + 2 ="], max_tokens=4)
    assert [c["index"] for c in answers["choices"]] == [0, 1]
    assert answers["choices"][0]["text"] == server.choice(FRANCE, max_tokens=4)["text"]
    assert answers["choices"][1]["text"] == server.choice("2 + 2 =", max_tokens=4)["text"]
    cut = server.complete(FRANCE, max_tokens=4, truncate_prompt_tokens=3)
    assert cut["usage"]["prompt_tokens"] == 3
    assert cut["choices"][0]["text"] == server.choice(ids[-3:], max_tokens=4)["text"]
