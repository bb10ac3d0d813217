"""What is kept of freed memory. How much that is, ``benchmarks/publish_csv.py`` measures."""

import pyarrow as pa

from holdfast.reports.memory import limit_kept_memory


def test_arrow_gives_back_what_it_frees() -> None:
    limit_kept_memory()
    limit_kept_memory()
    assert pa.default_memory_pool().backend_name == "system"
