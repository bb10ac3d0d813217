"""The public API of Holdfast's own S3 client. Needs the extra ``s3``.

The client signs its calls, shares one pool of connections, and repeats calls. Its errors
say whether the call may have had an effect.

:class:`S3` makes calls for the object at a :class:`Spot`. It needs an :class:`AwsClient`, which is made with
a region, an endpoint, and :class:`Keys` unless the keys of the environment are used. A call returns an
:class:`AwsResponse` or raises :class:`AwsRefused`. :data:`UNTRUSTED` matches the codes of refused keys.
:class:`MultipartUpload` puts an object in parts.
"""

from typing import TYPE_CHECKING

from holdfast.common.lazy import exports

if TYPE_CHECKING:
    from holdfast.services.aws.client import UNTRUSTED, AwsClient, AwsRefused, AwsResponse, Keys
    from holdfast.services.aws.s3 import S3
    from holdfast.services.aws.s3_url import CONTENT_TYPE, KEY_BYTES_MAX, Spot, parse
    from holdfast.services.aws.upload import MultipartUpload
else:  # To read a URL takes no client.
    __getattr__ = exports(
        __name__,
        {
            "holdfast.services.aws.client": "AwsClient AwsRefused AwsResponse Keys UNTRUSTED",
            "holdfast.services.aws.s3": "S3",
            "holdfast.services.aws.s3_url": "CONTENT_TYPE KEY_BYTES_MAX Spot parse",
            "holdfast.services.aws.upload": "MultipartUpload",
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
    "MultipartUpload",
    "Spot",
    "parse",
]
