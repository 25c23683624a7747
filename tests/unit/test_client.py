import httpx
import pytest

from kvtrace_cli.capture.client import EngineClient
from kvtrace_cli.config import RequestSpec, Role, TimeLimits

SPEC = RequestSpec(Role.MEASURED, (10, 11), 3)
STREAMED = RequestSpec(Role.MEASURED, (10, 11), 3, stream=True)


def send(handler, spec=SPEC):
    client = EngineClient(1, "m", TimeLimits())
    client._http = httpx.Client(base_url="http://x", transport=httpx.MockTransport(handler))
    return client.send(4, spec)


def answer(tokens, usage=None):
    body = {"choices": [{"token_ids": tokens}]}
    return body | ({"usage": {"completion_tokens": usage}} if usage is not None else {})


def stream(*lines):
    return httpx.Response(200, text="".join(f"data: {line}\n\n" for line in lines))


def test_a_request_says_all_that_makes_its_length_certain():
    seen = []

    def handler(request):
        seen.append(request)
        return httpx.Response(200, json=answer([1, 2, 3], 3))

    record = send(handler)
    assert record.error is None
    assert record.returned_token_ids == (1, 2, 3)
    assert record.host_monotonic_begin_ns <= record.host_monotonic_end_ns
    assert seen[0].headers["X-Request-Id"] == record.request_id == "kvtrace-4"
    body = seen[0].read().decode()
    for part in ('"prompt":[10,11]', '"ignore_eos":true', '"temperature":0', '"max_tokens":3'):
        assert part in body


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (httpx.Response(404, text="no model"), "HTTP 404: no model"),
        (httpx.Response(200, json=answer([1, 2], 2)), "usage says 2 tokens, expected 3"),
        (httpx.Response(200, json=answer([1, 2], 3)), "2 token ids came back, expected 3"),
        (httpx.Response(200, json=answer(None, 3)), "0 token ids came back, expected 3"),
        (httpx.Response(200, json={"choices": [{}]}), "unreadable answer (KeyError"),
        (httpx.Response(200, text="[]"), "unreadable answer (TypeError"),
        (httpx.Response(200, text="x" * 1000), "x" * 300),
    ],
)
def test_a_wrong_answer_is_named(response, message):
    record = send(lambda _request: response)
    assert message in record.error
    assert record.http_status == response.status_code
    assert len(record.error) < 450


def test_an_engine_that_is_gone_is_named():
    def handler(_request):
        raise httpx.ConnectError("refused")

    record = send(handler)
    assert (record.http_status, record.error) == (None, "connection failed: refused")


def test_tokens_of_one_chunk_share_their_time():
    """With async scheduling a chunk may bring more than one token."""
    last = '{"choices":[],"usage":{"completion_tokens":3}}'
    record = send(
        lambda _request: stream(
            '{"choices":[{"token_ids":[5]}]}', '{"choices":[{"token_ids":[6,7]}]}', last, "[DONE]"
        ),
        STREAMED,
    )
    assert record.error is None
    assert record.returned_token_ids == (5, 6, 7)
    assert len(record.token_host_monotonic_ns) == 3
    assert record.token_gaps_ms[1] == 0


@pytest.mark.parametrize("error", ['{"message":"EngineDead","code":500}', '"EngineDead"'])
def test_an_error_inside_a_stream_keeps_the_tokens_before_it(error):
    """So vLLM 0.32 says that its engine died: the HTTP status is long sent."""
    record = send(
        lambda _request: stream('{"choices":[{"token_ids":[5]}]}', f'{{"error":{error}}}'),
        STREAMED,
    )
    assert record.returned_token_ids == (5,)
    assert record.error == "HTTP 200, then the engine says: EngineDead"


def test_without_streaming_there_are_no_token_times():
    record = send(lambda _request: httpx.Response(200, json=answer([1, 2, 3], 3)))
    assert record.token_host_monotonic_ns is None
    assert record.token_gaps_ms is None
