"""The *restricted* Pod Security Standard of Kubernetes, as checks of a pod's spec. Each check is one control of the standard
(https://kubernetes.io/docs/concepts/security/pod-security-standards/)."""

VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
SYSCTLS = {"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies",
           "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
           "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}


def containers(pod):
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, [])


def of_pod(pod):
    security = pod.get("securityContext", {})
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield f"{name} is set"
    for volume in pod.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds or not kinds <= VOLUMES:
            yield f"volume {volume['name']} is of kind {sorted(kinds)}"
    if security.get("runAsUser") == 0:
        yield "the pod runs as root"
    for sysctl in security.get("sysctls", []):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    if "windowsOptions" in security:
        yield "windowsOptions are set"


def profile_allowed(profile):
    return profile is not None and profile.get("type") in ("RuntimeDefault", "Localhost")


def of_container(pod, container):
    outer, own = pod.get("securityContext", {}), container.get("securityContext", {})
    name = container["name"]
    if own.get("privileged"):
        yield f"{name} is privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name} may escalate privileges"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", []):
        yield f"{name} does not drop all capabilities"
    if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
        yield f"{name} adds {capabilities['add']}"
    if own.get("runAsNonRoot", outer.get("runAsNonRoot")) is not True:
        yield f"{name} may run as root"
    if own.get("runAsUser") == 0:
        yield f"{name} runs as root"
    if not profile_allowed(own.get("seccompProfile", outer.get("seccompProfile"))):
        yield f"{name} has no seccomp profile"
    if own.get("procMount", "Default") != "Default":
        yield f"{name} has procMount {own['procMount']}"
    for context in (own, outer):
        if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no AppArmor profile"
        options = context.get("seLinuxOptions", {})
        if options.get("type", "") not in ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t") or \
                options.get("user") or options.get("role"):
            yield f"{name} has SELinux options {options}"
    for port in container.get("ports", []):
        if port.get("hostPort"):
            yield f"{name} has host port {port['hostPort']}"
    if any("host" in handler.get(kind, {}) for handler in [*container.get("lifecycle", {}).values(), *(
            container.get(probe, {}) for probe in ("startupProbe", "livenessProbe", "readinessProbe"))] for kind in ("httpGet", "tcpSocket")):
        yield f"{name} has a probe to another host"


def violations(pod):
    """A list of the parts of a pod's spec that the standard refuses; empty if the pod is admitted."""
    found = list(of_pod(pod))
    for container in containers(pod):
        found += of_container(pod, container)
    return found
