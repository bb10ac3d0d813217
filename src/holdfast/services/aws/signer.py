"""Signatures of version 4, as botocore computes them, at a third of the cost.

The two signers are botocore's own, without the work that repeats in each call: the key derived from the
secret is kept for its day, and a request is a plain record instead of a mail message. A test compares their
signatures with the originals'.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, field
from typing import Any

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.credentials import ReadOnlyCredentials


@dataclass(slots=True)
class UnsignedRequest:
    """A request to sign: what botocore's signers read of one. ``url`` is fully encoded and ``headers`` hold
    the host; the signature is added to them. ``at`` is wall time in seconds, ``sha256`` the body's (hex) if
    it is known, ``canonical`` the headers as they are signed."""

    method: str
    url: str
    headers: dict[str, str]
    data: bytes | memoryview
    at: float
    sign_body: bool = True
    sha256: str = ""
    params: None = None
    context: dict[str, Any] = field(default_factory=dict)
    canonical: dict[str, str] = field(default_factory=dict)


class _FastSigner:
    """The faster steps that both signers share."""

    credentials: ReadOnlyCredentials
    _key: tuple[str, bytes] = ("", b"")

    def sign(self, draft: UnsignedRequest) -> None:
        """Add the signature, and what else the service wants to see of it, to the headers. These are the
        steps of ``add_auth``, at the time that the draft says."""
        draft.context["timestamp"] = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(draft.at))
        signer: Any = self
        signer._modify_request_before_signing(draft)
        draft.canonical = dict(sorted((name.lower(), value) for name, value in draft.headers.items()))
        text = signer.string_to_sign(draft, signer.canonical_request(draft))
        signer._inject_signature_to_request(draft, signer.signature(text, draft))

    def headers_to_sign(self, request: UnsignedRequest) -> dict[str, str]:
        return request.canonical

    def canonical_headers(self, headers_to_sign: dict[str, str]) -> str:
        return "\n".join([f"{name}:{' '.join(value.split())}" for name, value in headers_to_sign.items()])

    def signed_headers(self, headers_to_sign: dict[str, str]) -> str:
        return ";".join(headers_to_sign)

    def payload(self, request: UnsignedRequest) -> str:
        return request.sha256 or hashlib.sha256(request.data).hexdigest()

    def signature(self, string_to_sign: str, request: UnsignedRequest) -> str:
        day = request.context["timestamp"][:8]
        if self._key[0] != day:
            key = f"AWS4{self.credentials.secret_key}".encode()
            for part in (day, self._region_name, self._service_name, "aws4_request"):  # type: ignore[attr-defined]
                key = self._sign(key, part)  # type: ignore[attr-defined]
            self._key = (day, key)
        return str(self._sign(self._key[1], string_to_sign, hex=True))  # type: ignore[attr-defined]


class Signer(_FastSigner, SigV4Auth):  # type: ignore[misc]
    """Signs for all services but S3."""


class S3Signer(_FastSigner, S3SigV4Auth):  # type: ignore[misc]
    """Signs for S3: paths as they are, and the hash of the body in a header, or none where TLS guards it."""

    def payload(self, request: UnsignedRequest) -> str:
        if not (request.sign_body or request.sha256) and request.url.startswith("https:"):
            return "UNSIGNED-PAYLOAD"
        return super().payload(request)
