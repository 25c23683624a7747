import sys

import pytest

from kvtrace_cli.capture import libraries
from kvtrace_cli.capture.libraries import (
    CUPTI_INJECTOR_NAME,
    CUPTI_NAMES,
    SANITIZER_NAME,
    find_cupti_library,
    find_emulator_library,
    find_injector,
    find_sanitizer_library,
    sanitizer_directories,
)
from kvtrace_cli.errors import ConfigError


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """Neither a Python package nor a toolkit: what there is, a test puts there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    monkeypatch.setattr(libraries.glob, "glob", lambda _pattern: [])
    return tmp_path


def put(directory):
    directory.mkdir(parents=True)
    (directory / SANITIZER_NAME).touch()
    return directory / SANITIZER_NAME


def test_an_injector_without_a_stamp_is_found_all_the_same(tmp_path):
    path = tmp_path / "i.so"
    path.write_bytes(b"\x7fELF")
    found = find_injector(path)
    assert (found.path, found.abi_version, found.build) == (path, None, None)


def test_the_build_stamp_of_an_injector_is_read_without_loading_it(tmp_path):
    path = tmp_path / "i.so"
    path.write_bytes(b"\x7fELF\0\0kvtrace-injector abi=7 cuda=13.0 sm=90,120\0\xff")
    found = find_injector(path)
    assert found.abi_version == 7
    assert found.build == "kvtrace-injector abi=7 cuda=13.0 sm=90,120"


def test_the_working_directory_is_never_searched_for_the_injector(tmp_path, monkeypatch):
    (tmp_path / libraries.INJECTOR_NAME).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(libraries, "__file__", str(tmp_path / "a/b/c.py"))
    with pytest.raises(ConfigError, match="`make injector`"):
        find_injector(None)


def test_a_given_path_must_exist(tmp_path):
    with pytest.raises(ConfigError, match=r"--injector .*no such file"):
        find_injector(tmp_path / "no.so")
    with pytest.raises(ConfigError, match=r"--sanitizer-library .*no such file"):
        find_sanitizer_library(tmp_path / "no.so")


@pytest.mark.parametrize("layout", ["nvidia/cu13/lib", "nvidia/cu13/compute-sanitizer"])
def test_the_package_is_found_in_either_layout(nowhere, layout):
    path = put(nowhere / "site" / layout)
    assert find_sanitizer_library(None, {}) == path


@pytest.mark.parametrize("layout", ["compute-sanitizer", "extras/compute-sanitizer"])
def test_the_toolkit_of_cuda_home_is_found(nowhere, layout):
    path = put(nowhere / "toolkit" / layout)
    assert find_sanitizer_library(None, {"CUDA_HOME": str(nowhere / "toolkit")}) == path


def test_the_package_comes_before_the_toolkit(nowhere):
    put(nowhere / "toolkit/compute-sanitizer")
    path = put(nowhere / "site/nvidia/cu13/lib")
    assert find_sanitizer_library(None, {"CUDA_HOME": str(nowhere / "toolkit")}) == path


def test_the_library_is_found_where_the_tool_really_lives(nowhere):
    path = put(nowhere / "real")
    tool = nowhere / "real/compute-sanitizer"
    tool.write_text("#!/bin/sh\n")
    tool.chmod(0o755)
    (nowhere / "bin").mkdir()
    (nowhere / "bin/compute-sanitizer").symlink_to(tool)
    assert find_sanitizer_library(None, {"PATH": str(nowhere / "bin")}) == path


def test_a_missing_library_says_how_to_get_it(nowhere):
    assert nowhere
    with pytest.raises(ConfigError, match=r"kvtrace\[gpu\].*--sanitizer-library"):
        find_sanitizer_library(None, {"PATH": "/none"})


def test_empty_import_paths_are_left_out():
    """An empty entry means the working directory, which has no say."""
    assert all(path.is_absolute() for path in sanitizer_directories([""], {"PATH": "/none"}))


def test_the_emulator_is_the_one_given_or_the_packages(tmp_path):
    given = tmp_path / "e.so"
    with pytest.raises(ConfigError, match=r"e\.so; build it with `make emulator`"):
        find_emulator_library(given)
    given.touch()
    assert find_emulator_library(given) == given


def put_cupti(directory, name):
    directory.mkdir(parents=True)
    (directory / name).touch()
    return directory / name


@pytest.mark.parametrize("layout", ["nvidia/cu13/lib", "nvidia/cuda_cupti/lib"])
def test_the_cupti_package_is_found_in_either_layout(nowhere, layout):
    path = put_cupti(nowhere / "site" / layout, CUPTI_NAMES[0])
    assert find_cupti_library(None, {}) == path


@pytest.mark.parametrize("layout", ["extras/CUPTI/lib64", "lib64"])
@pytest.mark.parametrize("name", CUPTI_NAMES)
def test_the_cupti_of_a_toolkit_is_found(nowhere, layout, name):
    path = put_cupti(nowhere / "toolkit" / layout, name)
    assert find_cupti_library(None, {"CUDA_HOME": str(nowhere / "toolkit")}) == path


def test_the_cupti_package_comes_before_the_toolkit(nowhere):
    put_cupti(nowhere / "toolkit/lib64", CUPTI_NAMES[0])
    path = put_cupti(nowhere / "site/nvidia/cu13/lib", CUPTI_NAMES[0])
    assert find_cupti_library(None, {"CUDA_HOME": str(nowhere / "toolkit")}) == path


def test_without_a_cupti_the_message_says_how_to_get_one(nowhere, monkeypatch):
    monkeypatch.setattr(libraries, "_toolkits", lambda _environment: [])
    with pytest.raises(ConfigError, match=r"install nvidia-cuda-cupti==13\.0"):
        find_cupti_library(None, {})
    with pytest.raises(ConfigError, match=r"--cupti-library .*no such file"):
        find_cupti_library(nowhere / "no.so")


def test_the_cupti_observer_says_how_it_is_built(nowhere, monkeypatch):
    monkeypatch.setattr(libraries, "__file__", str(nowhere / "a/b/c.py"))
    with pytest.raises(ConfigError, match="`make cupti`"):
        find_injector(None, CUPTI_INJECTOR_NAME, "cupti")
