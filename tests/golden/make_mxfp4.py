#!/usr/bin/env python3
"""Regenerates gpt_oss_mxfp4 and gguf_gpt_oss of tests/golden/logits: small models gpt-oss whose
experts are MXFP4, in its own format and as GGUF, and what transformers computes with the weights
that its convert_moe_packed_tensors makes of the codes.

    python3 tests/golden/make_mxfp4.py

Runs in the environment of make_logits.py, and writes the same expected.safetensors, with one more
tensor: logits_int16 is logits_bf16_kv with the inputs of experts rounded to 16-bit integers, one
scale a row, as the kernels round them (kernels/cpu/gemm/integer_ops.h).
"""

import json
import sys

import make_gguf
import make_logits

SHAPE = dict(make_logits.SMALL, **make_logits.GPT_OSS, hidden_size=64, intermediate_size=32)
# GGUF files have no limit: it is that of all published models, and larger weights reach it.
GGUF_LIMIT = 7.0
NAMES = {"mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks",
         "post_attention_layernorm": "post_attention_norm"}


def check_example():
    """The low half of a byte is the earlier input; an exponent of 128 doubles."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    blocks = torch.full((1, 1, 1, 16), 0x72, dtype=torch.uint8)
    scales = torch.full((1, 1, 1), 128, dtype=torch.uint8)
    row = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)[0, :, 0]
    assert row[:4].tolist() == [2, 12, 2, 12]


def draw_experts(model, generator, exponent):
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
        scales = torch.randint(exponent, exponent + 5, shape, generator=generator, dtype=torch.uint8)
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


def write_checkpoint(directory, model, stored):
    import torch
    from safetensors.torch import save_file
    for name, value in model.state_dict().items():
        if f"{name}_blocks" not in stored:
            stored[name] = value.to(torch.bfloat16)
    written = {**model.config.to_dict(), "architectures": [type(model).__name__],
               "dtype": "bfloat16", "quantization_config": dict(
                   quant_method="mxfp4", modules_to_not_convert=[
                       "model.layers.*.self_attn", "model.layers.*.mlp.router",
                       "model.embed_tokens", "lm_head"])}
    (directory / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    save_file({name: value.contiguous() for name, value in stored.items()},
              directory / "model.safetensors", metadata={"format": "pt"})


def ggml_blocks(blocks, scales):
    """Rows of ggml's blocks: the exponent, then 16 bytes with input i in the low half of byte i and
    input 16 + i in the high half."""
    import torch
    codes = torch.stack((blocks & 15, blocks >> 4), -1).flatten(-2)
    halves = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((scales[..., None], halves), -1).flatten(-2)


def expert_tensors(module, blocks, scales, bias):
    """name: tensor, as GGUF files have them. Rows of gate and up are tensors of their own."""
    if module.endswith("down_proj"):
        return {"ffn_down_exps.weight": ggml_blocks(blocks, scales), "ffn_down_exps.bias": bias}
    tensors = {}
    for first, name in enumerate(("ffn_gate_exps", "ffn_up_exps")):
        tensors[f"{name}.weight"] = ggml_blocks(blocks[:, first::2], scales[:, first::2])
        tensors[f"{name}.bias"] = bias[:, first::2]
    return tensors


def write_gguf(directory, model, stored):
    import gguf
    import torch
    config, rope = model.config, model.config.rope_scaling
    writer = gguf.GGUFWriter(directory / "model.gguf", "gpt-oss")
    config.rope_scaling = None  # make_gguf describes Llama's
    make_gguf.describe(writer, config)
    config.rope_scaling = rope
    writer.add_sliding_window(config.sliding_window)
    writer.add_expert_count(config.num_local_experts)
    writer.add_expert_used_count(config.num_experts_per_tok)
    writer.add_expert_feed_forward_length(config.intermediate_size)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    make_gguf.NAMES.update(NAMES)
    values = dict(model.named_parameters())
    for name, value in values.items():
        if name.endswith("_bias"):
            continue
        if f"{name}_blocks" not in stored:
            whole = name if name.endswith((".weight", ".bias")) else name + ".weight"
            bf16 = value.dim() == 2 and "router" not in name
            data = value.detach().to(torch.bfloat16).view(torch.uint8) if bf16 else value.detach()
            writer.add_tensor(f"{make_gguf.gguf_name(whole)}.{whole.rsplit('.', 1)[1]}",
                              data.numpy(), raw_dtype=gguf.GGMLQuantizationType.BF16 if bf16 else None)
            continue
        layer = name.split(".")[2]
        parts = expert_tensors(name, stored[f"{name}_blocks"], stored[f"{name}_scales"],
                               values[f"{name}_bias"].detach())
        for part, data in parts.items():
            blocks = part.endswith(".weight")
            writer.add_tensor(f"blk.{layer}.{part}", data.contiguous().numpy(),
                              raw_dtype=gguf.GGMLQuantizationType.MXFP4 if blocks else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make(name, changes, exponent, write, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, GptOssConfig
    config = GptOssConfig(**{**make_logits.SHAPE, **SHAPE, **changes})
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    make_logits.draw_weights(model, generator)
    stored = draw_experts(model, generator, exponent)
    tokens = torch.randint(0, config.vocab_size, (1, make_logits.TOKENS), generator=generator)
    expected = compute(model, tokens)
    directory = make_logits.ROOT / "tests" / "golden" / "logits" / name
    directory.mkdir(parents=True, exist_ok=True)
    write(directory, model, stored)
    save_file(expected, directory / "expected.safetensors")
    off = (expected["logits_int16"] - expected["logits_bf16_kv"]).pow(2).mean().sqrt()
    print(f"{name}: logits up to {expected['logits'].abs().max():.2f}, integers change them by "
          f"{off / expected['logits'].pow(2).mean().sqrt():.1e}")


def main():
    import torch
    torch.set_num_threads(1)
    make_logits.register_bf16_kv()
    make_gguf.need_gguf()
    check_example()
    make("gpt_oss_mxfp4", {}, 119, write_checkpoint, 201)
    make("gguf_gpt_oss", dict(swiglu_limit=GGUF_LIMIT), 121, write_gguf, 202)


if __name__ == "__main__":
    make_logits.enter_venv()
    sys.exit(main())
