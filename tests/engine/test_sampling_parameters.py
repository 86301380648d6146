"""Every parameter that decides which token comes next; each test fails if its parameter is ignored."""

import json
import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import log_softmax


FRANCE = "The capital of France is"
LOOP = "one two three one two three one two three one two"
DRAWS = 96


def draws(server, prompt: str, count: int = DRAWS, **body) -> Counter:
    """How often each token came first in `count` draws."""
    choices = server.complete(prompt, n=count, max_tokens=1, **body)["choices"]
    assert len(choices) == count
    return Counter(choice["token_ids"][0] for choice in choices)


def next_probabilities(reference, prompt: str, temperature: float) -> np.ndarray:
    """Probability of each token after `prompt`."""
    return np.exp(log_softmax(reference.logits(reference.ids(prompt))[-1] / temperature))


def assert_only(drawn: Counter, allowed: np.ndarray, probabilities: np.ndarray) -> None:
    """All drawn tokens are allowed, and ignoring the rule would have drawn another (odds above 1e6)."""
    assert set(drawn) <= set(np.flatnonzero(allowed))
    assert len(drawn) > 1, "one token only: nothing was drawn at random"
    assert probabilities[allowed].sum() ** sum(drawn.values()) < 1e-6, "this prompt cannot show the rule"


# Temperature and truncation


def test_temperature_zero_is_greedy(server, reference):
    expected = reference.generate(reference.ids(FRANCE), 16)
    expected.check(server.choice(FRANCE, temperature=0)["token_ids"])


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_gives_its_distribution(server, reference, temperature):
    p = next_probabilities(reference, FRANCE, temperature)
    top = int(p.argmax())
    drawn = draws(server, FRANCE, temperature=temperature)
    # Five standard deviations of a binomial: a right sampler fails once in two million runs.
    slack = 5 * math.sqrt(p[top] * (1 - p[top]) / DRAWS)
    assert abs(drawn[top] / DRAWS - p[top]) < slack
    other = next_probabilities(reference, FRANCE, 3 / (1 + temperature))[top]
    assert temperature == 2.0 or abs(other - p[top]) > 0.01


def test_default_top_k_is_all(server):
    """The default once became 1 in a related project, so that temperature had no effect."""
    assert len(draws(server, FRANCE, 20, temperature=1.5)) > 3


def test_top_p_draws_from_the_nucleus(server, reference):
    p = next_probabilities(reference, LOOP[:20], 2.0)
    order = np.argsort(-p)
    nucleus = np.zeros(p.shape, bool)
    # The smallest set of probability 0.5, and one token of slack for rounding at its edge.
    nucleus[order[: int(np.searchsorted(np.cumsum(p[order]), 0.5)) + 2]] = True
    assert_only(draws(server, LOOP[:20], temperature=2.0, top_p=0.5), nucleus, p)


def test_top_k_draws_from_the_best_k(server, reference):
    p = next_probabilities(reference, FRANCE, 2.0)
    best = np.zeros(p.shape, bool)
    best[np.argsort(-p)[:3]] = True
    assert_only(draws(server, FRANCE, temperature=2.0, top_k=3), best, p)


def test_top_k_of_one_is_greedy(server, reference):
    expected = reference.generate(reference.ids(FRANCE), 8)
    expected.check(server.choice(FRANCE, temperature=2.0, top_k=1, max_tokens=8)["token_ids"])


def test_top_k_and_top_p_together(server, reference):
    p = next_probabilities(reference, FRANCE, 2.0)
    best = np.argsort(-p)[:50]
    inside = np.cumsum(p[best] / p[best].sum())
    allowed = np.zeros(p.shape, bool)
    allowed[best[: int(np.searchsorted(inside, 0.6)) + 2]] = True
    assert_only(draws(server, FRANCE, temperature=2.0, top_k=50, top_p=0.6), allowed, p)


def test_min_p_is_relative_to_the_best_token(server, reference):
    p = next_probabilities(reference, FRANCE, 2.0)
    # A hair below the limit, since the server computes in float32.
    assert_only(draws(server, FRANCE, temperature=2.0, min_p=0.1), p > 0.0999 * p.max(), p)


# Penalties


def penalise(prompt, presence=0.0, frequency=0.0, repetition=1.0):
    """The three penalties on NumPy logits, in the order in which the documentation gives them."""

    def change(logits, output):
        seen = np.unique(prompt + output)
        logits[seen] = np.where(logits[seen] > 0, logits[seen] / repetition, logits[seen] * repetition)
        tokens, counts = np.unique(np.array(output, int), return_counts=True)
        logits[tokens] -= frequency * counts + presence
        return logits

    return change


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence": 2.0},
        {"presence": -1.5},
        {"frequency": 1.2},
        {"frequency": -0.5},
        {"repetition": 1.5},
        {"repetition": 0.8},
        {"presence": 0.7, "frequency": 0.4, "repetition": 1.1},
    ],
    ids=str,
)
def test_penalties_change_greedy_text_as_defined(server, reference, penalties):
    text = LOOP if penalties.get("repetition", 1.0) >= 1 and "presence" not in penalties else FRANCE
    prompt = reference.ids(text)
    expected = reference.generate(prompt, 24, penalise(prompt, **penalties))
    plain = reference.generate(prompt, 24)
    assert expected.tokens != plain.tokens, "this prompt cannot show the penalty"
    body = {f"{name}_penalty": value for name, value in penalties.items()}
    expected.check(server.choice(text, max_tokens=24, **body)["token_ids"])


