"""Every exported column is described, in docs/export.md as in the code, and exported as such."""

import re
from pathlib import Path

import polars as pl
import pytest
from decoded_trace import export_source

from kvtrace_cli.analysis.export_columns import NO_UNIT, TABLES, schema_of, type_name
from kvtrace_cli.analysis.export_slice_schema import DETAILS, LEVELS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/export.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("table", TABLES)
def test_the_document_has_each_column_with_type_unit_and_meaning(table):
    section = TEXT.split(f"\n### {table}\n")[1].split("\n## ")[0].split("\n### ")[0]
    documented = re.findall(r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", section, re.MULTILINE)
    assert documented == [
        (name, type_name(column), column.unit, column.meaning)
        for name, column in TABLES[table].items()
    ]


def test_the_document_knows_every_detail_and_level_of_a_timeline():
    section = TEXT.split("\n## The Perfetto timeline\n")[1]
    assert all(f"`{name}`" in section for name in DETAILS)
    assert all(level in section for level in LEVELS)


@pytest.mark.parametrize("table", TABLES)
def test_a_time_names_its_clock_and_a_number_of_something_its_unit(table):
    for name, column in TABLES[table].items():
        assert column.meaning
        if name.endswith("_ns"):
            clock = "GPU globaltimer" if "globaltimer" in name else "CLOCK_MONOTONIC"
            assert column.unit == f"ns, {clock}"
        elif name.endswith(("_blocks", "tokens")):
            assert column.unit != NO_UNIT


@pytest.mark.parametrize("table", TABLES)
def test_what_is_exported_has_those_columns_and_types(table):
    source = export_source(ROOT / "tests/data/h200-writes")
    for frame in source.slices_of(table):
        assert frame.schema == pl.Schema(schema_of(TABLES[table]))
        assert frame.height
