"""Identifies a model's weights by their content, so that no tensors of other weights are read from disk.

A commit of the hub identifies what it holds. Files in a folder are read once; their digests are kept
beside the disk tier, because reading gigabytes at every start would cost seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
"""Suffixes of files with weights."""

COMMIT = re.compile("[0-9a-f]{40}")
KEPT_DIGESTS = "weights.json"
"""The file, in the disk tier's folder, that keeps digests of files with weights."""


class UnknownWeights(Exception):
    """It cannot be told which weights the model has."""


def identify_weights(
    model: str, revision: str | None, download_folder: str | None, kept_digests: Path
) -> str:
    """Return a text that is equal for equal weights only, on every machine.

    model: a folder, a file, or a hub id that has been downloaded. revision: of the hub id; None for
      its main branch. download_folder: where the hub's files lie; None for the hub's own cache.
    kept_digests: a file that keeps the digests of local files for the next start.
    Raises UnknownWeights, OSError.
    """
    path = Path(model)
    if path.parent.name == "snapshots" and COMMIT.fullmatch(path.name):
        return f"commit {path.name}"
    if path.is_file():
        return f"content {_digest_files([path], kept_digests)}"
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in WEIGHTS)
        if not files:
            raise UnknownWeights(f"the folder {path} holds no weights that RAGCache knows")
        return f"content {_digest_files(files, kept_digests)}"
    return f"commit {_find_commit(model, revision or 'main', download_folder)}"


def _find_commit(model: str, revision: str, download_folder: str | None) -> str:
    """Return the commit that a revision of the hub stands for, as it was downloaded."""
    if COMMIT.fullmatch(revision):
        return revision
    try:
        downloaded = scan_cache_dir(download_folder)
    except (CacheNotFound, ValueError) as error:
        raise UnknownWeights(f"the hub's downloads cannot be read: {error}") from error
    for repo in downloaded.repos:
        if repo.repo_id == model and repo.repo_type == "model" and revision in repo.refs:
            return str(repo.refs[revision].commit_hash)
    raise UnknownWeights(f"the hub's downloads do not hold {model} at {revision}")


def _digest_files(files: Iterable[Path], kept_digests: Path) -> str:
    """Return a digest of the files' names and content, with digests kept from earlier starts."""
    kept = _read_kept(kept_digests)
    identities = {file: _identify(file) for file in files}
    unknown = [file for file, identity in identities.items() if identity not in kept]
    with ThreadPoolExecutor(min(4, len(unknown) or 1)) as readers:
        for file, digest in zip(unknown, readers.map(_digest, unknown), strict=True):
            kept[identities[file]] = digest
    if unknown:
        _keep(kept_digests, kept)
    whole = hashlib.blake2b(digest_size=16)
    for file, identity in identities.items():
        whole.update(f"{file.name}\0{kept[identity]}\0".encode())
    return whole.hexdigest()


def _identify(file: Path) -> str:
    """Return what changes whenever a file's content does.

    The time of change is the system's own: unlike the time of modification, no program can set it back.
    """
    stat = file.stat()
    times = f"{stat.st_mtime_ns} {stat.st_ctime_ns}"
    return f"{file.resolve()} {stat.st_dev} {stat.st_ino} {stat.st_size} {times}"


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(
            content,
            lambda: hashlib.blake2b(digest_size=16),
        ).hexdigest()


def _read_kept(path: Path) -> dict[str, str]:
    with contextlib.suppress(OSError, ValueError):
        kept = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(kept, dict):
            return {str(name): str(digest) for name, digest in kept.items()}
    return {}


def _keep(path: Path, digests: dict[str, str]) -> None:
    """Keep the digests of files that still exist. A failure only costs time at the next start."""
    written = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        written.write_text(json.dumps(dict(_still_there(digests))), encoding="utf-8")
        written.replace(path)


def _still_there(digests: dict[str, str]) -> Iterator[tuple[str, str]]:
    for identity, digest in digests.items():
        if os.path.exists(identity.rsplit(" ", 5)[0]):
            yield identity, digest
