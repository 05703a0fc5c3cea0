"""A container of a pod's spec as an OCI bundle's config.json: pure functions of what Kubernetes says."""

import re

from . import image

PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# A namespace's own user on OpenShift, which its security context constraints give to pods that name none.
OPENSHIFT_USER = 1000650000
IDLE = ("/usr/bin/sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait")
MASKED = ["/proc/kcore", "/proc/keys", "/proc/sched_debug", "/proc/timer_list", "/sys/firmware"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
# What RuntimeDefault of containerd refuses a container without capabilities, as a list of its own: EPERM. Of io_uring it is so since
# containerd 2.0.
DENIED = ("acct add_key bpf clock_adjtime clock_settime create_module delete_module finit_module get_mempolicy init_module io_uring_enter "
          "io_uring_register io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl mbind mount move_pages name_to_handle_at nfsservctl "
          "open_by_handle_at perf_event_open pivot_root quotactl reboot request_key set_mempolicy setns settimeofday swapoff swapon sysfs umount2 "
          "unshare userfaultfd ustat vhangup").split()
SECCOMP = {"defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
           "syscalls": [{"names": DENIED, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]}
BASE_MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=64m"]},
]


class Unsupported(Exception):
    """A field of a pod's spec that this cluster does not do, as no variant has it."""


def expand(text, variables):
    """$(NAME) as in a container's command, arguments and variables; $$ is a dollar, and an unknown name stays."""
    def one(match):
        return "$" if match[0] == "$$" else variables.get(match[1], match[0])
    return re.sub(r"\$\$|\$\(([A-Za-z_.-][\w.-]*)\)", one, text)


def field(path, pod):
    found = {"status.podIP": lambda: pod.addresses[0], "metadata.name": lambda: pod.name, "metadata.namespace": lambda: pod.namespace,
             "spec.nodeName": lambda: pod.node.name, "status.hostIP": lambda: pod.node.addresses[0]}
    if path not in found:
        raise Unsupported(f"fieldRef {path}")
    return found[path]()


def value_of(entry, pod, variables, data_of):
    """`data_of` gives the data of a ConfigMap or Secret by its kind and name."""
    if "valueFrom" not in entry:
        return expand(entry.get("value") or "", variables)
    kind, = entry["valueFrom"]
    reference = entry["valueFrom"][kind]
    if kind == "fieldRef":
        return field(reference["fieldPath"], pod)
    sources = {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"}
    if kind not in sources:
        raise Unsupported(f"valueFrom {kind}")
    return data_of(sources[kind], reference["name"])[reference["key"]]


def environment(container, pod, data_of, api):
    """Name to value, in the order in which Kubernetes lets later ones use earlier ones."""
    variables = {"KUBERNETES_SERVICE_HOST": api, "KUBERNETES_SERVICE_PORT": "443"}
    for source in container.get("envFrom", ()):
        kind, name = ("Secret", source["secretRef"]["name"]) if "secretRef" in source else ("ConfigMap", source["configMapRef"]["name"])
        variables.update({source.get("prefix", "") + key: value for key, value in data_of(kind, name).items()})
    for entry in container.get("env", ()):
        variables[entry["name"]] = value_of(entry, pod, variables, data_of)
    return variables


def user(pod_security, security, openshift):
    """User, group and further groups of a container."""
    uid = security.get("runAsUser", pod_security.get("runAsUser", OPENSHIFT_USER if openshift else image.USER[0]))
    gid = security.get("runAsGroup", pod_security.get("runAsGroup", 0 if openshift else image.USER[1]))
    if uid == 0 and security.get("runAsNonRoot", pod_security.get("runAsNonRoot")):
        raise Unsupported("runAsNonRoot with user 0: the kubelet refuses such a container")
    more = {*pod_security.get("supplementalGroups", ()), fs_group(pod_security, openshift)} - {None}
    return {"uid": uid, "gid": gid, "additionalGids": sorted(more)}


def fs_group(pod_security, openshift):
    return pod_security.get("fsGroup", OPENSHIFT_USER if openshift else None)


def command(container, variables):
    """The words of the process. A container without a command has an image's entry point, and images of others are not here: a
    process that does nothing stands for it."""
    words = [*container.get("command", IDLE), *container.get("args", ())]
    return [expand(word, variables) for word in words]


def mounts(container, folders, files):
    """`folders` is a volume's name to its folder here, `files` are the kubelet's own: destination to path."""
    bound = [{"destination": folder, "source": folder, "type": "bind", "options": ["rbind", "ro"]} for folder in image.SHARED]
    bound += [{"destination": destination, "source": str(path), "type": "bind", "options": ["rbind", "ro"]} for destination, path in files.items()]
    for mount in container.get("volumeMounts", ()):
        source = folders[mount["name"]] / mount.get("subPath", "")
        bound.append({"destination": mount["mountPath"], "source": str(source), "type": "bind",
                      "options": ["rbind", "ro" if mount.get("readOnly") else "rw"]})
    shadowed = {mount["destination"] for mount in bound}
    return [mount for mount in BASE_MOUNTS if mount["destination"] not in shadowed] + bound


def config(container, pod, variables, root, folders, files, network):
    """What crun reads. Every file system is read-only: containers that do not ask for that are stood in for."""
    pod_security, security = pod.spec.get("securityContext") or {}, container.get("securityContext") or {}
    if security.get("privileged"):
        raise Unsupported("a privileged container")
    held = security.get("capabilities", {}).get("add", [])
    profile = security.get("seccompProfile", pod_security.get("seccompProfile", {"type": "Unconfined"}))["type"]
    return {
        "ociVersion": "1.0.0", "hostname": pod.name[:63], "root": {"path": str(root), "readonly": True},
        "process": {
            "terminal": False, "cwd": "/", "user": user(pod_security, security, pod.openshift), "args": command(container, variables),
            "env": [PATH, *(f"{name}={value}" for name, value in variables.items())],
            "capabilities": {kind: [f"CAP_{name}" for name in held] for kind in ("bounding", "effective", "permitted")},
            "noNewPrivileges": security.get("allowPrivilegeEscalation") is False},
        "mounts": mounts(container, folders, files),
        "linux": {"namespaces": [*({"type": kind} for kind in ("pid", "mount", "ipc", "uts")), {"type": "network", "path": f"/run/netns/{network}"}],
                  "maskedPaths": MASKED, "readonlyPaths": READ_ONLY, **({} if profile == "Unconfined" else {"seccomp": SECCOMP})}}
