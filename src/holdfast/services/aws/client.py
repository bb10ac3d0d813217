"""A client of one AWS service over kept-alive connections. botocore finds endpoint and credentials and
defines the signature; aiohttp sends.

A call that the service answers with an error raises AwsRefused, unless another try may help. Tries follow the
AWS conventions (``AWS_MAX_ATTEMPTS``, three by default), with exponential pauses and full jitter. After the
last try, the error says what may have happened: Unavailable if no try can have had an effect, OutcomeUnknown
if any may have had one.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import html
import itertools
import os
import re
import ssl
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Protocol

import aiohttp
import botocore.credentials
import msgspec
from botocore.config import Config
from botocore.configprovider import ConfiguredEndpointProvider
from botocore.credentials import ReadOnlyCredentials
from botocore.exceptions import BotoCoreError, NoRegionError
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader, create_loader
from botocore.session import Session
from botocore.utils import get_environ_proxies
from yarl import URL

from holdfast.common.http_errors import describe_http_error
from holdfast.common.record import UNREADABLE
from holdfast.errors import ConfigError, OutcomeUnknown, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.meter import Meter
from holdfast.services.aws.body import UploadBody
from holdfast.services.aws.credentials import AwsCredentials
from holdfast.services.aws.signer import S3Signer, Signer, UnsignedRequest

AT_ONCE_BYTES = 2**20
"""Larger bodies are written in pieces, so that other work in the event loop isn't blocked."""

CONNECT_S = 5.0
ANSWER_S = 30.0
KEEP_ALIVE_S = 20.0
TRIES = 3
PAUSE_S = 0.05
THROTTLED_PAUSE_S = 1.0
PAUSE_MAX_S = 20.0
SKEW_S = 240.0
"""Difference of clocks in seconds that explains a refused signature: services accept signatures up to five
minutes old."""

ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
    "s3:HeadObject": "s3:GetObject",
    "s3:CreateMultipartUpload": "s3:PutObject",
    "s3:UploadPart": "s3:PutObject",
    "s3:CompleteMultipartUpload": "s3:PutObject",
    "s3:HeadBucket": "s3:ListBucket",
    "s3:ListObjectsV2": "s3:ListBucket",
}
"""The IAM action of each operation that has another name."""

KMS_ACTIONS = "the IAM actions kms:GenerateDataKey and kms:Decrypt"

READING = frozenset({"GET", "HEAD"})
"""Methods that never have an effect."""

THROTTLED = re.compile("Throttl|TooManyRequests|LimitExceeded|SlowDown|PriorRequestNotComplete|OverLimit")
TRANSIENT = re.compile("RequestTimeout|InternalError|InternalFailure")
DENIED = re.compile("AccessDenied")
EXPIRED = re.compile("ExpiredToken")
SKEWED = re.compile("RequestTimeTooSkewed|RequestExpired|RequestInTheFuture|Signature")
UNTRUSTED = re.compile(
    "InvalidClientTokenId|UnrecognizedClient|InvalidAccessKeyId|InvalidSecurity|InvalidToken|ExpiredToken"
    "|AuthFailure|NotAuthorized|MissingAuthenticationToken|Signature|OptInRequired|RequestExpired|Skewed"
)
ECHO = "The Canonical String"
"""The text with which a service begins to repeat the request, which holds the session's token."""

STATUS_CODES = {403: "AccessDenied", 404: "NotFound"}
"""The error code of each status for answers without a body, such as after HEAD."""


class AwsRefused(ConfigError):
    """A service refused a call, and trying again doesn't help. ``code`` is the service's own code without its
    prefix; ``answer`` is the whole answer."""

    def __init__(self, text: str, code: str, answer: AwsResponse) -> None:
        super().__init__(text)
        self.code = code
        self.answer = answer


@dataclass(frozen=True, slots=True)
class AwsResponse:
    """The answer of a service. Names of ``headers`` are compared without case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Reader(Protocol):
    """Reads the body of an answer as it arrives, in one try or several."""

    def headers(self) -> Mapping[str, str]:
        """Return the headers of the next try, which may ask only for the missing part."""

    async def read(self, response: aiohttp.ClientResponse) -> None:
        """Read an answer with a status below 300. After an OSError or an error of aiohttp there is another
        try; other errors go to the caller."""


@dataclass(frozen=True, slots=True)
class ResolvedEndpoint:
    """The endpoint of a service, as botocore resolved it. ``config`` holds the user's further AWS settings,
    such as ``config.s3``. ``tls`` is None for plain HTTP."""

    endpoint: URL
    region: str
    config: Config
    tries: int
    tls: ssl.SSLContext | None
    proxy: str | None


@dataclass(frozen=True, slots=True)
class Keys:
    """Credentials that were given explicitly."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


