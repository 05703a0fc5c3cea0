"""Services and NetworkPolicies as the nftables rules of one node: pure functions of what there is."""

import dataclasses
import ipaddress


@dataclasses.dataclass(frozen=True)
class Peer:
    """A pod, as rules see it."""
    addresses: tuple
    namespace: str
    labels: dict
    local: bool = False         # on the node of these rules
    host_network: bool = False  # policies do not hold for it


@dataclasses.dataclass(frozen=True)
class Port:
    """One port of a Service at one address, and the ready endpoints behind it: (address, port)."""
    address: str
    port: int
    endpoints: tuple


def family(address):
    return "ip6" if ":" in str(address) else "ip"


def matches(selector, labels):
    """Whether a label selector selects; {} selects everything."""
    if not (selector.get("matchLabels") or {}).items() <= labels.items():
        return False
    for wanted in selector.get("matchExpressions") or []:
        value = labels.get(wanted["key"])
        held = {"In": lambda: value in wanted["values"], "NotIn": lambda: value not in wanted["values"],
                "Exists": lambda: value is not None, "DoesNotExist": lambda: value is None}[wanted["operator"]]()
        if not held:
            return False
    return True


def endpoints_of(port):
    wanted = f"{family(port.address)} daddr {port.address} tcp dport {port.port}"
    if not port.endpoints:
        return [], [f"{wanted} reject with tcp reset"]
    each = ", ".join(f"{number} : {address} . {target}" for number, (address, target) in enumerate(port.endpoints))
    return [f"{wanted} dnat {family(port.address)} to numgen random mod {len(port.endpoints)} map {{ {each} }}"], []


def addresses_of(peer, policy_namespace, pods, namespaces):
    """The networks that one entry of `from` or `to` names."""
    if "ipBlock" in peer:
        return [(peer["ipBlock"]["cidr"], tuple(peer["ipBlock"].get("except", ())))]
    if "namespaceSelector" in peer:
        spaces = {name for name, labels in namespaces.items() if matches(peer["namespaceSelector"], labels)}
    else:
        spaces = {policy_namespace}
    return [(address, ()) for pod in pods if pod.namespace in spaces and matches(peer.get("podSelector") or {}, pod.labels)
            for address in pod.addresses]


def ports_of(rule):
    """The matches of a rule's ports; [""] without any."""
    ports = rule.get("ports")
    if not ports:
        return [""]
    return [f"{port.get('protocol', 'TCP').lower()} dport {port['port']}" for port in ports]


def allowed(policy, rule, side, pods, namespaces):
    """The rules that let one entry of `ingress` (side saddr) or `egress` (daddr) pass."""
    peers = rule.get("from" if side == "saddr" else "to")
    if not peers:
        return [f"{port} return".strip() for port in ports_of(rule)]
    lines = []
    for peer in peers:
        for network, excepted in addresses_of(peer, policy["metadata"]["namespace"], pods, namespaces):
            but = f"{family(network)} {side} != {{ {', '.join(excepted)} }} " if excepted else ""
            lines += [f"{family(network)} {side} {network} {but}{port} return" for port in ports_of(rule)]
    return lines


def chain_of(direction, address):
    return f"{direction}_{int(ipaddress.ip_address(address)):x}"


def policy_chains(pod, policies, pods, namespaces):
    """Chains of one pod, and the jumps to them. A chain that ends drops; a pod without a policy has none."""
    chains, jumps = [], []
    for direction, kind, own, side in (("egress", "Egress", "saddr", "daddr"), ("ingress", "Ingress", "daddr", "saddr")):
        mine = [policy for policy in policies if policy["metadata"]["namespace"] == pod.namespace and kind in policy["spec"]["policyTypes"]
                and matches(policy["spec"]["podSelector"], pod.labels)]
        if not mine:
            continue
        lines = [line for policy in mine for rule in policy["spec"].get(direction) or []
                 for line in allowed(policy, rule, side, pods, namespaces)]
        for address in pod.addresses:
            name = chain_of(direction, address)
            chains.append(f"  chain {name} {{\n" + "".join(f"    {line}\n" for line in [*dict.fromkeys(lines), "drop"]) + "  }\n")
            jumps.append(f"{family(address)} {own} {address} jump {name}")
    return chains, jumps


def ruleset(ports, policies, pods, namespaces, kubelet):
    """The whole table of a node. `kubelet` are the addresses from which probes come, which no policy stops."""
    nat, refuse, chains, jumps = [], [], [], []
    for port in ports:
        to, none = endpoints_of(port)
        nat, refuse = nat + to, refuse + none
    for pod in pods:
        if pod.local and not pod.host_network:
            own, to = policy_chains(pod, policies, pods, namespaces)
            chains, jumps = chains + own, jumps + to
    probes = [f"{family(address)} saddr {address} accept" for address in kubelet]
    block = lambda lines: "".join(f"    {line}\n" for line in lines)  # noqa: E731
    return ("table inet cluster {}\ndelete table inet cluster\ntable inet cluster {\n" + "".join(chains) +
            "  chain services {\n" + block(nat) + "  }\n" +
            "  chain refused {\n" + block(refuse) + "  }\n" +
            "  chain prerouting { type nat hook prerouting priority -100; jump services; }\n"
            "  chain output { type nat hook output priority -100; jump services; }\n"
            "  chain refused_output { type filter hook output priority 0; jump refused; }\n"
            "  chain forward {\n    type filter hook forward priority 0;\n    ct state established,related accept\n    jump refused\n" +
            block(probes) + block(jumps) + "  }\n}\n")
