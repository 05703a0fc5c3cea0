"""Fetches a model into a directory, whole or not at all: files go into a directory beside it, which gets its name at the end.
A directory that is there is complete, and nothing is fetched.

  hf://ORG/NAME@REVISION        a repository of Hugging Face, or of --endpoint
  https://HOST/FOLDER           with --file=NAME for each file
  https://HOST/MODEL.tar[.gz]   an archive

The variable MODEL_TOKEN is sent as a bearer token to the host of the URI, and to no host that it redirects to. Files that
break off go on where they were; where the server names a file's SHA-256 it is checked. It needs only Python."""

import argparse
import hashlib
import http.client
import json
import os
import pathlib
import re
import shutil
import sys
import tarfile
import time
import urllib.error
import urllib.parse
import urllib.request

WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|gguf|h5|msgpack|onnx)$")
# Beside safetensors these have the same weights again.
DOUBLES = re.compile(r"\.(bin|pt|pth|gguf|h5|msgpack|onnx|ot)$|^(original|onnx|metal|coreml)/")
PIECE = 1 << 20
TRIES = 8


class Refused(Exception):
    """A fetch that would end the same way again."""


class Redirects(urllib.request.HTTPRedirectHandler):
    """Storage that a hub redirects to has its own signature in the URL and must not see the token. The hub's answer, not the
    storage's, names the file's SHA-256."""

    digest = None

    def redirect_request(self, request, file, code, message, headers, url):
        self.digest = self.digest or digest_of(headers)
        following = super().redirect_request(request, file, code, message, headers, url)
        if following is not None and urllib.parse.urlsplit(url)[:2] != urllib.parse.urlsplit(request.full_url)[:2]:
            following.headers.pop("Authorization", None)
        return following


def digest_of(headers):
    """The SHA-256 that a hub gives a large file, or None."""
    tag = (headers.get("X-Linked-Etag") or "").strip('"').lower()
    return tag if re.fullmatch("[0-9a-f]{64}", tag) else None


def open_url(url, start=0):
    """The answer, and the SHA-256 of the whole file or None."""
    headers = {"User-Agent": "penstock", "Accept-Encoding": "identity"}
    if os.environ.get("MODEL_TOKEN"):
        headers["Authorization"] = "Bearer " + os.environ["MODEL_TOKEN"]
    if start:
        headers["Range"] = f"bytes={start}-"
    redirects = Redirects()
    answer = urllib.request.build_opener(redirects).open(urllib.request.Request(url, headers=headers), timeout=60)
    return answer, redirects.digest or digest_of(answer.headers)


def with_tries(what, work, pause_s):
    for left in range(TRIES - 1, -1, -1):
        try:
            return work()
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise Refused(f"{what}: {error.code} {error.reason}; check model.download.tokenSecret, and that the token may read it") from error
            if error.code == 404:
                raise Refused(f"{what}: not found") from error
            problem = error
        except (OSError, http.client.HTTPException) as error:
            problem = error
        if left == 0:
            raise Refused(f"{what}: {problem}")
        print(f"{what}: {problem}; trying again", flush=True)
        time.sleep(pause_s)


def fetch_once(url, path):
    """One try, which goes on behind what is there."""
    part = path.with_name(path.name + ".part")
    start = part.stat().st_size if part.exists() else 0
    try:
        answer, digest = open_url(url, start)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        part.unlink()  # It is longer than the file, which has changed.
        raise OSError("the file has changed") from error
    with answer:
        if start and answer.status != 206:
            start = 0
        length = answer.headers.get("Content-Length")
        wanted = start + int(length) if length else None
        with open(part, "r+b" if start else "wb") as file:
            file.seek(start)
            shutil.copyfileobj(answer, file, PIECE)
            size = file.tell()
    if wanted is not None and size != wanted:
        raise OSError(f"broke off at byte {size} of {wanted}")
    if digest and sha256(part) != digest:
        part.unlink()
        raise OSError("its SHA-256 is not the one that the server names")
    part.rename(path)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def fetch(url, path, pause_s):
    path.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with_tries(path.name, lambda: fetch_once(url, path), pause_s)
    size = path.stat().st_size
    print(f"{path.name}: {size} bytes in {time.monotonic() - begin:.1f} s", flush=True)


