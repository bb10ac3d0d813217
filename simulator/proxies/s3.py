"""Faults in front of S3."""

from __future__ import annotations

from collections.abc import Mapping

from yarl import URL

from simulator.proxies.http import HttpAnswer, HttpFaults


class S3Faults(HttpFaults):
    """A proxy in front of a server that speaks S3's protocol, with the bucket as the path's first segment.

    Calls are named as S3 names them: ``GetObject``, ``PutObject``, ``UploadPart`` and so on.
    """

    throttled = "SlowDown"
    failed = "InternalError"

    def operation(self, method: str, path: str, headers: Mapping[str, str]) -> str:
        return named(method, path)

    def error(self, status: int, code: str, text: str) -> HttpAnswer:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
        return HttpAnswer(status, {"Content-Type": "application/xml"}, body.encode())


def named(method: str, path: str) -> str:
    """What S3 calls a request; the bare method if it isn't one of those known here."""
    url = URL(path, encoded=True)
    if "/" not in url.raw_path.strip("/"):
        calls = {"PUT": "CreateBucket", "GET": "ListObjectsV2", "HEAD": "HeadBucket"}
    elif "uploads" in url.query:
        calls = {"POST": "CreateMultipartUpload"}
    elif "uploadId" in url.query:
        calls = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
    else:
        calls = {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}
    return calls.get(method, method)
