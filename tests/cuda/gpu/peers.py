#!/usr/bin/env python3
"""torch's scaled_dot_product_attention on the shapes of gpu_check, over contiguous K and V (pages are
harder): an upper bound for those who have torch. Prints rows, and writes them to the JSON file that
it is told; nothing where there is no torch or no GPU."""

import json
import sys

try:
    import torch
    from torch.nn.functional import scaled_dot_product_attention as attention
except ImportError:
    sys.exit(0)
if not torch.cuda.is_available():
    sys.exit(0)


def median_us(call):
    runs = []
    for _ in range(22):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        runs.append(1e3 * begin.elapsed_time(end))
    return sorted(runs[2:])[10]


def tensor(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


rows = []
for batch, length in [(1, 4096), (16, 4096), (64, 4096)]:
    q, k, v = tensor(batch, 32, 1, 128), tensor(batch, 8, length, 128), tensor(batch, 8, length, 128)
    us = median_us(lambda: attention(q, k, v, enable_gqa=True))
    rows.append({"name": f"torch decode {batch} x {length}", "median_us": us,
                 "rate": batch * length * 4096 / us / 1e3, "unit": "GB/s"})
for length in [1024, 2048, 8192]:
    q, k, v = tensor(1, 32, length, 128), tensor(1, 8, length, 128), tensor(1, 8, length, 128)
    us = median_us(lambda: attention(q, k, v, is_causal=True, enable_gqa=True))
    rows.append({"name": f"torch prefill {length}", "median_us": us,
                 "rate": 2 * length * length * 4096 / us / 1e6, "unit": "TFLOP/s"})
with open(sys.argv[1], "w") as file:
    json.dump(rows, file, indent=1)
for row in rows:
    print(f"{row['name']:44} {row['median_us']:10.1f} {row['rate']:8.1f} {row['unit']}")
