"""Which block index is the row: known for some kernels, and said to be unknown for the others."""

import pytest
from builders import Trace, attributed, started, step

from kvtrace_cli.analysis.kernel_names import kernel_base_name, kernel_title
from kvtrace_cli.analysis.model import RowCounts
from kvtrace_cli.analysis.row_mapping import row_axis

FLASH = (
    "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_LNS_18Fp8KVCacheDataTypeE0EEEvPKT_"
)


@pytest.mark.parametrize(
    ("name", "title", "base"),
    [
        (FLASH, "vllm::reshape_and_cache_flash_kernel", "reshape_and_cache_flash_kernel"),
        ("_ZN4vllmL3abcEv", "vllm::abc", "abc"),
        ("void vllm::abc<int, vllm::T>(int)", None, "abc"),
        ("_fused_norm_rope_kernel", "_fused_norm_rope_kernel", "_fused_norm_rope_kernel"),
        ("", "", ""),
        (None, None, None),
    ],
)
def test_names_as_people_know_them(name, title, base):
    assert kernel_title(name) == (name if title is None else title)
    assert kernel_base_name(name) == base


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        (FLASH, "x"),
        ("reshape_and_cache_kernel_flash", "x"),
        ("_fused_norm_rope_kernel", "y"),
        ("fusedDeepseekV4FullCacheKernel", None),
        ("my_reshape_and_cache_flash_kernel", None),
        (None, None),
    ],
)
def test_the_rows_of_kernels(name, axis):
    assert row_axis(name) == axis


def counted(tmp_path, grid, lines):
    trace = Trace()
    trace.enter_all(trace.plain(grid, step_stamp=1))
    steps = [started(), step(1, requests=[["a", 2, 0]])]
    return attributed(tmp_path, trace, steps=steps, journal_lines=lines)[1]


def named(name):
    return [{"event": "function_bound", "context_index": 0, "kernel_slot": 0, "name": name}]


def test_rows_in_the_second_block_index(tmp_path):
    found = counted(tmp_path, (4, 3, 1), named("_fused_norm_rope_kernel"))
    assert found.whole_life == RowCounts(owned=8, padding=4)
    assert found.requests[0].entered == 2


def test_several_blocks_a_row(tmp_path):
    found = counted(tmp_path, (3, 2, 1), named("_reshape_cache_per_token_head"))
    assert found.whole_life == RowCounts(owned=4, padding=2)


@pytest.mark.parametrize("name", ["fusedDeepseekV4FullCacheKernel", None])
def test_rows_that_are_not_known_have_no_known_owner(tmp_path, name):
    found = counted(tmp_path, (3, 1, 1), named(name))
    assert found.whole_life == RowCounts(unknown=3)
    assert found.requests[0].entered == 0
    (note,) = found.notes
    assert note == (
        f"Which rows these kernels' blocks are is not known: {name or 'a kernel without a name'}."
    )