class TryFailure(enum.Enum):
    """The cause of a failed try."""

    THROTTLED = "throttled"
    UNREACHED = "unreached"
    BROKEN = "broken"  # it may still have had an effect
    EXPIRED = "expired"
    SKEWED = "skewed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed try: its cause, code and text, and the service's answer if there was one."""

    cause: TryFailure
    code: str
    why: str
    answer: AwsResponse | None = None


class AwsClient:
    """A client of one service.

    Nothing is resolved or opened before the first call, and then in a thread where it may block.

    Args:
        service: ``sqs`` or ``s3``.
        clock: time for signatures, pauses and their jitter.
        meter: counts every try that goes out.
        region: the region; by default that of ``AWS_REGION``, or of the profile.
        endpoint: where to call unless ``AWS_ENDPOINT_URL_<SERVICE>``, ``AWS_ENDPOINT_URL`` or the profile
            say; by default the service's own.
        profile: the profile in the AWS config files; by default that of ``AWS_PROFILE``.
        keys: the credentials, instead of searched ones.
    """

    def __init__(
        self,
        service: str,
        clock: Clock,
        meter: Meter | None = None,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        profile: str | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.service = service
        self._clock = clock
        self._meter = meter or Meter()
        self._region = region
        self._endpoint = endpoint
        self._profile = profile
        self._keys = keys
        self._credentials = AwsCredentials(clock, self._find_credentials)
        self._signers: dict[str, Signer | S3Signer] = {}
        self._skew_s = 0.0
        self._place: ResolvedEndpoint | None = None
        self._placing: asyncio.Task[ResolvedEndpoint] | None = None
        self._http: aiohttp.ClientSession | None = None
        self._closed = False

    async def place(self) -> ResolvedEndpoint:
        """Return where calls go. Raises ConfigError if the settings don't say."""
        if self._place is None:
            if self._placing is None or (self._placing.done() and self._placing.exception()):
                self._placing = asyncio.create_task(asyncio.to_thread(self._find_place))
            self._place = await asyncio.shield(self._placing)
        return self._place

    async def identity(self) -> str:
        """Return where the credentials come from, such as ``env`` or ``iam-role``. Raises ConfigError if
        there are none, Unavailable if their issuer can't be reached."""
        await self._credentials.get()
        return self._credentials.method

    async def request(
        self,
        operation: str,
        *,
        resource: str,
        method: str = "POST",
        url: URL | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | memoryview = b"",
        body_sha256: str = "",
        sign_body: bool = True,
        region: str | None = None,
        reader: Reader | None = None,
        timeout_s: float = ANSWER_S,
    ) -> AwsResponse:
        """Make one signed call and return its answer, whose status is below 300.

        Args:
            operation: its name in the service's API, for the meter and for errors.
            resource: the queue or the object (``bucket/key``), for errors.
            url: fully encoded, its query sorted; by default the endpoint's root.
            headers: more headers to send, all of them signed.
            body_sha256: the body's SHA-256 (hex), if the caller has it: signed, so the service compares it.
            sign_body: False leaves the body out of the signature where TLS guards it (S3 only).
            region: the region to sign for; by default the place's.
            reader: reads the answer's body, which is empty in the answer returned.
            timeout_s: seconds for one try.

        Raises AwsRefused, ConfigError, Unavailable, OutcomeUnknown.
        """
        place = await self.place()
        target = place.endpoint if url is None else url
        what = f"{self.service}:{operation} on {resource}"
        unknown = False
        for tried in itertools.count(1):
            if self._closed:
                raise Unavailable(f"{what} was not done: the client is closed")
            used = await self._credentials.get()
            draft = UnsignedRequest(
                method, str(target), dict(headers or ()), body, self._now(), sign_body, body_sha256
            )
            draft.headers["Host"] = target.host_port_subcomponent or ""
            if reader is not None:
                draft.headers |= reader.headers()
            self._signer_for(used, region or place.region).sign(draft)
            outcome = await self._try(operation, target, draft, place, reader, timeout_s)
            if isinstance(outcome, AwsResponse):
                return outcome
            unknown |= outcome.cause is TryFailure.BROKEN and method not in READING
            if outcome.answer is not None and not await self._may_try_again(outcome, used, draft.at):
                raise AwsRefused(self._refusal(what, operation, outcome), outcome.code, outcome.answer)
            if tried >= place.tries:
                if unknown:
                    raise OutcomeUnknown(f"{what} may have been done: {outcome.why}")
                raise Unavailable(f"{what} was not done: {outcome.why}")
            if outcome.cause not in (TryFailure.SKEWED, TryFailure.EXPIRED):
                await self.pause(tried, throttled=outcome.cause is TryFailure.THROTTLED)
        raise AssertionError("unreachable")

    async def pause(self, tried: int, *, throttled: bool) -> None:
        """Wait before the next try, after ``tried`` of them."""
        base_s = THROTTLED_PAUSE_S if throttled else PAUSE_S
        await self._clock.sleep(self._clock.random() * min(PAUSE_MAX_S, base_s * 2**tried))

    async def close(self) -> None:
        """Close all connections. Calls under way fail."""
        self._closed = True
        self._credentials.close()
        if self._http is not None:
            await self._http.close()

    async def _try(
        self,
        operation: str,
        url: URL,
        draft: UnsignedRequest,
        place: ResolvedEndpoint,
        reader: Reader | None,
        timeout_s: float,
    ) -> AwsResponse | Failure:
        self._meter.count(self.service, operation)
        try:
            async with self._session(place).request(
                draft.method,
                url,
                data=draft.data if len(draft.data) <= AT_ONCE_BYTES else UploadBody(draft.data),
                headers=draft.headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_S),
                allow_redirects=False,
                proxy=place.proxy,
            ) as response:
                if reader is not None and response.status < 300:
                    await reader.read(response)
                    return AwsResponse(response.status, response.headers, b"")
                answer = AwsResponse(response.status, response.headers, await response.read())
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return Failure(TryFailure.UNREACHED, "", describe_http_error(error))
        except TimeoutError:
            return Failure(TryFailure.BROKEN, "", f"no answer in {timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Failure(TryFailure.BROKEN, "", describe_http_error(error))
        return answer if answer.status < 300 else judge(answer)

    async def _may_try_again(self, failure: Failure, used: ReadOnlyCredentials, signed_at: float) -> bool:
        """Correct what can be corrected before another try; return False if the service would refuse
        again."""
        if failure.cause is TryFailure.SKEWED:
            return self._correct_skew(failure, signed_at)
        if failure.cause is TryFailure.EXPIRED:
            return await self._credentials.renew(used)
        return failure.cause is not TryFailure.REFUSED

    def _correct_skew(self, failure: Failure, signed_at: float) -> bool:
        """Use the service's clock if it refused because of this one."""
        assert failure.answer is not None
        try:
            theirs = parsedate_to_datetime(failure.answer.headers["Date"]).timestamp()
        except (KeyError, ValueError):
            return False
        if abs(theirs - signed_at) < SKEW_S:
            return False
        self._skew_s += theirs - self._now()  # nearly nothing if another call has corrected it since
        return True

    def _refusal(self, what: str, operation: str, failure: Failure) -> str:
        code, reply = failure.code, failure.why
        if code.lower().startswith("kms"):
            return f"{what}: its key can't be used, which takes {KMS_ACTIONS} on that ({reply})"
        if DENIED.search(code):
            action = f"{self.service}:{operation}"
            return f"{what} is not allowed: grant the IAM action {ACTIONS.get(action, action)} ({reply})"
        if UNTRUSTED.search(code):
            return f"{what}: the credentials (found by {self._credentials.method}) are not accepted ({reply})"
        return f"{what} was refused ({reply})"

    def _now(self) -> float:
        return self._clock.wall() + self._skew_s

    def _signer_for(self, credentials: ReadOnlyCredentials, region: str) -> Signer | S3Signer:
        signer = self._signers.get(region)
        if signer is None or signer.credentials is not credentials:
            kind = S3Signer if self.service == "s3" else Signer
            signer = self._signers[region] = kind(credentials, self.service, region)
        return signer

    def _session(self, place: ResolvedEndpoint) -> aiohttp.ClientSession:
        if self._http is None:
            self._http = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, ssl=place.tls or True, keepalive_timeout=KEEP_ALIVE_S
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": "holdfast"},
                skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type"),
                auto_decompress=False,
            )
        return self._http

    def _find_credentials(self) -> botocore.credentials.Credentials | None:
        """Find the credentials, in a thread: this reads files and calls their issuer."""
        if self._keys is not None:
            keys = self._keys
            return botocore.credentials.Credentials(
                keys.access_key, keys.secret_key, keys.session_token or None, method="explicit"
            )
        return _new_session(self._region, self._profile).get_credentials()

    def _find_place(self) -> ResolvedEndpoint:
        """Find the endpoint, in a thread: this reads files and imports modules."""
        return _place(self.service, self._region, self._endpoint, self._profile, _settings())


