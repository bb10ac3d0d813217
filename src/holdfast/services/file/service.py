"""The service that URLs of files open: ``file:./objects``, ``file:letters.jsonl``."""

from __future__ import annotations

from holdfast.extend import Access, Backup, Meter, Objects, Opening, Service, path_in
from holdfast.services.file.backup import FileBackup
from holdfast.services.file.objects import FileObjects


class FileService(Service):
    """Objects in a folder."""

    example = "file:./holdfast-objects"
    one_host = True

    def objects(self, opening: Opening) -> Objects:
        root = path_in(opening.setting, opening.url, self.example)
        return FileObjects(root, access=opening.access, makes=not opening.reads_only)

    def slot_objects(self, url: str, meter: Meter) -> Objects:
        return FileObjects(path_in("objects_url", url, self.example), read_in_thread=False, makes=False)


service = FileService()


def backup(setting: str, url: str, access: Access) -> Backup:
    """Dead letters in one file, in lines of JSON."""
    return FileBackup(path_in(setting, url, "file:letters.jsonl"), access)
