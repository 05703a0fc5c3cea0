#!/usr/bin/env python3
"""Regenerates tests/golden/logits/gpt_oss_mxfp4: a small gpt-oss whose experts are MXFP4, and what
transformers computes with the weights that its convert_moe_packed_tensors makes of them.

    python3 tests/golden/make_mxfp4.py

Runs in the environment of make_logits.py, and writes the same expected.safetensors, with one more
tensor: logits_int16 is logits_bf16_kv with the inputs of experts rounded to 16-bit integers, one
scale a row, as the kernels round them (kernels/cpu/gemm/integer_ops.h).
"""

import json
import sys

import make_logits

NAME = "gpt_oss_mxfp4"
SHAPE = dict(make_logits.SMALL, **make_logits.GPT_OSS, hidden_size=64, intermediate_size=32)
SEED = 201


def check_example():
    """The low half of a byte is the earlier input; an exponent of 128 doubles."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    blocks = torch.full((1, 1, 1, 16), 0x72, dtype=torch.uint8)
    scales = torch.full((1, 1, 1), 128, dtype=torch.uint8)
    row = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)[0, :, 0]
    assert row[:4].tolist() == [2, 12, 2, 12]


def draw_experts(model, generator):
    """Gives the experts random codes and scales; returns these tensors by their names."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    stored = {}
    for name, weight in model.named_parameters():
        if not name.endswith(("gate_up_proj", "down_proj")):
            continue
        experts, inputs, outputs = weight.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(119, 124, shape, generator=generator, dtype=torch.uint8)
        stored[f"{name}_blocks"], stored[f"{name}_scales"] = blocks, scales
        with torch.no_grad():
            weight.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    return stored


def rounded(rows):
    import torch
    most = 127 * 256 + 127
    size = rows.abs().amax(-1, keepdim=True)
    return torch.round(rows * (most / size)) * (size / most)


def experts_with(round_rows):
    """The forward pass of GptOssExperts with rounded inputs of both matrices."""
    import torch

    def forward(self, hidden_states, router_indices=None, routing_weights=None):
        rows = hidden_states.reshape(-1, self.hidden_size)
        result = torch.zeros_like(rows)
        for e in range(self.num_experts):
            used = (router_indices == e).any(-1).nonzero()[:, 0]
            product = round_rows(rows[used]) @ self.gate_up_proj[e] + self.gate_up_proj_bias[e]
            gate = product[:, 0::2].clamp(max=self.limit)
            up = product[:, 1::2].clamp(-self.limit, self.limit)
            gated = (up + 1) * gate * torch.sigmoid(1.702 * gate)
            output = round_rows(gated) @ self.down_proj[e] + self.down_proj_bias[e]
            result[used] += output * routing_weights[used, e, None]
        return result.reshape(hidden_states.shape)

    return forward


def compute(model, tokens):
    import torch
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    def logits():
        return model(tokens, use_cache=False).logits[0].contiguous()

    expected = {"tokens": tokens[0].to(torch.int32)}
    with torch.no_grad():
        expected["logits"] = logits()
        model.set_attn_implementation("bf16_kv")
        expected["logits_bf16_kv"] = logits()
        plain = GptOssExperts.forward
        GptOssExperts.forward = experts_with(lambda rows: rows)
        assert (logits() - expected["logits_bf16_kv"]).abs().max() < 1e-3
        GptOssExperts.forward = experts_with(rounded)
        expected["logits_int16"] = logits()
        GptOssExperts.forward = plain
        model.set_attn_implementation("eager")
    return expected


def main():
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, GptOssConfig
    torch.set_num_threads(1)
    make_logits.register_bf16_kv()
    check_example()
    config = GptOssConfig(**{**make_logits.SHAPE, **SHAPE})
    generator = torch.Generator().manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    make_logits.draw_weights(model, generator)
    stored = draw_experts(model, generator)
    for name, value in model.state_dict().items():
        if f"{name}_blocks" not in stored:
            stored[name] = value.to(torch.bfloat16)
    tokens = torch.randint(0, config.vocab_size, (1, make_logits.TOKENS), generator=generator)
    expected = compute(model, tokens)
    directory = make_logits.ROOT / "tests" / "golden" / "logits" / NAME
    directory.mkdir(parents=True, exist_ok=True)
    written = {**config.to_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16",
               "quantization_config": dict(
                   quant_method="mxfp4", modules_to_not_convert=[
                       "model.layers.*.self_attn", "model.layers.*.mlp.router",
                       "model.embed_tokens", "lm_head"])}
    (directory / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    save_file({name: value.contiguous() for name, value in stored.items()},
              directory / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, directory / "expected.safetensors")
    off = (expected["logits_int16"] - expected["logits_bf16_kv"]).pow(2).mean().sqrt()
    print(f"{NAME}: logits up to {expected['logits'].abs().max():.2f}, integers change them by "
          f"{off / expected['logits'].pow(2).mean().sqrt():.1e}")


if __name__ == "__main__":
    make_logits.enter_venv()
    sys.exit(main())
