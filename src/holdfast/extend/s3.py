"""The client of S3 that Holdfast itself has. Needs the extra ``s3``.

Its calls are signed, share one pool of connections, and are tried again where that may help; errors are
honest about the effect. :class:`S3` makes one call on the object at a :class:`Spot`; its :class:`AwsClient`
is made with a region, an endpoint, and :class:`Keys` where they aren't those of the environment. An answer is
an :class:`AwsResponse`, and a refusal an :class:`AwsRefused`, whose code :data:`UNTRUSTED` matches where the
keys are wrong.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.services.aws.client import UNTRUSTED, AwsClient, AwsRefused, AwsResponse, Keys
    from holdfast.services.aws.s3 import S3
    from holdfast.services.aws.s3_url import CONTENT_TYPE, KEY_BYTES_MAX, Spot, parse
else:  # To read a URL takes no client.
    __getattr__ = exports(
        __name__,
        {
            "AwsClient": "holdfast.services.aws.client",
            "AwsRefused": "holdfast.services.aws.client",
            "AwsResponse": "holdfast.services.aws.client",
            "CONTENT_TYPE": "holdfast.services.aws.s3_url",
            "KEY_BYTES_MAX": "holdfast.services.aws.s3_url",
            "Keys": "holdfast.services.aws.client",
            "S3": "holdfast.services.aws.s3",
            "Spot": "holdfast.services.aws.s3_url",
            "UNTRUSTED": "holdfast.services.aws.client",
            "parse": "holdfast.services.aws.s3_url",
        },
    )

__all__ = [
    "CONTENT_TYPE",
    "KEY_BYTES_MAX",
    "S3",
    "UNTRUSTED",
    "AwsClient",
    "AwsRefused",
    "AwsResponse",
    "Keys",
    "Spot",
    "parse",
]
