"""On what kind of file system is this path? SQLite's locks and shared memory do not work on a network one (sqlite.org/wal.html)."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["filesystem", "network_filesystem"]

_TYPES = """nfs nfs4 cifs smb3 smbfs lustre gpfs beegfs fhgfs ceph glusterfs orangefs pvfs2 panfs afs wekafs daos 9p
fuse.sshfs fuse.ceph fuse.glusterfs fuse.juicefs fuse.s3fs fuse.rclone fuse.dfuse fuse.lustre"""
_NETWORK = frozenset(_TYPES.split())


def network_filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Type of the network file system that holds ``path``; empty for a local one, or where that cannot be told."""
    kind = filesystem(path, mounts)
    return kind if kind in _NETWORK else ""


def filesystem(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """Type of the file system that holds ``path``, as /proc/mounts names it; empty where that cannot be told."""
    best, kind = -1, ""
    try:
        real = str(path.resolve())
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        mount = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[1])
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= best:  # of two mounts on one folder the later covers the earlier
            best, kind = len(mount), fields[2]
    return kind
