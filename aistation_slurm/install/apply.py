"""Writing the planned files below a root folder, and taking them away: never over what a person has changed.

``etc/aistation/installed.json`` below the root keeps the hash of each file as it was written. A file that still has it may be
replaced or removed; any other is the site's: the new text goes beside it as ``NAME.new``.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from aistation_slurm.errors import InstallError
from aistation_slurm.install.plan import Planned

__all__ = ["MANIFEST", "Done", "Manifest", "apply", "read_manifest", "uninstall"]

MANIFEST = "etc/aistation/installed.json"


@dataclass(frozen=True)
class Done:
    """path: absolute, below the root. what: written, updated, unchanged, kept, removed. why: for kept."""

    path: str
    what: str
    why: str = ""


@dataclass(frozen=True)
class Manifest:
    """files: path below the root -> SHA-256 as written. folders: made by us. chains: as given last."""

    files: Mapping[str, str] = field(default_factory=dict)
    folders: tuple[str, ...] = ()
    chains: Mapping[str, str] = field(default_factory=dict)


def read_manifest(root: Path) -> Manifest:
    """Empty where nothing was installed. Raises InstallError where it cannot be read."""
    path = root / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(dict(found["files"]), tuple(found["folders"]), dict(found.get("chains", {})))
    except FileNotFoundError:
        return Manifest()
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise InstallError(f"{path}: cannot be read ({exc}); remove it, and files that differ are kept") from exc


def apply(root: Path, planned: Sequence[Planned], chains: Mapping[str, str], *, dry_run: bool = False) -> list[Done]:
    """Write what is missing or ours and outdated. Again with the same plan: nothing changes. Raises InstallError."""
    manifest = read_manifest(root)
    files, folders, done = dict(manifest.files), list(manifest.folders), []
    for one in planned:
        verdict = _judge(root, one, manifest)
        done.append(verdict)
        target = verdict.path
        if dry_run:
            continue
        if verdict.what in ("written", "updated"):
            _make_folders(root, Path(target).parent, folders)
            _write(Path(target), one.text, one.mode)
            files[one.path] = _hash(one.text.encode())
        elif verdict.what == "unchanged":
            files.setdefault(one.path, _hash(one.text.encode()))
        elif verdict.why and not one.once:
            _write(Path(f"{target}.new"), one.text, one.mode)
            files[f"{one.path}.new"] = _hash(one.text.encode())
    if not dry_run:
        _save(root, Manifest(files, tuple(folders), dict(chains)), folders)
    return done


def uninstall(root: Path, in_use: Collection[str] = (), *, dry_run: bool = False) -> list[Done]:
    """Remove what still is as it was written. in_use: absolute paths that slurm.conf still names; they stay."""
    manifest = read_manifest(root)
    done, left = [], {}
    for name, known in manifest.files.items():
        path = root / name
        content = _content(path)
        if content is None and not path.is_symlink():
            continue
        if f"/{name}" in in_use:
            done.append(Done(str(path), "kept", "slurm.conf still names it; take that line out first"))
            left[name] = known
        elif content is None or _hash(content) != known:
            done.append(Done(str(path), "kept", "it was changed since it was installed"))
        else:
            done.append(Done(str(path), "removed"))
            if not dry_run:
                path.unlink()
    if dry_run:
        return done
    if left:
        _save(root, Manifest(left, manifest.folders, manifest.chains), [])
    else:
        (root / MANIFEST).unlink(missing_ok=True)
        for folder in sorted(manifest.folders, key=len, reverse=True):
            try:
                (root / folder).rmdir()
            except OSError:
                pass  # the site has files there
    return done


def _judge(root: Path, one: Planned, manifest: Manifest) -> Done:
    path = _inside(root, one.path)
    content = _content(path)
    if content is None and not path.exists() and not path.is_symlink():
        return Done(str(path), "written")
    if content == one.text.encode():
        return Done(str(path), "unchanged")
    if one.once:
        return Done(str(path), "kept", "it is the site's")
    if content is not None and _hash(content) == manifest.files.get(one.path):
        return Done(str(path), "updated")
    what = "it was changed" if one.path in manifest.files else "it was not written by `aistation install`"
    return Done(str(path), "kept", f"{what}; the new text is in {path}.new")


def _inside(root: Path, name: str) -> Path:
    """The target, whose folder must not lead out of the root by a link."""
    path = root / name
    top = root.resolve()
    folder = path.parent.resolve()
    if folder != top and top not in folder.parents:
        raise InstallError(f"{path.parent}: is a link that leads out of {root}")
    return path


def _content(path: Path) -> Optional[bytes]:
    """Of a regular file; None for anything else, links included."""
    try:
        return path.read_bytes() if stat.S_ISREG(path.lstat().st_mode) else None
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise InstallError(f"{path}: cannot be read: {exc.strerror}") from exc


def _make_folders(root: Path, folder: Path, made: list[str]) -> None:
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        try:
            one.mkdir(mode=0o755)
            one.chmod(0o755)
        except OSError as exc:
            raise InstallError(f"{one}: cannot be made: {exc.strerror}; run as root, or give --into DIR") from exc
        made.append(str(one.relative_to(root)))


def _write(path: Path, text: str, mode: int) -> None:
    """By rename: a reader sees the old file or the new one, and a link is replaced, not followed."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as exc:
        raise InstallError(f"{path}: cannot be written: {exc.strerror}; run as root, or give --into DIR") from exc


def _save(root: Path, manifest: Manifest, folders: list[str]) -> None:
    path = root / MANIFEST
    _make_folders(root, path.parent, folders)
    found = {"files": dict(manifest.files), "folders": list(dict.fromkeys([*manifest.folders, *folders]))}
    text = json.dumps({**found, "chains": dict(manifest.chains)}, indent=1) + "\n"
    if _content(path) != text.encode():
        _write(path, text, 0o644)


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