def test_penalty_of_one_request_spares_its_companions(server, reference):
    plain = reference.generate(reference.ids(LOOP), 24)
    bodies = [{"frequency_penalty": 2.0}, {}, {"repetition_penalty": 1.9}, {}]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda body: server.choice(LOOP, max_tokens=24, **body)["token_ids"], bodies))
    plain.check(answers[1])
    plain.check(answers[3])
    assert answers[0] != plain.tokens and answers[2] != plain.tokens


# Tokens forced and forbidden


def test_logit_bias_is_added_to_the_logits(server, reference):
    ids = reference.ids(FRANCE)
    logits = reference.logits(ids)[-1]
    second, best = np.argsort(logits)[-2:]
    gap = float(logits[best] - logits[second])
    # 0.01 on either side of the gap: a bias that is scaled, rounded or applied twice shows.
    for bias, expected in ((gap - 0.01, best), (gap + 0.01, second)):
        choice = server.choice(FRANCE, max_tokens=1, logit_bias={str(second): bias})
        assert choice["token_ids"] == [expected]
    bias = {str(best): -100, str(second): -100}
    third = int(np.argsort(logits)[-3])
    assert server.choice(FRANCE, max_tokens=1, logit_bias=bias)["token_ids"] == [third]


def test_allowed_token_ids(server, reference):
    ids = reference.ids(FRANCE)
    allowed = [reference.ids(word)[0] for word in (" London", " Berlin", " Rome", ",", " and")]

    def change(logits, output):
        mask = np.ones(logits.shape, bool)
        mask[allowed] = False
        logits[mask] = -np.inf
        return logits

    expected = reference.generate(ids, 8, change)
    expected.check(server.choice(FRANCE, max_tokens=8, allowed_token_ids=allowed)["token_ids"])


def test_bad_words(server, reference):
    """One word of one token, and one of several of which only the last may be barred."""
    ids = reference.ids(FRANCE)
    bad = [[reference.ids(space + "Paris")[0] for space in ("", " ")]]
    single = [[token] for token in bad[0]]
    plain = reference.generate(ids, 12, lambda logits, output: barred(logits, output, single))
    pairs = [plain.tokens[i : i + 2] for i in range(11)]
    two_words = next(p for p in pairs if all(len(reference.text([t]).strip()) > 1 for t in p))
    words = reference.text(two_words).strip()
    sequences = single + [reference.ids(words), reference.ids(" " + words)]
    expected = reference.generate(ids, 12, lambda logits, output: barred(logits, output, sequences))
    assert expected.tokens != plain.tokens
    expected.check(server.choice(FRANCE, max_tokens=12, bad_words=["Paris", words])["token_ids"])


def barred(logits: np.ndarray, output: list[int], sequences: list[list[int]]) -> np.ndarray:
    """`logits` where no token completes one of `sequences`."""
    for sequence in sequences:
        start = sequence[:-1]
        if not start or output[-len(start) :] == start:
            logits[sequence[-1]] = -np.inf
    return logits


# Length


@pytest.mark.parametrize("count", [1, 7])
def test_max_tokens(server, count):
    answer = server.complete(FRANCE, max_tokens=count)
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(answer["choices"][0]["token_ids"]) == answer["usage"]["completion_tokens"] == count


def test_min_tokens_then_the_end(server, reference):
    """Exactly 4 tokens that are not the end, then the end, which bias makes the best at every step."""
    bias = {str(reference.end): 100}
    tokens = server.choice(FRANCE, max_tokens=12, min_tokens=4, logit_bias=bias)["token_ids"]
    assert len(tokens) == 5 and reference.end not in tokens[:4] and tokens[4] == reference.end
    assert server.choice(FRANCE, max_tokens=12, logit_bias=bias)["token_ids"] == [reference.end]


def test_min_tokens_holds_back_stop_token_ids_too(server, reference):
    stop = reference.ids(" Rome")[0]
    body = {"max_tokens": 12, "stop_token_ids": [stop], "logit_bias": {str(stop): 100}}
    assert server.choice(FRANCE, **body)["token_ids"] == [stop]
    tokens = server.choice(FRANCE, min_tokens=3, **body)["token_ids"]
    assert stop not in tokens[:3] and tokens[3:] == [stop]


def test_min_tokens_yields_to_a_grammar_with_nothing_else(server):
    choice = server.choice(FRANCE, min_tokens=8, max_tokens=12, structured_outputs={"choice": ["Rome"]})
    assert choice["text"] == "Rome" and choice["finish_reason"] == "stop"


