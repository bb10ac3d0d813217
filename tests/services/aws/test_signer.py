"""The lean signers sign as botocore's do."""

import datetime as dt
import time

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from holdfast.services.aws.signer import S3Signer, Signer, UnsignedRequest

NOW = 1_700_000_000.0
PATHS = ["/", "/frames/a%20b.jpg", "/a//b/../c", "/x?prefix=a%2Fb&list-type=2", "/x?versioning", "/*~(')"]


def original(
    kind: type[SigV4Auth], credentials: ReadOnlyCredentials, draft: UnsignedRequest
) -> dict[str, str]:
    request = AWSRequest(draft.method, draft.url, headers=dict(draft.headers), data=draft.data)
    request.context.update(draft.context)
    kind(credentials, "s3" if kind is S3SigV4Auth else "sqs", "eu-west-1").add_auth(request)
    return dict(request.headers)


@pytest.fixture(autouse=True)
def stopped_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = dt.datetime.fromtimestamp(NOW, dt.UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: now)


@pytest.mark.parametrize("token", [None, "token" * 30])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("lean", [Signer, S3Signer])
@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:4566", "https://service.eu-west-1.amazonaws.com"])
def test_a_request_is_signed_as_botocore_signs_it(
    lean: type[Signer | S3Signer], path: str, token: str | None, endpoint: str
) -> None:
    credentials = ReadOnlyCredentials("AKIDEXAMPLE", "secret", token, None)
    host = endpoint.partition("//")[2]
    headers = {"Host": host, "Content-Type": "text/plain", "X-Amz-Meta-Name": "two  spaces"}
    draft = UnsignedRequest("POST", endpoint + path, headers, b"body", NOW)
    expected = original(lean.__bases__[1], credentials, draft)
    lean(credentials, "s3" if lean is S3Signer else "sqs", "eu-west-1").sign(draft)
    assert draft.headers == expected


def test_a_key_is_kept_for_its_day_only() -> None:
    credentials = ReadOnlyCredentials("AKIDEXAMPLE", "secret", None, None)
    signer = Signer(credentials, "sqs", "eu-west-1")
    day = 86_400.0
    signatures = []
    for at in (NOW, NOW + day, NOW):
        draft = UnsignedRequest("POST", "https://x/", {"Host": "x"}, b"", at)
        signer.sign(draft)
        assert time.strftime("%Y%m%d", time.gmtime(at)) in draft.headers["Authorization"]
        signatures.append(draft.headers["Authorization"])
    assert signatures[0] == signatures[2] != signatures[1]


def test_leaves_the_body_out_where_tls_guards_it() -> None:
    signer = S3Signer(ReadOnlyCredentials("AKIDEXAMPLE", "secret", None, None), "s3", "eu-west-1")
    for url, hashed in (("https://b/k", False), ("http://b/k", True)):
        draft = UnsignedRequest("PUT", url, {"Host": "b"}, b"frame", NOW, sign_body=False)
        signer.sign(draft)
        assert (draft.headers["X-Amz-Content-SHA256"] != "UNSIGNED-PAYLOAD") == hashed
        known = UnsignedRequest("PUT", url, {"Host": "b"}, b"frame", NOW, sign_body=False, sha256="5a" * 32)
        signer.sign(known)
        assert known.headers["X-Amz-Content-SHA256"] == "5a" * 32
