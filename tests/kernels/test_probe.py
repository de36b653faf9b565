"""What `probe` reports of the kernels in use."""

from __future__ import annotations

from pilotfish import kernels


def test_rows_are_independent_in_every_format_and_growth_begins_at_one():
    found = kernels.probe(width=128, outputs=64, repeats=1)

    assert found.rows_are_independent
    assert {"affine4", "nvfp4", "bfloat16"} <= {f.format for f in found.formats}
    assert all(f.growth[1] == 1 and len(f.growth) == 9 for f in found.formats)