def test_ignore_eos(server, reference):
    body = {"max_tokens": 6, "logit_bias": {str(reference.end): 100}}
    ignored = server.choice(FRANCE, ignore_eos=True, **body)
    assert ignored["token_ids"] == [reference.end] * 6 and ignored["finish_reason"] == "length"
    obeyed = server.choice(FRANCE, **body)
    assert obeyed["token_ids"] == [reference.end] and obeyed["finish_reason"] == "stop"


# Seeds and several answers


def test_seed_decides_the_text(server):
    body = {"temperature": 1.5, "max_tokens": 12}
    texts = [server.choice(FRANCE, seed=seed, **body)["text"] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    unseeded = {server.choice(FRANCE, **body)["text"] for _ in range(3)}
    assert len(unseeded) == 3


def test_seed_gives_the_same_text_in_company(server):
    def ask(seed, **body):
        return server.choice(FRANCE, seed=seed, temperature=1.2, max_tokens=16, **body)["text"]

    alone = {seed: ask(seed) for seed in (1, 2)}
    with ThreadPoolExecutor(7) as pool:
        noise = [pool.submit(ask, None, presence_penalty=0.5 * (i % 2)) for i in range(3)]
        same = {pool.submit(ask, seed): seed for seed in (2, 1, 2, 1)}
        assert all(answer.result() == alone[seed] for answer, seed in same.items())
        assert len({answer.result() for answer in noise}) == 3


def test_n_with_a_seed_gives_different_reproducible_answers(server):
    body = {"n": 2, "seed": 1, "temperature": 1.0, "max_tokens": 16}
    first, second = ([c["text"] for c in server.complete(FRANCE, **body)["choices"]] for _ in range(2))
    assert first == second and first[0] != first[1]


def test_n_answers_are_numbered(server):
    answer = server.complete(FRANCE, n=5, temperature=1.0, max_tokens=4)
    assert [choice["index"] for choice in answer["choices"]] == list(range(5))
    assert answer["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in answer["choices"])


def test_beam_search_finds_a_likelier_text_than_greedy(server, reference):
    ids = reference.ids(FRANCE)

    def score(tokens):
        rows = reference.logprobs(ids + tokens)[len(ids) - 1 : -1]
        return float(rows[np.arange(len(tokens)), tokens].sum())

    body = {"use_beam_search": True, "max_tokens": 5, "ignore_eos": True}
    beams = [reference.ids(c["text"]) for c in server.complete(FRANCE, n=3, **body)["choices"]]
    scores = [score(tokens) for tokens in beams]
    assert len(set(map(tuple, beams))) == 3 and scores == sorted(scores, reverse=True)
    # Slack for float32: the same text may come out on both sides.
    assert scores[0] >= score(reference.generate(ids, 5).tokens) - 1e-3


# Grammars and custom processors

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Rome"]},
        "rank": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "rank"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {"json": SCHEMA}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}}},
    ],
    ids=["structured_outputs", "response_format"],
)
def test_json_schema(server, body):
    choice = server.choice("Describe Paris. ", max_tokens=60, temperature=1.0, seed=1, **body)
    value = json.loads(choice["text"])
    assert set(value) == {"city", "rank"}
    assert value["city"] in ("Paris", "Rome") and value["rank"] in range(10)


def test_regex_choice_and_grammar(server):
    regex = "[0-9]{3}-[a-c]"
    assert re.fullmatch(regex, server.choice(FRANCE, structured_outputs={"regex": regex})["text"])
    words = ["Madrid", "Lisbon"]
    assert server.choice(FRANCE, structured_outputs={"choice": words})["text"] in words
    grammar = 'root ::= "yes" " " "no"'
    assert server.choice(FRANCE, structured_outputs={"grammar": grammar})["text"] == "yes no"


def test_grammar_of_one_request_spares_its_companions(server, reference):
    expected = reference.generate(reference.ids(FRANCE), 12)
    bodies = [{"structured_outputs": {"regex": "[0-9]{12}"}}, {}] * 3
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda body: server.choice(FRANCE, max_tokens=12, **body), bodies))
    for body, answer in zip(bodies, answers):
        if body:
            # The last of the digits may be cut by max_tokens where a token holds one digit.
            assert re.fullmatch("[0-9]{1,12}", answer["text"])
        else:
            expected.check(answer["token_ids"])


def test_custom_logits_processor(server, reference):
    rome, berlin = (reference.ids(word)[0] for word in (" Rome", " Berlin"))
    expected = reference.generate(reference.ids(FRANCE), 4)
    bodies = [{"vllm_xargs": {"forced_token": rome}}, {}, {"vllm_xargs": {"forced_token": berlin}}]
    with ThreadPoolExecutor(3) as pool:
        asked = pool.map(lambda body: server.choice(FRANCE, max_tokens=4, **body)["token_ids"], bodies)
        answers = list(asked)
    assert answers[0] == [rome] * 4 and answers[2] == [berlin] * 4
    expected.check(answers[1])
