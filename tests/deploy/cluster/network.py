"""Nodes and pods as network namespaces. Every pod has one routed link to its node, as with Calico, and every node one link to
the machine's bridge. So each packet of a pod passes the hooks of its node, where rules.py has Services and NetworkPolicies."""

import threading

from .machine import run

MACHINE_LINK = "fabric"
POD_SIDE, NODE_MAC = "eth0", "ee:ee:ee:ee:ee:ee"


class Plan:
    """The addresses of one family."""

    def __init__(self, family):
        self.family, four = family, family == 4
        self.machine = "172.18.0.1" if four else "fd18::1"
        self.node_bits, self.pod_bits = (24, 32) if four else (64, 128)
        self.gateway = "169.254.1.1" if four else "fe80::ecee"
        self.names = "10.96.0.10" if four else "fd96::a"  # the name server
        self.api = "10.96.0.1" if four else "fd96::1"
        self.everywhere = "0.0.0.0/0" if four else "::/0"
        self.flag = "-4" if four else "-6"

    def node(self, number):
        return f"172.18.0.{10 + number}" if self.family == 4 else f"fd18::{10 + number:x}"

    def pods(self, node):
        return f"10.244.{node}.0/24" if self.family == 4 else f"fd44:0:0:{node:x}::/64"

    def pod(self, node, number):
        return f"10.244.{node}.{number}" if self.family == 4 else f"fd44:0:0:{node:x}::{number:x}"

    def service(self, number):
        return f"10.96.1.{number}" if self.family == 4 else f"fd96::1:{number:x}"


def url_host(address):
    return f"[{address}]" if ":" in address else address


class Node:
    def __init__(self, network, number, labels):
        self.network, self.number, self.labels = network, number, {"kubernetes.io/hostname": f"node-{number}", **labels}
        self.name, self.space, self.link = f"node-{number}", f"node-{number}", f"up{number}"
        self.addresses = [plan.node(number) for plan in network.plans]
        self.pods_made, self.lock = 1, threading.Lock()
        self.cordoned = self.lost = False
        self.rules = ""

    def join(self):
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        run("ip", "link", "set", self.link, "master", MACHINE_LINK, "up")
        inside = ("ip", "-n", self.space)
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", "eth0", "up")
        run("ip", "netns", "exec", self.space, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
            "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0")
        for plan in self.network.plans:
            address = plan.node(self.number)
            run(*inside, "addr", "add", f"{address}/{plan.node_bits}", "dev", "eth0", *(["nodad"] if plan.family == 6 else []))
            run(*inside, plan.flag, "route", "add", "default", "via", plan.machine)
            run("ip", plan.flag, "route", "add", plan.pods(self.number), "via", address)

    def add_pod(self, space):
        """A namespace with a link to this node; the pod's addresses."""
        with self.lock:
            self.pods_made += 1
            number = self.pods_made
        near, outside, inside = f"pod{number}", ("ip", "-n", self.space), ("ip", "-n", space)
        run("ip", "netns", "add", space)
        run(*outside, "link", "add", near, "address", NODE_MAC, "type", "veth", "peer", "name", POD_SIDE, "netns", space)
        run(*outside, "link", "set", near, "up")
        run(*inside, "link", "set", "lo", "up")
        run(*inside, "link", "set", POD_SIDE, "up")
        addresses = []
        for plan in self.network.plans:
            address = plan.pod(self.number, number)
            run(*inside, "addr", "add", f"{address}/{plan.pod_bits}", "dev", POD_SIDE, *(["nodad"] if plan.family == 6 else []))
            run(*inside, plan.flag, "route", "add", plan.gateway, "dev", POD_SIDE)
            run(*inside, plan.flag, "neigh", "replace", plan.gateway, "lladdr", NODE_MAC, "dev", POD_SIDE, "nud", "permanent")
            run(*inside, plan.flag, "route", "add", "default", "via", plan.gateway, "dev", POD_SIDE)
            run(*outside, plan.flag, "route", "add", f"{address}/{plan.pod_bits}", "dev", near)
            addresses.append(address)
        return addresses

    def set_rules(self, text):
        run("ip", "netns", "exec", self.space, "nft", "-f", "-", text=text)
        self.rules = text

    def cut(self, pod, address):
        """No packet passes between an address of a pod of this node and another address from now on."""
        family = "ip6" if ":" in pod else "ip"
        run("ip", "netns", "exec", self.space, "nft", "-f", "-", text=(
            "table inet cut { chain forward { type filter hook forward priority -10; "
            f"{family} saddr {pod} {family} daddr {address} drop; {family} saddr {address} {family} daddr {pod} drop; }}; }}\n"))

    def mend(self):
        """The end of what `cut` did."""
        run("ip", "netns", "exec", self.space, "nft", "delete", "table", "inet", "cut")

    def disconnect(self):
        """No packet leaves or enters the node from now on, and no connection is closed."""
        run("ip", "link", "set", self.link, "down")

    def reconnect(self):
        run("ip", "link", "set", self.link, "up")


def remove_pod(space):
    run("ip", "netns", "del", space)


class Network:
    """`families` are 4, 6 or both; pods' first address is of the first."""

    def __init__(self, families, nodes, labels):
        self.plans = [Plan(family) for family in families]
        run("ip", "link", "add", MACHINE_LINK, "type", "bridge")
        run("ip", "link", "set", MACHINE_LINK, "up")
        for plan in self.plans:
            more = ["nodad"] if plan.family == 6 else []
            run("ip", "addr", "add", f"{plan.machine}/{plan.node_bits}", "dev", MACHINE_LINK, *more)
            for address in (plan.names, plan.api):
                run("ip", "addr", "add", f"{address}/{plan.pod_bits}", "dev", MACHINE_LINK, *more)
        self.nodes = [Node(self, number, labels) for number in range(1, nodes + 1)]
        for node in self.nodes:
            node.join()
        for node in self.nodes:
            self.add_routes(node)

    def add_routes(self, node):
        for plan in self.plans:
            for other in self.nodes:
                if other is not node:
                    run("ip", "-n", node.space, plan.flag, "route", "add", plan.pods(other.number), "via", plan.node(other.number))

    def remove(self):
        """Nodes and the bridge; pods' namespaces must have gone."""
        for node in self.nodes:
            run("ip", "netns", "del", node.space)
        run("ip", "link", "del", MACHINE_LINK)
