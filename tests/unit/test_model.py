import json

import pytest

from kvtrace_cli.capture.model import resolve_model
from kvtrace_cli.config import Weights
from kvtrace_cli.errors import ConfigError


@pytest.fixture(autouse=True)
def _empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["Qwen3-14B", "Qwen/Qwen3-14B"])
def test_qwen_stands_for_its_hub_name(name):
    model = resolve_model(name, Weights.AUTO)
    assert (model.source, model.served_name) == ("Qwen/Qwen3-14B", "Qwen3-14B")


@pytest.mark.parametrize("name", ["Qwen3-14B", "Qwen/Qwen3-14B"])
def test_dummy_qwen_needs_no_download(name):
    model = resolve_model(name, Weights.DUMMY)
    with open(f"{model.source}/config.json") as file:  # noqa: PTH123  as the engine opens it
        assert json.load(file)["num_hidden_layers"] == 40


def test_a_directory_comes_before_the_hub(tmp_path):
    (tmp_path / "Qwen3-14B").mkdir()
    (tmp_path / "Qwen3-14B/config.json").write_text("{}")
    model = resolve_model("Qwen3-14B", Weights.AUTO)
    assert model.source == str(tmp_path / "Qwen3-14B")


@pytest.mark.parametrize("text", [None, "{", ""])
def test_a_directory_without_a_readable_config_is_refused(tmp_path, text):
    (tmp_path / "m").mkdir()
    if text is not None:
        (tmp_path / "m/config.json").write_text(text)
    with pytest.raises(ConfigError, match=r"m: config.json cannot be read"):
        resolve_model("m", Weights.DUMMY)


@pytest.mark.parametrize(
    ("name", "weights", "message"),
    [
        ("", Weights.AUTO, "empty name"),
        ("llama", Weights.AUTO, "no such directory, and not a hub name"),
        ("./a/b", Weights.AUTO, "no such directory"),
        ("/no/where", Weights.AUTO, "no such directory"),
        ("owner/other", Weights.DUMMY, "knows Qwen3-14B only"),
    ],
)
def test_a_name_that_stands_for_nothing_is_refused(name, weights, message):
    with pytest.raises(ConfigError, match=message):
        resolve_model(name, weights)
