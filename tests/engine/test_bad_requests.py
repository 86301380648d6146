"""What the API refuses: HTTP 400 with the name of the field, while other requests go on undisturbed."""

from concurrent.futures import ThreadPoolExecutor

import pytest


VOCABULARY = 49152
LIMIT = 1024  # --max-model-len of the server
BAD = {"prompt": "Hello", "max_tokens": 4}

# Field that the error must name, and what is wrong with it.
VALUES = [
    ("temperature", -1),
    ("temperature", 3),
    ("temperature", "hot"),
    ("top_p", 0),
    ("top_p", 2),
    ("top_k", -5),
    ("top_k", 1.5),
    ("min_p", 2),
    ("min_p", -0.1),
    ("presence_penalty", 2.5),
    ("frequency_penalty", -3),
    ("repetition_penalty", 0),
    ("n", 0),
    ("n", -1),
    ("n", 10**6),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", 10**6),
    ("min_tokens", -1),
    ("min_tokens", 5),
    ("seed", 2**64),
    ("seed", "x"),
    ("logprobs", -2),
    ("logprobs", VOCABULARY + 1),
    ("prompt_logprobs", -2),
    ("prompt_logprobs", VOCABULARY + 1),
    ("logprob_token_ids", [VOCABULARY]),
    ("logit_bias", {str(VOCABULARY): 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"five": 1}),
    ("logit_bias", {"5": "much"}),
    ("allowed_token_ids", [VOCABULARY]),
    ("allowed_token_ids", [-1]),
    ("allowed_token_ids", []),
    ("stop_token_ids", ["x"]),
    ("stop_token_ids", [VOCABULARY]),
    ("stop", ""),
    ("stop", 5),
    ("bad_words", [""]),
    ("structured_outputs", {"regex": "[0-9"}),
    ("structured_outputs", {"json": {"type": 5}}),
    ("structured_outputs", {"choice": ["a"], "regex": "b"}),
    ("response_format", {"type": "nothing"}),
    ("forced_token", {"vllm_xargs": {"forced_token": -7}}),
    ("truncate_prompt_tokens", -2),
    ("stream_options", {"include_usage": True}),
    ("prompt", ""),
    ("prompt", []),
    ("prompt", [5, VOCABULARY]),
    ("prompt", [-1]),
    ("prompt", None),
]
# Fields that the messages call by other names.
OTHER_WORDS = {
    "prompt": ("prompt", "token id", "Token id"),
    "structured_outputs": ("structured", "regex", "schema", "Grammar"),
}


def body_of(field: str, value) -> dict:
    return {**BAD, **(value if field == "forced_token" else {field: value})}


@pytest.mark.parametrize(("field", "value"), VALUES, ids=[f"{name}={value!r:.40}" for name, value in VALUES])
def test_value_out_of_range(server, field, value):
    response = server.post(body_of(field, value))
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == 400
    assert any(word in str(error) for word in OTHER_WORDS.get(field, (field,))), error


def test_prompt_length_against_the_limit(server):
    """A prompt may be at most one token shorter than the limit, since one token must fit behind it."""
    longest = [300] * (LIMIT - 1)
    assert server.complete(longest, max_tokens=1)["usage"]["prompt_tokens"] == LIMIT - 1
    # At the limit itself the message is about the room left for max_tokens.
    assert server.post({**BAD, "prompt": [300] * LIMIT, "max_tokens": 1}).status_code == 400
    for count in (LIMIT + 1, 40 * LIMIT):
        response = server.post({**BAD, "prompt": [300] * count, "max_tokens": 1})
        assert response.status_code == 400
        assert str(LIMIT) in response.text and str(count) in response.text
    # The limit also ends an answer.
    answer = server.complete(longest, max_tokens=2, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 1 and answer["choices"][0]["finish_reason"] == "length"
    assert server.client.get("/v1/models").json()["data"][0]["max_model_len"] == LIMIT


def test_unknown_model_path_and_body(server):
    response = server.post({**BAD, "model": "another"})
    assert response.status_code == 404 and "another" in response.text
    assert server.client.post("/v1/nothing", json={}).status_code == 404
    for content in (b"{not json", b"", b"[1]", b'"text"', b"\xff\xfe"):
        response = server.client.post(
            "/v1/completions", content=content, headers={"Content-Type": "application/json"}
        )
        assert response.status_code == 400, (content, response.text)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("message", {"messages": []}),
        ("role", {"messages": [{"role": 5, "content": "x"}]}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": -2}),
        ("logprobs", {"top_logprobs": 2}),
        ("top_p", {"top_p": 0}),
        ("max_tokens", {"max_completion_tokens": 0}),
    ],
)
def test_chat_value_out_of_range(server, field, change):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **change}
    response = server.post(body, "/v1/chat/completions")
    assert response.status_code == 400, response.text
    assert field in response.text


def test_bad_requests_leave_running_ones_alone(server, reference):
    prompt = "Once upon a time there was a small robot who"
    expected = reference.generate(reference.ids(prompt), 120, ignore_eos=True)
    body = {"max_tokens": 120, "ignore_eos": True}
    with ThreadPoolExecutor(9) as pool:
        running = pool.submit(server.choice, prompt, **body)
        answers = list(pool.map(lambda item: server.post(body_of(*item)).status_code, VALUES * 2))
        undisturbed = running.result()
    assert set(answers) == {400}
    expected.check(undisturbed["token_ids"])
    assert server.metric("vllm:num_requests_running") == 0