def _new_session(region: str | None, profile: str | None) -> Session:
    session = Session(profile=profile)
    if region := region or os.environ.get("AWS_REGION"):  # which botocore doesn't read
        session.set_config_variable("region", region)
    return session


@functools.lru_cache(maxsize=64)
def _place(
    service: str,
    region: str | None,
    endpoint: str | None,
    profile: str | None,
    settings: Hashable,
) -> ResolvedEndpoint:
    """Resolve the endpoint of a service. This is done once for the same settings, because it is slow and each
    bucket may have its own client. Raises ConfigError."""
    session = _new_session(region, profile)
    try:
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
        configured = ConfiguredEndpointProvider(
            session.full_config, session.get_scoped_config(), service
        ).provide() and not session.get_config_variable("ignore_configured_endpoint_urls")
        client = session.create_client(
            service,
            endpoint_url=None if configured else endpoint,
            aws_access_key_id="-",  # the real ones are found when they are needed
            aws_secret_access_key="-",  # noqa: S106 - none
        )
        bundle = session.get_config_variable("ca_bundle") or get_cert_path(True)
    except NoRegionError as error:
        raise ConfigError(
            f"the region of {service} is not known: set AWS_REGION, or region in the profile"
        ) from error
    except (BotoCoreError, ValueError) as error:
        raise ConfigError(f"the AWS settings can't be used: {error}") from error
    url = URL(client.meta.endpoint_url)
    return ResolvedEndpoint(
        endpoint=url,
        region=client.meta.region_name.replace("aws-global", "us-east-1"),
        config=client.meta.config,
        tries=(getattr(client.meta.config, "retries", None) or {}).get("total_max_attempts", TRIES),
        tls=ssl.create_default_context(cafile=bundle) if url.scheme == "https" else None,
        proxy=get_environ_proxies(str(url)).get(url.scheme),
    )


