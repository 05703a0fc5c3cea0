"""Volumes of a pod as folders of this machine."""

import os
import shutil
import time

from .spec import Unsupported


def write_data(folder, data, mode, group):
    """A Secret or ConfigMap as files: a folder of this version, and links that all turn to it at the same time."""
    version = folder / f"..{time.time_ns()}"
    version.mkdir(mode=0o755)
    for name, text in data.items():
        path = version / name
        path.write_text(text)
        os.chown(path, 0, group)
        path.chmod(mode)
    link = folder / "..data"
    before = link.resolve() if link.is_symlink() else None
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(link)
    for name in data:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    if before:
        shutil.rmtree(before)


def kind_of(volume):
    """The kind and the source of a volume."""
    kind, = set(volume) - {"name"}
    return kind, volume[kind]


def named(volume):
    """The kind and the name of the object that a volume shows; None for other volumes."""
    kind, source = kind_of(volume)
    return {"secret": ("Secret", source.get("secretName")), "configMap": ("ConfigMap", source.get("name"))}.get(kind)


def shows(volume, kind, name):
    return named(volume) == (kind, name)


def write(folder, volume, data_of, group):
    """The files of a Secret's or ConfigMap's volume."""
    kind, name = named(volume)
    write_data(folder, data_of(kind, name), kind_of(volume)[1].get("defaultMode", 0o644), group)


def make(volume, folder, cluster, group):
    """The folder of a new pod's volume: `folder`, or the claim's."""
    kind, source = kind_of(volume)
    if kind == "persistentVolumeClaim":
        return cluster.claim(source["claimName"])
    folder.mkdir(parents=True)
    if kind in ("emptyDir", "ephemeral"):
        os.chown(folder, 0, group)
        folder.chmod(0o2777 if kind == "emptyDir" else 0o2775)
    elif named(volume):
        write(folder, volume, cluster.data_of, group)
    else:
        raise Unsupported(f"volume of kind {kind}")
    return folder
