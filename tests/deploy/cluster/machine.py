"""A machine of the test's own: network, processes and mounts are its alone and end with it. Needs root, iproute2, nftables, crun."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

MARK = "PENSTOCK_TEST_MACHINE"
PROGRAMS = ("unshare", "ip", "nft", "crun", "openssl")


def run(*command, text=None):
    done = subprocess.run([str(word) for word in command], input=text, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def refusal():
    """The reason why there can be no such machine here; None where there can be one."""
    if os.geteuid() != 0:
        return "namespaces are for root"
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"missing programs: {', '.join(missing)}; scripts/setup installs them"
    rules = "table inet a { chain b { type nat hook prerouting priority -100; tcp dport 1 dnat ip to 10.0.0.1; }; }"
    try:
        run("unshare", "--net", "--pid", "--mount", "--fork", "nft", "-f", "-", text=rules)
    except OSError as error:
        return f"namespaces or nftables: {error}"
    return None


def prepare():
    """Within the new namespaces: mounts that other machines do not see."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    pathlib.Path("/run/netns").mkdir()
    # crun refuses a mix of cgroup versions; limits of pods are not kept here, so an empty hierarchy will do.
    if pathlib.Path("/sys/fs/cgroup/unified").exists():
        run("umount", "-R", "/sys/fs/cgroup")
        run("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
    run("ip", "link", "set", "lo", "up")


def enter():
    """Goes on in a machine of its own, with the same arguments. Ends with 77, which CTest calls skipped, where that cannot be."""
    folder = os.environ.get(MARK)
    if folder:
        prepare()
        return pathlib.Path(folder)
    reason = refusal()
    if reason:
        print(f"not tested here: {reason}")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="penstock-cluster-") as folder:
        inside = ["unshare", "--net", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child"]
        done = subprocess.run([*inside, sys.executable, *sys.argv], env={**os.environ, MARK: folder}, check=False)
    sys.exit(done.returncode)
