"""The Llama architecture in plain PyTorch, written for training on a CPU.

Tensor names and numerics follow Hugging Face's LlamaForCausalLM (rotate-half RoPE, RMSNorm with
fp32 statistics, SwiGLU, grouped-query attention, untied head), so that exporting is only renaming.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 2048
    d: int = 256  # hidden_size
    layers: int = 5
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    ff: int = 512  # intermediate_size
    theta: float = 1e6
    eps: float = 1e-5
    context: int = 2048


class RMSNorm(nn.Module):
    def __init__(self, d, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


def rope_table(cfg, length):
    """cos and sin, each [length, head_dim / 2]."""
    inv = 1.0 / cfg.theta ** (torch.arange(0, cfg.head_dim, 2).double() / cfg.head_dim)
    angle = torch.arange(length).double()[:, None] * inv[None]
    return angle.cos().float(), angle.sin().float()


def rope(x, cos, sin):
    """x [batch, heads, tokens, head_dim]; rotate-half convention."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Layer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        self.input_layernorm = RMSNorm(c.d, c.eps)
        self.post_attention_layernorm = RMSNorm(c.d, c.eps)
        self.q_proj = nn.Linear(c.d, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.d, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.d, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.d, bias=False)
        self.gate_proj = nn.Linear(c.d, c.ff, bias=False)
        self.up_proj = nn.Linear(c.d, c.ff, bias=False)
        self.down_proj = nn.Linear(c.ff, c.d, bias=False)

    def attend(self, x, cos, sin):
        b, t, _ = x.shape
        c = self.c
        q = rope(self.q_proj(x).view(b, t, c.heads, c.head_dim).transpose(1, 2), cos, sin)
        k = rope(self.k_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, c.kv_heads, c.head_dim).transpose(1, 2)
        group = c.heads // c.kv_heads
        k = k.repeat_interleave(group, 1)
        v = v.repeat_interleave(group, 1)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(a.transpose(1, 2).reshape(b, t, -1))

    def forward(self, h, cos, sin):
        h = h + self.attend(self.input_layernorm(h), cos, sin)
        x = self.post_attention_layernorm(h)
        return h + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Llama(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed_tokens = nn.Embedding(cfg.vocab, cfg.d)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = RMSNorm(cfg.d, cfg.eps)
        self.lm_head = nn.Linear(cfg.d, cfg.vocab, bias=False)
        cos, sin = rope_table(cfg, cfg.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._init()

    def _init(self):
        # Embeddings of standard deviation 1 and an untied head decide whether in-context retrieval
        # emerges within a small budget: at 0.02 the layers' outputs swamp the token's identity.
        for name, p in self.named_parameters():
            if p.dim() != 2:
                continue
            std = 1 / math.sqrt(p.shape[1])
            if "embed" in name:
                std = 1.0
            if "lm_head" in name:
                std = 0.02
            if "o_proj" in name or "down_proj" in name:
                std /= math.sqrt(2 * self.cfg.layers)
            nn.init.normal_(p, 0.0, std)
        self._wire_previous_token_head()

    @torch.no_grad()
    def _wire_previous_token_head(self, score=50.0, pairs=6):
        """Starts query heads of KV head 0 in layer 0 looking at offset -1 (an init; all trainable).

        Residual dimension 0 is a constant in every embedding; a RoPE phase of one position turns
        it into "attend to the token before". It halves the time until retrieval emerges.
        """
        c, layer = self.cfg, self.layers[0]
        half = c.head_dim // 2
        inv = 1.0 / c.theta ** (torch.arange(0, c.head_dim, 2).float() / c.head_dim)
        self.embed_tokens.weight[:, 0] = 3.0
        scale = math.sqrt(score * math.sqrt(c.head_dim / 32.0)) / 2.9
        layer.q_proj.weight[: c.head_dim].mul_(0.1)
        layer.k_proj.weight[: c.head_dim].mul_(0.1)
        for i in range(pairs):
            layer.q_proj.weight[i, 0] = scale
            layer.q_proj.weight[i + half, 0] = 0.0
            layer.k_proj.weight[i, 0] = scale * math.cos(inv[i])
            layer.k_proj.weight[i + half, 0] = scale * math.sin(inv[i])

    def hidden(self, ids):
        t = ids.shape[1]
        cos, sin = self.cos[:t], self.sin[:t]
        h = self.embed_tokens(ids)
        for layer in self.layers:
            h = layer(h, cos, sin)
        return self.norm(h)

    def forward(self, ids):
        return self.lm_head(self.hidden(ids))

    def loss(self, ids, weights):
        """Weighted mean cross entropy of ids[:, 1:]; weights like ids.

        Returns (loss, ce, hits), the latter two [batch, tokens - 1] and zero where the weight is.
        Logits are computed only where there is a weight.
        """
        w = weights[:, 1:]
        where = w > 0
        logits = self.lm_head(self.hidden(ids[:, :-1])[where])
        target = ids[:, 1:][where]
        ce = F.cross_entropy(logits, target, reduction="none")
        with torch.no_grad():
            hits = torch.zeros(w.shape, dtype=torch.bool)
            hits[where] = logits.argmax(-1) == target
            every = torch.zeros(w.shape)
            every[where] = ce
        return (ce * w[where]).sum() / w.sum(), every, hits
