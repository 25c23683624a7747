"""Sequences written short: runs, periods, samples."""

import pytest

from kvtrace_cli.analysis.kernel_families import UNKNOWN_FAMILY, kernel_family
from kvtrace_cli.analysis.outlines import digest_of, period_of, runs_of, taken_evenly


def test_neighbours_that_are_alike_are_one_run():
    assert runs_of("aabba") == [("a", 2), ("b", 2), ("a", 1)]
    assert runs_of("") == []


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("abab", ("ab", 2)),
        ("aaaa", ("a", 4)),
        ("abc", ("abc", 1)),
        ("aba", ("aba", 1)),
        ("", ("", 1)),
    ],
)
def test_the_shortest_part_that_repeats(items, expected):
    assert period_of(items) == expected


def test_digests_tell_values_apart():
    assert digest_of([1, 2]) == digest_of([1, 2]) != digest_of([12])


def test_samples_are_taken_evenly_with_both_ends():
    assert taken_evenly(range(3), 5) == [0, 1, 2]
    assert taken_evenly(range(101), 5) == [0, 25, 50, 75, 100]


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("reshape_and_cache_flash_kernel", "flash"),
        ("concat_and_cache_mla_rope_fused_kernel", "MLA, fused with RoPE"),
        ("fusedKimiK3MLAKeyConcatKVCacheInsert", "Kimi-K3 MLA, fused"),
        ("my_kernel", UNKNOWN_FAMILY),
    ],
)
def test_families_of_kernels(name, family):
    assert kernel_family(name) == family
