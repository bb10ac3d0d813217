"""Reports as the benchmarks publish them to S3, whose client is imported here: before anything is timed."""

from __future__ import annotations

import holdfast.services.aws.client
import holdfast.services.aws.s3  # noqa: F401
from benchmarks.publications import deliver_csv

__all__ = ["deliver_csv"]
