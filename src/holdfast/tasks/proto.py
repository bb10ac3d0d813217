"""The protobuf classes of tasks.proto, made from its compiled description. So there is no generated code that
needs one version of protobuf."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from google.protobuf import any_pb2  # noqa: F401 - tasks.proto imports it
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

_pool = Default()
for _proto in FileDescriptorSet.FromString(files(__package__).joinpath("tasks.binpb").read_bytes()).file:
    _pool.Add(_proto)

TaskEnvelop: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.tasks.v1.TaskEnvelop"))
TaskMessage: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.tasks.v1.TaskMessage"))
Batch: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.tasks.v1.Batch"))
FollowUp: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.tasks.v1.FollowUp"))
StoredValue: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.tasks.v1.StoredValue"))
TaskBrief: Any = GetMessageClass(_pool.FindMessageTypeByName("holdfast.tasks.v1.TaskBrief"))
State: Any = _pool.FindEnumTypeByName("holdfast.tasks.v1.State")
