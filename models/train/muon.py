"""Muon: momentum whose update is orthogonalised by a Newton-Schulz iteration (Jordan et al., 2024).

In fp32 and batched over matrices of one shape, which is what is fast on a CPU.
"""

import torch


@torch.no_grad()
def orthogonalise(g, steps=5):
    """g [n, rows, cols]: the nearest semi-orthogonal matrices, approximately."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[1] > g.shape[2]
    x = g.mT if tall else g
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        s = x @ x.mT
        x = a * x + (b * s + c * s @ s) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """The update's root mean square is 0.2 lr, like AdamW's, so learning rates compare."""

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.01):
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                shapes.setdefault(p.shape, []).append((p, p.grad.lerp(state["m"],
                                                                      group["momentum"])))
            for shape, found in shapes.items():
                update = orthogonalise(torch.stack([g for _, g in found]))
                scale = group["lr"] * 0.2 * max(shape) ** 0.5
                for (p, _), u in zip(found, update):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).add_(u, alpha=-scale)
