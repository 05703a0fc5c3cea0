"""The chart's variants on a machine without GPUs: which can run, and what they need around them."""

import os
import re
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
        return fitting(variants.VARIANTS[base]), families, False
    return fitting(variants.VARIANTS[name]), FAMILIES.get(name, (4,)), name in variants.UPGRADES


def fitting(values):
    """The values, where a worker's block pool and its host tier take at most an eighth of this machine's memory each."""
    limit_gib = max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8 >> 30)
    def fit(key, value):
        if key in ("prefill", "decode"):
            return {name: fit(name, one) for name, one in value.items()}
        large = key in ("kvMemory", "dramMemory") and (size := re.fullmatch(r"(\d+)GiB", value)) and int(size[1]) > limit_gib
        return f"{limit_gib}GiB" if large else value
    return {key: fit(key, value) for key, value in values.items()}


def of_gpu(name):
    """With the chart's own model: workers look for their model before they look for a GPU."""
    return {**fitting(variants.VARIANTS[name]), "model": {}}, (4,), False
