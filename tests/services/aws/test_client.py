"""The client keeps to the conventions of AWS: where, as whom, how often, and what it says of failures."""

import asyncio
import datetime as dt
import re
import ssl
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer, TestServer
from botocore.exceptions import ClientError
from botocore.session import Session

from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.ports.meter import Meter
from holdfast.services.aws.client import PAUSE_MAX_S, AwsClient, AwsRefused
from simulator.servers import certificate
from tests.services.aws.conftest import QuickClock

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
MakeClient = Callable[..., AwsClient]

OK = 200, '{"done": true}'
DENIED = 403, '{"__type": "com.amazon.coral.service#AccessDeniedException", "message": "not you"}'
THROTTLED = 400, '{"__type": "com.amazonaws.sqs#RequestThrottled", "message": "slower"}'
BROKEN = 500, '{"__type": "com.amazonaws.sqs#InternalError"}'
DROPPED = 0, ""


class Service:
    """A service on loopback with scripted answers, of which the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, str]] = [OK]
        self.requests: list[web.BaseRequest] = []
        self.headers: dict[str, str] = {}
        self.server = RawTestServer(self._serve)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.requests.append(request)
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if not status:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPOk
        return web.Response(status=status, text=body, headers=self.headers)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    service = Service()
    await service.server.start_server()
    yield service
    await service.server.close()


@pytest.fixture
def quick() -> QuickClock:
    return QuickClock()


@pytest.fixture
def meter() -> Meter:
    return Meter()


@pytest.fixture
async def make_client(quick: QuickClock, meter: Meter) -> AsyncIterator[MakeClient]:
    made: list[AwsClient] = []

    def make(service: str = "sqs", **options: Any) -> AwsClient:
        made.append(AwsClient(service, quick, meter, **options))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def client(make_client: MakeClient, service: Service) -> AwsClient:
    return make_client(region="eu-west-1", endpoint=service.url)


async def call(client: AwsClient, operation: str = "ReceiveMessage", timeout_s: float = 10) -> bytes:
    return (await client.request(operation, resource="frames", body=b"{}", timeout_s=timeout_s)).body


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, name: str = "config") -> None:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    monkeypatch.setenv("AWS_CONFIG_FILE" if name == "config" else "AWS_SHARED_CREDENTIALS_FILE", str(path))


# --- where


@pytest.mark.slow
async def test_calls_the_endpoint_of_the_region(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="AWS_REGION"):
        await make_client().place()
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    assert str((await make_client().place()).endpoint) == "https://sqs.eu-north-1.amazonaws.com"
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    assert (await make_client().place()).region == "eu-west-3"
    given = await make_client(region="cn-north-1").place()
    assert (given.region, given.endpoint.host) == ("cn-north-1", "sqs.cn-north-1.amazonaws.com.cn")
    assert given.tls is not None
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    assert (await make_client(region="us-east-1").place()).endpoint.host == "sqs-fips.us-east-1.amazonaws.com"
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "false")
    monkeypatch.setenv("AWS_USE_DUALSTACK_ENDPOINT", "true")
    assert (await make_client(region="us-east-1").place()).endpoint.host == "sqs.us-east-1.api.aws"


async def test_the_settings_of_aws_say_where_the_endpoint_is(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    async def host() -> str | None:
        return (await make_client(endpoint="http://given:1").place()).endpoint.host

    assert await host() == "given"
    configure(
        monkeypatch,
        tmp_path,
        """
        [default]
        endpoint_url = http://profile:1
        [profile other]
        services = local
        [services local]
        sqs =
          endpoint_url = http://services:1
        """,
    )
    assert await host() == "profile"
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert await host() == "services"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://all:1")
    assert await host() == "all"
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", "http://sqs:1")
    assert await host() == "sqs"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert await host() == "given"


async def test_a_profile_that_is_not_there_is_said(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(ConfigError, match="nobody"):
        await make_client(region="eu-west-1").place()


async def test_trusts_the_authorities_that_the_settings_name(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trusted, key = certificate.make(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(trusted, key)
    service = Service()
    await service.server.start_server(ssl=context)
    url = str(service.server.make_url(""))
    assert url.startswith("https:")
    with pytest.raises(Unavailable, match="certificate"):
        await call(make_client(region="eu-west-1", endpoint=url))
    monkeypatch.setenv("AWS_CA_BUNDLE", str(trusted))
    assert await call(make_client(region="eu-west-1", endpoint=url))
    await service.server.close()


async def test_goes_through_the_proxy_that_the_environment_names(
    make_client: MakeClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", service.url)
    await call(make_client(region="eu-west-1", endpoint="http://sqs.invalid"))
    assert service.requests[0].headers["Host"] == "sqs.invalid"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    await call(make_client(region="eu-west-1", endpoint=service.url))
    assert service.requests[1].headers["Host"] == service.url.removeprefix("http://")


# --- as whom


def signer(service: Service, number: int = -1) -> tuple[str, str | None]:
    """Who signed a call, and with what token."""
    headers = service.requests[number].headers
    found = re.search(r"Credential=([^/]+)/\d{8}/eu-west-1/sqs/aws4_request", headers["Authorization"])
    assert found
    return found[1], headers.get("X-Amz-Security-Token")


async def test_signs_with_what_the_environment_says(client: AwsClient, service: Service) -> None:
    await call(client)
    assert signer(service) == ("AKIDEXAMPLE", None)


async def test_signs_with_what_the_profile_says(
    client: AwsClient, service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    without_keys(monkeypatch)
    configure(
        monkeypatch,
        tmp_path,
        """
        [work]
        aws_access_key_id = AKIDPROFILE
        aws_secret_access_key = secret
        aws_session_token = token
        """,
        "credentials",
    )
    monkeypatch.setenv("AWS_PROFILE", "work")
    await call(client)
    assert signer(service) == ("AKIDPROFILE", "token")


async def test_missing_credentials_are_a_config_error(
    client: AwsClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_keys(monkeypatch)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        await call(client)
    assert service.requests == []


class Metadata:
    """The metadata service of an instance that has a role."""

    def __init__(self) -> None:
        self.issued = 0
        self.lives_s = 3600.0
        self.status = 200
        app = web.Application()
        app.router.add_put("/latest/api/token", self._token)
        app.router.add_get("/latest/meta-data/iam/security-credentials/", self._role)
        app.router.add_get("/latest/meta-data/iam/security-credentials/worker", self._credentials)
        app.router.add_get("/container", self._credentials)
        self.server = TestServer(app)

    async def _token(self, request: web.Request) -> web.Response:
        return web.Response(text="session")

    async def _role(self, request: web.Request) -> web.Response:
        return web.Response(text="worker")

    async def _credentials(self, request: web.Request) -> web.Response:
        if self.status != 200:
            return web.Response(status=self.status)
        self.issued += 1
        expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=self.lives_s)
        return web.json_response(
            {
                "Code": "Success",
                "AccessKeyId": f"ASIA{self.issued}",
                "SecretAccessKey": "secret",
                "Token": f"token-{self.issued}",
                "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ"),
            }
        )


@pytest.fixture
async def metadata(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Metadata]:
    metadata = Metadata()
    await metadata.server.start_server()
    without_keys(monkeypatch)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "false")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", str(metadata.server.make_url("")))
    yield metadata
    await metadata.server.close()


@pytest.mark.slow
async def test_signs_with_the_role_of_the_instance(
    client: AwsClient, service: Service, metadata: Metadata
) -> None:
    await asyncio.gather(*(call(client) for _ in range(5)))
    assert {signer(service, i) for i in range(5)} == {("ASIA1", "token-1")}
    assert metadata.issued == 1


@pytest.mark.slow
async def test_credentials_that_expire_are_refreshed_once_for_all(
    client: AwsClient, service: Service, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.aws.credentials.CHECK_S", 0.0)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", str(metadata.server.make_url("/container")))
    metadata.lives_s = 30.0  # too little to be used: callers must wait for new ones
    await call(client)
    issued, metadata.lives_s = metadata.issued, 3600.0
    begin = len(service.requests)
    await asyncio.gather(*(call(client) for _ in range(5)))
    last = f"ASIA{metadata.issued}"
    assert metadata.issued == issued + 1
    assert {signer(service, i)[0] for i in range(begin, begin + 5)} == {last}
    await call(client)
    assert signer(service)[0] == last


@pytest.mark.slow
async def test_an_outage_of_what_issues_credentials_is_no_wrong_setting(
    client: AwsClient, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", str(metadata.server.make_url("/container")))
    metadata.status = 500
    with pytest.raises(Unavailable, match="can't get AWS credentials now"):
        await call(client)
    metadata.status = 200
    await call(client)


@pytest.mark.slow
async def test_credentials_issued_expired_point_to_the_clock(
    client: AwsClient, metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.services.aws.credentials.CHECK_S", 0.0)
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", str(metadata.server.make_url("/container")))
    metadata.lives_s = -3600.0
    with pytest.raises(Unavailable, match="clock"):
        await call(client)


@pytest.mark.parametrize(
    "code, status, kind",
    [("Throttling", 400, Unavailable), ("Internal", 503, Unavailable), ("AccessDenied", 403, ConfigError)],
)
async def test_who_issues_credentials_may_refuse_or_be_busy(
    client: AwsClient, monkeypatch: pytest.MonkeyPatch, code: str, status: int, kind: type[Exception]
) -> None:
    def refuse(session: Session) -> None:
        said = {"Error": {"Code": code, "Message": "no"}, "ResponseMetadata": {"HTTPStatusCode": status}}
        raise ClientError(said, "AssumeRole")

    monkeypatch.setattr(Session, "get_credentials", refuse)
    with pytest.raises(kind, match=code):
        await call(client)


async def test_expired_credentials_are_found_anew(
    client: AwsClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await call(client)
    service.answers = [(400, '{"__type": "ExpiredTokenException"}'), OK]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDNEW")
    await call(client)
    assert [signer(service, i)[0] for i in range(3)] == ["AKIDEXAMPLE", "AKIDEXAMPLE", "AKIDNEW"]
    service.answers = [(400, '{"__type": "ExpiredTokenException"}')]
    with pytest.raises(AwsRefused, match="credentials \\(found by env\\) are not accepted"):
        await call(client)


def without_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")


# --- what comes of it


async def test_a_missing_permission_is_named(client: AwsClient, service: Service, meter: Meter) -> None:
    service.answers = [DENIED]
    with pytest.raises(ConfigError, match=r"on frames .* sqs:SendMessage \(.*not you"):
        await call(client, "SendMessageBatch")
    assert meter.calls == {("sqs", "SendMessageBatch"): 1}


async def test_credentials_that_are_refused_are_named(client: AwsClient, service: Service) -> None:
    service.answers = [(403, '{"__type": "InvalidClientTokenId"}')]
    with pytest.raises(ConfigError, match=r"credentials \(found by env\)"):
        await call(client)


async def test_a_token_that_the_service_repeats_is_told_to_nobody(
    client: AwsClient, service: Service
) -> None:
    said = (
        "The request signature we calculated does not match. The Canonical String for this request should"
        " have been 'POST\\nx-amz-security-token:geheim'"
    )
    service.answers = [(403, f'{{"__type": "SignatureDoesNotMatch", "message": "{said}"}}')]
    with pytest.raises(ConfigError, match=r"does not match\.\)") as refused:
        await call(client)
    assert "geheim" not in str(refused.value)


async def test_a_key_that_may_not_be_used_is_named(client: AwsClient, service: Service) -> None:
    for code in ("KMS.AccessDeniedException", "com.amazonaws.sqs#KmsAccessDenied"):
        service.answers = [(400, f'{{"__type": "{code}"}}')]
        with pytest.raises(ConfigError, match=r"kms:GenerateDataKey and kms:Decrypt"):
            await call(client)


async def test_errors_of_s3_are_refused_with_their_code_and_text(
    make_client: MakeClient, service: Service
) -> None:
    client = make_client("s3", region="eu-west-1", endpoint=service.url)
    service.answers = [(404, "<Error><Code>NoSuchKey</Code><Message>it&apos;s gone</Message></Error>")]
    with pytest.raises(AwsRefused, match="NoSuchKey: it's gone") as refused:
        await call(client, "GetObject")
    assert (refused.value.code, refused.value.answer.status) == ("NoSuchKey", 404)
    service.answers = [(403, "")]
    with pytest.raises(AwsRefused, match="s3:GetObject"):
        await call(client, "HeadObject")


async def test_a_throttled_call_is_tried_again_after_a_pause(
    client: AwsClient, service: Service, meter: Meter, quick: QuickClock
) -> None:
    service.answers = [THROTTLED, (503, ""), OK]
    assert await call(client) == OK[1].encode()
    assert meter.calls == {("sqs", "ReceiveMessage"): 3}
    assert len(quick.slept) == 2
    assert all(0 <= slept <= 1.0 * 2**tried for tried, slept in enumerate(quick.slept, 1))
    service.answers = [THROTTLED]
    with pytest.raises(Unavailable, match="RequestThrottled: slower"):
        await call(client)


async def test_the_pauses_between_tries_differ_and_grow(client: AwsClient, quick: QuickClock) -> None:
    for tried in (1, 4):
        for _ in range(40):
            await client.pause(tried, throttled=True)
    first, fourth = quick.slept[:40], quick.slept[40:]
    assert len(set(first)) > 30, "those who were throttled together don't come back together"
    assert max(fourth) > 3 * max(first) > 0


async def test_says_when_the_outcome_is_unknown(client: AwsClient, service: Service) -> None:
    service.answers = [BROKEN, OK]
    await call(client)
    service.answers = [BROKEN, THROTTLED]
    with pytest.raises(OutcomeUnknown, match="sqs:ReceiveMessage on frames may have been done"):
        await call(client)
    service.answers = [DROPPED]
    with pytest.raises(OutcomeUnknown):
        await call(client)
    service.answers = [DROPPED, OK]
    await call(client)


async def test_a_refused_connection_is_unavailable_after_all_tries(
    make_client: MakeClient, service: Service, meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = service.url
    client = make_client(region="eu-west-1", endpoint=url)
    await service.server.close()
    with pytest.raises(Unavailable, match="was not done"):
        await call(client)
    assert meter.calls == {("sqs", "ReceiveMessage"): 3}
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with pytest.raises(Unavailable):
        await call(make_client(region="eu-west-1", endpoint=url))
    assert meter.calls == {("sqs", "ReceiveMessage"): 5}


async def test_a_try_takes_no_longer_than_it_may(make_client: MakeClient) -> None:
    never = asyncio.Event()

    async def hang(request: web.Request) -> web.StreamResponse:
        await never.wait()
        raise web.HTTPOk

    app = web.Application()
    app.router.add_post("/", hang)
    async with TestServer(app) as server:
        hanging = make_client(region="eu-west-1", endpoint=str(server.make_url("/")))
        with pytest.raises(OutcomeUnknown, match=r"no answer in 0\.05 s"):
            await call(hanging, timeout_s=0.05)
        never.set()


async def test_a_clock_that_is_wrong_is_corrected(client: AwsClient, service: Service) -> None:
    theirs = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    service.headers = {"Date": format_datetime(theirs, usegmt=True)}
    service.answers = [(403, "<Error><Code>RequestTimeTooSkewed</Code></Error>"), OK]
    await call(client)
    assert service.requests[1].headers["X-Amz-Date"][:11] == theirs.strftime("%Y%m%dT%H")
    service.answers = [(403, '{"__type": "InvalidSignatureException"}')]
    with pytest.raises(AwsRefused, match="credentials"):
        await call(client)
    assert len(service.requests) == 3


async def test_a_clock_that_is_wrong_is_corrected_for_all_calls_under_way(make_client: MakeClient) -> None:
    now = dt.datetime.now(dt.UTC)
    date = format_datetime(now + dt.timedelta(hours=1), usegmt=True)
    oldest = (now + dt.timedelta(minutes=30)).strftime("%Y%m%dT%H%M%SZ")
    all_came, signed = asyncio.Event(), list[str]()

    async def answer(request: web.BaseRequest) -> web.Response:
        signed.append(request.headers["X-Amz-Date"])
        if len(signed) == 3:
            all_came.set()
        await all_came.wait()
        if request.headers["X-Amz-Date"] >= oldest:
            return web.Response(text=OK[1])
        text = "<Error><Code>RequestTimeTooSkewed</Code></Error>"
        return web.Response(status=403, text=text, headers={"Date": date})

    async with RawTestServer(answer) as server:
        client = make_client(region="eu-west-1", endpoint=str(server.make_url("")))
        await asyncio.gather(*(call(client) for _ in range(3)))
    assert [at >= oldest for at in signed] == [False] * 3 + [True] * 3


async def test_a_closed_client_sends_nothing(client: AwsClient, service: Service) -> None:
    await call(client)
    await client.close()
    with pytest.raises(Unavailable, match="closed"):
        await call(client)
    assert len(service.requests) == 1


async def test_calls_share_one_kept_connection(client: AwsClient, service: Service) -> None:
    for _ in range(5):
        await call(client)
    assert len({id(request.transport) for request in service.requests}) == 1


async def test_no_pause_is_longer_than_a_limit(client: AwsClient, quick: QuickClock) -> None:
    for tried in range(1, 20):
        await client.pause(tried, throttled=True)
    assert max(quick.slept) <= PAUSE_MAX_S


async def test_an_answer_to_a_read_that_is_lost_hides_no_effect(client: AwsClient, service: Service) -> None:
    service.answers = [DROPPED]
    with pytest.raises(Unavailable, match="was not done"):
        await client.request("HeadObject", resource="b/k", method="HEAD")
