"""The root file system of every container: what deploy/docker/install puts into the image, from a build of these sources and the
libraries of this Debian. Images of others are not here; container.py says what runs in their place."""

import os
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = ("penstock", "penstock-router", "penstock-prefill", "penstock-decode")
TOOLS = ("/bin/true", "/bin/sleep", "/bin/sh", "/usr/bin/ls")
USER = (10001, 10001)  # of the Dockerfile
SHARED = ("/usr/lib", "/usr/lib64")  # bound from this machine
FOLDERS = ("proc", "dev", "sys", "tmp", "run", "var/lib", "var/run", "etc/ssl/certs", "usr/bin", "usr/share/penstock", *(folder[1:] for folder in SHARED))


def make(folder, programs, authority):
    """The file system below `folder`; `programs` is the folder of the built programs. Its only trusted CA is `authority`."""
    for name in FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for link, target in (("bin", "usr/bin"), ("lib", "usr/lib"), ("lib64", "usr/lib64"), ("models", "usr/share/penstock/models")):
        (folder / link).symlink_to(target)
    for name in PROGRAMS:
        shutil.copy(programs / name, folder / "usr/bin")
    for tool in TOOLS:
        shutil.copy(os.path.realpath(tool), folder / "usr/bin" / pathlib.Path(tool).name)
    shutil.copy(os.path.realpath("/usr/bin/python3"), folder / "usr/bin/python3")
    shutil.copytree(ROOT / "models", folder / "usr/share/penstock/models")
    (folder / "etc/passwd").write_text(f"root:x:0:0::/:/bin/sh\npenstock:x:{USER[0]}:{USER[1]}::/nonexistent:/usr/sbin/nologin\n")
    (folder / "etc/group").write_text(f"root:x:0:\npenstock:x:{USER[1]}:\n")
    (folder / "etc/nsswitch.conf").write_text("hosts: files dns\n")
    (folder / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
    (folder / "etc/ssl/certs/ca-certificates.crt").write_text(authority)
    (folder / "etc/ssl/openssl.cnf").write_text("")
    for name in ("etc/resolv.conf", "etc/hostname"):
        (folder / name).write_text("")
    return folder
