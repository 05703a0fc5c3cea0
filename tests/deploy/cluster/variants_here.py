"""The chart's variants on a machine without GPUs: which can run, and what they need around them."""

import sys

from .image import ROOT

sys.path.insert(0, str(ROOT / "deploy"))
import variants  # noqa: E402

GPU = {name for name, values in variants.VARIANTS.items() if any(values.get(role, {}).get("gpus") for role in ("prefill", "decode"))}
# Beside the chart's own: the same values in clusters of other kinds.
MORE = {"defaults, IPv6 alone": ("defaults", (6,)), "defaults, IPv6 and IPv4": ("defaults", (6, 4)),
        "keys and certificates, IPv6 alone": ("keys and certificates", (6,))}
FAMILIES = {"a load balancer with both IP families": (4, 6)}


def names():
    return [name for name in variants.VARIANTS if name not in GPU] + list(MORE)


def of(name):
    """Values, IP families, and whether it is rendered as an upgrade."""
    if name in MORE:
        base, families = MORE[name]
        return variants.VARIANTS[base], families, False
    return variants.VARIANTS[name], FAMILIES.get(name, (4,)), name in variants.UPGRADES


def of_gpu(name):
    return variants.VARIANTS[name], (4,), False
