"""The cluster's name server, by dnslib: A and AAAA of Services, of headless Services' pods, and of hosts outside."""

import ipaddress
import socket

from dnslib import AAAA, QTYPE, RCODE, RR, A
from dnslib.server import BaseResolver, DNSLogger, DNSServer, TCPServer, UDPServer

DOMAIN = "cluster.local"
TTL_S = 5  # CoreDNS's for cluster.local


class UDPServer6(UDPServer):
    address_family = socket.AF_INET6


class TCPServer6(TCPServer):
    address_family = socket.AF_INET6


class Resolver(BaseResolver):
    """`look_up` gives the addresses of a name, or None where there is no such name."""

    def __init__(self, look_up):
        self.look_up = look_up

    def resolve(self, request, handler):
        reply = request.reply()
        found = self.look_up(str(request.q.qname).rstrip(".").lower())
        if found is None:
            reply.header.rcode = RCODE.NXDOMAIN
        for address in found or ():
            four = ipaddress.ip_address(address).version == 4
            if QTYPE[request.q.qtype] in ("A" if four else "AAAA", "ANY"):
                data = A(address) if four else AAAA(address)
                reply.add_answer(RR(request.q.qname, QTYPE.A if four else QTYPE.AAAA, rdata=data, ttl=TTL_S))
        return reply


class NameServer:
    def __init__(self, addresses, look_up):
        resolver, silent = Resolver(look_up), DNSLogger("-request,-reply,-truncated,-error")
        self.servers = []
        for address in addresses:
            kinds = (UDPServer6, TCPServer6) if ":" in address else (UDPServer, TCPServer)
            self.servers += [DNSServer(resolver, address=address, port=53, server=kind, tcp=kind in (TCPServer, TCPServer6), logger=silent)
                             for kind in kinds]
        for server in self.servers:
            server.start_thread()

    def stop(self):
        for server in self.servers:
            server.stop()
            server.server.server_close()


def resolv_conf(namespace, servers):
    return (f"search {namespace}.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\n" + "".join(f"nameserver {server}\n" for server in servers) +
            "options ndots:5\n")
