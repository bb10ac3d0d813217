"""moto as a program, with one call about a key of S3 at a time: of two that put one key, one may close what
the other still reads, which is answered with 500. Bodies are read before that, for one may come slowly."""

import threading
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_one_at_a_time = threading.Lock()
_respond = S3Response._key_response


def _respond_alone(self: S3Response, *args: Any, **kwargs: Any) -> Any:
    with _one_at_a_time:
        return _respond(self, *args, **kwargs)


if __name__ == "__main__":
    S3Response._key_response = _respond_alone  # type: ignore[method-assign]
    main()