def repository_files(uri, endpoint, pause_s):
    """Name and URL of each file of hf://ORG/NAME@REVISION, all of one commit."""
    name, _, revision = uri.removeprefix("hf://").partition("@")
    base = endpoint.rstrip("/")
    url = f"{base}/api/models/{name}/revision/{urllib.parse.quote(revision or 'main', safe='')}"

    def ask():
        with open_url(url)[0] as answer:
            return json.load(answer)

    described = with_tries(uri, ask, pause_s)
    names = [entry["rfilename"] for entry in described["siblings"]]
    commit = urllib.parse.quote(described["sha"], safe="")
    return [(file, f"{base}/{name}/resolve/{commit}/{urllib.parse.quote(file)}") for file in names]


def wanted_files(files, without_weights):
    """Drops what is no part of a model, and weights that are there twice."""
    names = [name for name, _ in files]
    doubled = any(name.endswith(".safetensors") for name in names)
    for name, url in files:
        if pathlib.PurePosixPath(name).is_absolute() or ".." in pathlib.PurePosixPath(name).parts:
            raise Refused(f"{name}: leaves the directory")
        if name.startswith(".") or (doubled and DOUBLES.search(name)) or (without_weights and WEIGHTS.search(name)):
            continue
        yield name, url


def unpack(archive, folder):
    with tarfile.open(archive) as tar:
        for member in tar:
            if not (member.isfile() or member.isdir()):
                raise Refused(f"{member.name}: the archive has something else than files and directories")
            if member.name.startswith("/") or ".." in pathlib.PurePosixPath(member.name).parts:
                raise Refused(f"{member.name}: leaves the directory")
            member.uid = member.gid = os.getuid()
            member.mode = 0o755 if member.isdir() else 0o644
            tar.extract(member, folder)
    archive.unlink()
    inside = list(folder.iterdir())
    return inside[0] if len(inside) == 1 and inside[0].is_dir() else folder


def fill(folder, options):
    """Fetches everything; the directory that has the model is the folder or one in it."""
    uri = options.uri
    if uri.startswith("hf://"):
        files = repository_files(uri, options.endpoint, options.pause_s)
    elif options.file:
        files = [(name, f"{uri.rstrip('/')}/{urllib.parse.quote(name)}") for name in options.file]
    elif re.search(r"\.(tar|tar\.gz|tgz)$", urllib.parse.urlsplit(uri).path):
        fetch(uri, folder / "archive.tar", options.pause_s)
        return unpack(folder / "archive.tar", folder)
    else:
        raise Refused(f"{uri} is no archive: name the folder's files in model.download.files")
    for name, url in wanted_files(files, options.without_weights):
        if not (folder / name).exists():
            fetch(url, folder / name, options.pause_s)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--uri", required=True)
    parser.add_argument("--to", required=True, type=pathlib.Path, help="the model's directory")
    parser.add_argument("--endpoint", default="https://huggingface.co", help="the host of hf:// URIs")
    parser.add_argument("--file", action="append", default=[], help="a file of an https:// folder")
    parser.add_argument("--without-weights", action="store_true", help="only what a router reads")
    parser.add_argument("--owner", default=os.uname().nodename, help="the name of an unfinished directory, under which a new try goes on")
    parser.add_argument("--pause-s", type=float, default=5, help="seconds before another try")
    options = parser.parse_args()
    target = options.to
    if (target / "config.json").exists():
        print(f"{target} is there", flush=True)
        return 0
    # Other pods may fetch into the same volume at the same time: each into a directory of its own, and the first gives its name.
    folder = target.with_name(f".{target.name}.{options.owner}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        model = fill(folder, options)
        if not (model / "config.json").exists():
            raise Refused(f"{options.uri} has no config.json: it is no checkpoint")
        try:
            model.rename(target)
        except OSError:
            if not (target / "config.json").exists():
                raise
        shutil.rmtree(folder, ignore_errors=True)
    except (Refused, OSError) as error:
        print(f"download failed: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"{target} is complete", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
