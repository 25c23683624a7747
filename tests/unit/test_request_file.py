import json
from pathlib import Path

import pytest

from kvtrace_cli.capture.request_file import read_request_file
from kvtrace_cli.config import Role
from kvtrace_cli.errors import ConfigError


@pytest.fixture
def read(tmp_path):
    """Read lines, given as dicts or as text."""
    path = tmp_path / "requests.jsonl"

    def write_and_read(*lines):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts))
        return read_request_file(path)

    return write_and_read


def test_the_lines_of_the_readme_are_requests(read):
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith('{"')]
    assert len(read(*lines)) == 3


def ids(spec):
    return spec.prompt_token_ids


def test_a_line_is_a_request(read):
    given, made = read(
        {"prompt_token_ids": [7, 8, 9], "max_tokens": 4, "stream": True, "start_after_s": 1.5},
        "",
        {"prompt_tokens": 20, "max_tokens": 1},
    )
    assert (given.role, ids(given), given.max_tokens) == (Role.MEASURED, (7, 8, 9), 4)
    assert (given.stream, given.start_after_s) == (True, 1.5)
    assert (len(ids(made)), made.max_tokens, made.stream) == (20, 1, False)


def test_made_prompts_differ_unless_their_seed_is_the_same(read):
    line = {"prompt_tokens": 50, "max_tokens": 1}
    first, second, seeded, again = read(line, line, line | {"seed": 9}, line | {"seed": 9})
    assert len({ids(first), ids(second), ids(seeded)}) == 3
    assert ids(seeded) == ids(again)
    assert all(10 <= token < 210 for token in ids(first)), "every vocabulary has these"


def test_a_file_makes_the_same_prompts_every_time(read):
    line = {"prompt_tokens": 5, "max_tokens": 1, "seed": 1}
    assert [ids(spec) for spec in read(line)] == [(163, 80, 107, 205, 63)]


def test_prompts_share_the_prefix_of_their_seed(read):
    line = {"prompt_tokens": 50, "max_tokens": 1}
    one, other, shorter, third = read(
        line | {"shared_prefix_tokens": 40},
        line | {"shared_prefix_tokens": 40},
        line | {"shared_prefix_tokens": 16},
        line | {"shared_prefix_tokens": 40, "prefix_seed": 1},
    )
    assert ids(one)[:40] == ids(other)[:40]
    assert ids(one)[40:] != ids(other)[40:]
    assert ids(shorter)[:16] == ids(one)[:16]
    assert ids(shorter)[16:40] != ids(one)[16:40]
    assert ids(third)[:16] != ids(one)[:16]


def test_a_prompt_may_be_shared_whole(read):
    line = {"prompt_tokens": 8, "shared_prefix_tokens": 8, "max_tokens": 1}
    one, other = read(line, line)
    assert ids(one) == ids(other)


GOOD = {"prompt_tokens": 8, "max_tokens": 8}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt_tokens": 8', r"no JSON \(.*\); expected one JSON object a line"),
        ("[1]", r"found \[1\], expected a JSON object"),
        ({"max_tokens": 8}, "expected either prompt_token_ids, a list, or prompt_tokens"),
        (GOOD | {"prompt_token_ids": [1]}, "expected either prompt_token_ids"),
        ({"prompt_tokens": 8}, "no max_tokens, which every request needs"),
        (GOOD | {"max_token": 8}, "unknown field 'max_token'; expected prompt_token_ids, "),
        (GOOD | {"max_tokens": 0}, "max_tokens: found 0, expected a whole number from 1 to"),
        (GOOD | {"max_tokens": True}, "max_tokens: found true, expected a whole number"),
        (GOOD | {"max_tokens": 1.5}, "max_tokens: found 1.5, expected a whole number"),
        (GOOD | {"max_tokens": None}, "max_tokens: found null, expected a whole number"),
        (GOOD | {"prompt_tokens": 10**12}, "prompt_tokens: found 10+, expected .* to 1048576"),
        (GOOD | {"prompt_tokens": "8"}, 'prompt_tokens: found "8", expected'),
        (GOOD | {"seed": -1}, "seed: found -1, expected a whole number from 0"),
        (GOOD | {"shared_prefix_tokens": 9}, "shared_prefix_tokens: found 9, expected .* 0 to 8"),
        (GOOD | {"prefix_seed": 1}, "prefix_seed without shared_prefix_tokens"),
        (GOOD | {"stream": 1}, "stream: found 1, expected true or false"),
        (GOOD | {"start_after_s": -1}, "start_after_s: found -1, expected seconds, 0 or more"),
        ('{"prompt_tokens":8,"max_tokens":8,"start_after_s":NaN}', "start_after_s: found NaN"),
        ({"prompt_token_ids": [], "max_tokens": 1}, r"found \[\], expected a list of one"),
        ({"prompt_token_ids": 5, "max_tokens": 1}, "prompt_token_ids: found 5, expected a list"),
        ({"prompt_token_ids": [1, -2], "max_tokens": 1}, "found -2 in it, expected token ids"),
        ({"prompt_token_ids": [1, True], "max_tokens": 1}, "found true in it, expected token"),
        ({"prompt_token_ids": [1], "max_tokens": 1, "seed": 2}, "seed is of no use beside"),
        ('{"prompt_tokens":8,"max_tokens":8,"max_tokens":9}', "'max_tokens' is there twice"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(read, line, message):
    with pytest.raises(ConfigError, match=rf"requests\.jsonl: line 2: .*{message}"):
        read(GOOD, line)


def test_a_long_value_is_cut_in_the_message(read):
    with pytest.raises(ConfigError) as caught:
        read(GOOD | {"max_tokens": list(range(1000))})
    assert len(str(caught.value)) < 300


def test_an_empty_file_is_no_file_of_requests(read):
    with pytest.raises(ConfigError, match="found no request, expected one JSON object a line"):
        read("", "  ")


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.jsonl: cannot be read \(No such file"):
        read_request_file(tmp_path / "none.jsonl")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary: no UTF-8 text"):
        read_request_file(tmp_path / "binary")
