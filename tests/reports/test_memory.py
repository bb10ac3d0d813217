"""What is kept of freed memory. How much that is, ``benchmarks/publish_csv.py`` measures."""

import pyarrow as pa

from holdfast.reports.memory import keep_little


def test_arrow_gives_back_what_it_frees() -> None:
    keep_little()
    keep_little()
    assert pa.default_memory_pool().backend_name == "system"
