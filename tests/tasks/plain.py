"""An independent program's classes, compiled by protoc from the plain form alone."""

import importlib.util
import sys
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from grpc_tools import protoc

HERE = Path(__file__).parent


@cache
def plain() -> Any:
    """The module that protoc makes of ``plain.proto``."""
    with tempfile.TemporaryDirectory() as folder:
        compile_proto(HERE / "plain.proto", f"--python_out={folder}")
        spec = importlib.util.spec_from_file_location("plain_pb2", Path(folder) / "plain_pb2.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["plain_pb2"] = module
        spec.loader.exec_module(module)
    return module


def compile_proto(proto: Path, *options: str, root: Path | None = None) -> None:
    """Run protoc."""
    included = files("grpc_tools").joinpath("_proto")
    code = protoc.main(["protoc", f"-I{root or proto.parent}", f"-I{included}", *options, str(proto)])
    assert code == 0
