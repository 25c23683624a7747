"""The emulator behaves as the binding table of a real GPU says, seen without the injector."""

import json
import subprocess

import pytest
from emulated import MISALIGNED_ADDRESS, build

ALL = 40 * 7


def events_of(binding, graph):
    program = build("plain").binding_table
    done = subprocess.run([program, binding, graph], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("binding", ["target_function", "each_launch_alone"])
def test_an_unbound_function_of_a_patched_module_faults_under_replay(binding):
    found = events_of(binding, "same_module")
    assert (found["error"], found["events"]) == (MISALIGNED_ADDRESS, 1)


@pytest.mark.parametrize("binding", ["target_function", "each_launch_alone"])
def test_neighbours_in_an_unpatched_module_are_no_danger(binding):
    found = events_of(binding, "other_module")
    assert (found["error"], found["events"]) == (0, ALL)


@pytest.mark.parametrize("graph", ["same_module", "other_module", "memset_nodes"])
def test_binding_every_function_records_everything(graph):
    found = events_of("every_function", graph)
    assert (found["error"], found["events"]) == (0, ALL)


def test_in_a_graph_of_kernels_alone_the_last_nodes_data_counts_for_its_whole_replay():
    found = events_of("each_launch_and_every_function", "same_module")
    assert (found["error"], found["events"], found["own_data"]) == (0, ALL, 7)


def test_in_a_graph_with_other_nodes_each_node_has_its_own_data():
    found = events_of("each_launch_and_every_function", "memset_nodes")
    assert (found["error"], found["events"], found["own_data"]) == (0, ALL, ALL)