def _settings() -> Hashable:
    """Return the environment, and the time and size of the AWS config file."""
    file = Path(os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")).expanduser()
    with contextlib.suppress(OSError):
        found = file.stat()
        return frozenset(os.environ.items()), found.st_mtime_ns, found.st_size
    return frozenset(os.environ.items())


@functools.cache
def _loader(data_path: str | None) -> Loader:
    """Return the reader of botocore's descriptions of services. There is one per process, because they are
    large."""
    return create_loader(data_path)


def judge(answer: AwsResponse) -> Failure:
    """Return why a service refused, and whether another try may help."""
    code, text = _error(answer)
    if EXPIRED.search(code):
        cause = TryFailure.EXPIRED
    elif SKEWED.search(code):
        cause = TryFailure.SKEWED
    elif THROTTLED.search(code) or answer.status in (429, 503):
        cause = TryFailure.THROTTLED
    elif answer.status >= 500 or TRANSIENT.search(code):
        cause = TryFailure.BROKEN
    else:
        cause = TryFailure.REFUSED
    return Failure(cause, code, f"{code}: {text}" if text else code, answer)


def short_code(code: str) -> str:
    """Return a service's error code without namespace: ``com.amazonaws.sqs#QueueDoesNotExist`` and
    ``AWS.SimpleQueueService.QueueDoesNotExist`` are one."""
    return code.rpartition("#")[2].removeprefix("AWS.SimpleQueueService.")


def _error(answer: AwsResponse) -> tuple[str, str]:
    """Return code and text of an error, which is JSON or XML, or only a status."""
    if answer.body.startswith(b"{"):
        try:
            reply = msgspec.json.decode(answer.body, type=_JsonError)
        except UNREADABLE:
            reply = _JsonError()
        code, text = reply.type, reply.message or reply.Message
    else:
        code, text = (_element(name, answer.body) for name in (b"Code", b"Message"))
    text = text.partition(ECHO)[0].rstrip()
    return short_code(code) or STATUS_CODES.get(answer.status, f"HTTP {answer.status}"), text


class _JsonError(msgspec.Struct):
    type: str = msgspec.field(default="", name="__type")
    message: str = ""
    Message: str = ""


def _element(name: bytes, xml: bytes) -> str:
    found = re.search(b"<%b>([^<]*)</%b>" % (name, name), xml[:10_000])
    return html.unescape(found[1].decode(errors="replace")) if found else ""
