#!/usr/bin/env python3
"""Regenerates the quantised checkpoints of tests/golden/logits, and what transformers computes with
their dequantised weights in float32.

    python3 tests/golden/make_quantised.py [CASE ...]

Runs in the environment of make_logits.py, and writes the same expected.safetensors, with one more
tensor: logits_int16 is logits_bf16_kv with the inputs of quantised layers rounded to 16-bit
integers, one scale a row, as the kernels round them (kernels/cpu/gemm/integer_ops.h). Every linear
layer of a small random model is rounded to codes, scales and zero points, which are packed as the
format's own tools pack them; the oracle's weights are unpacked again from the packed tensors by the
formulas below, so that a mistake of packing shows as a wrong example here, not as a wrong oracle.

    compressed-tensors  weight = scale * (code - zero); codes of ascending inputs from the low bits
                        on; zero points packed along the outputs
    GPTQ                weight_packed along the inputs, outputs innermost; "gptq" stores zero - 1
    AWQ                 packed along the outputs, in the order 0 2 4 6 1 3 5 7
    FP8                 weight = scale * number; one scale for a block of outputs and inputs, a row, or
                        all. Inputs stay as they are: there is no logits_int16
"""

import json
import sys

import make_logits

AWQ_NIBBLE = [0, 4, 1, 5, 2, 6, 3, 7]
SHAPE = dict(intermediate_size=128)


def words(codes, bits, nibble=None):
    """Packs codes [..., n] into 32-bit words [..., n * bits / 32], low bits first."""
    import torch
    per = 32 // bits
    padded = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % per)).long()
    grouped = padded.reshape(*codes.shape[:-1], -1, per)
    place = torch.tensor(nibble or range(per)) * bits
    packed = (grouped << place).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def unpacked(packed, bits, count, nibble=None):
    """The inverse of words."""
    import torch
    place = torch.tensor(nibble or range(32 // bits)) * bits
    codes = (packed.long()[..., None] >> place) & (2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)[..., :count]


def check_examples():
    """Worked examples of the formats."""
    import torch
    # compressed-tensors: -8..-1, stored plus 8.
    assert words(torch.arange(8), 4).item() == 0x76543210
    # AutoAWQ: word 0x76543210, zeros of 1, scale 0.5.
    awq = 0.5 * (unpacked(torch.tensor([0x76543210]), 4, 8, AWQ_NIBBLE) - 1)
    assert awq.tolist() == [-0.5, 1.5, 0, 2, 0.5, 2.5, 1, 3]


def round_groups(weight, bits, group, symmetric, dtype):
    """codes, scales and zeros of a weight [outputs, inputs]; groups along the inputs."""
    import torch
    rows, inputs = weight.shape
    group = group or inputs
    count = -(-inputs // group)
    padded = torch.nn.functional.pad(weight, (0, count * group - inputs)).reshape(rows, count, group)
    top = 2**bits - 1
    if symmetric:
        scales = padded.abs().amax(-1) / (2**(bits - 1) - 1)
        zeros = torch.full(scales.shape, 2**(bits - 1))
    else:
        low, high = padded.amin(-1).clamp(max=0), padded.amax(-1).clamp(min=0)
        scales = (high - low) / top
        zeros = (-low / scales).round().clamp(0, top).long()
    scales = scales.to(dtype)
    codes = (padded / scales.float()[..., None] + zeros[..., None]).round().clamp(0, top).long()
    return codes.reshape(rows, -1)[:, :inputs], scales, zeros.long(), group


def dequantised(codes, scales, zeros, group_of_input):
    """[outputs, inputs]: scale * (code - zero), with scales and zeros [outputs, groups]."""
    scale, zero = scales.float()[:, group_of_input], zeros[:, group_of_input]
    return scale * (codes - zero).float()


def ascending(inputs, group):
    import torch
    return torch.arange(inputs) // group


def compressed_tensors(weight, bits, group, symmetric, dtype, **_):
    import torch
    codes, scales, zeros, size = round_groups(weight, bits, group, symmetric, dtype)
    tensors = {"weight_packed": words(codes, bits), "weight_scale": scales,
               "weight_shape": torch.tensor(weight.shape)}
    if not symmetric:
        tensors["weight_zero_point"] = words(zeros.T, bits).T.contiguous()
        zeros = unpacked(tensors["weight_zero_point"].T, bits, weight.shape[0]).T
    codes = unpacked(tensors["weight_packed"], bits, weight.shape[1])
    return tensors, dequantised(codes, scales, zeros, ascending(weight.shape[1], size))


def whole_bytes(weight, dtype, **_):
    import torch
    codes, scales, zeros, size = round_groups(weight, 8, 0, True, dtype)
    tensors = {"weight": (codes - 128).to(torch.int8), "weight_scale": scales}
    return tensors, dequantised(tensors["weight"].long() + 128, scales, zeros,
                                ascending(weight.shape[1], size))


def fp8(weight, dtype, key="weight_scale", block=None, single=False, input_scale=False, **_):
    """E4M3 numbers with a scale for each block (outputs, inputs), or all, or each row."""
    import torch
    rows, inputs = weight.shape
    tall, wide = block or ((rows, inputs) if single else (1, inputs))
    padded = torch.nn.functional.pad(weight, (0, -inputs % wide, 0, -rows % tall))
    tiles = padded.reshape(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide)
    scales = (tiles.abs().amax((1, 3)) / 448).to(dtype)
    spread = scales.float().repeat_interleave(tall, 0).repeat_interleave(wide, 1)[:rows, :inputs]
    numbers = (weight / spread).clamp(-448, 448).to(torch.float8_e4m3fn)
    tensors = {"weight": numbers, key: scales.reshape(()) if single else scales}
    if input_scale:
        tensors["input_scale"] = torch.tensor(0.05)
    return tensors, numbers.float() * spread


def gptq(weight, bits, group, symmetric, dtype, less, order=False, bias=False, **_):
    import torch
    rows, inputs = weight.shape
    # As with act order: groups are of inputs in the order of importance, the same for q, k and v.
    chosen = torch.randperm(inputs, generator=torch.Generator().manual_seed(inputs)) if order \
        else torch.arange(inputs)
    codes, scales, zeros, size = round_groups(weight[:, chosen], bits, group, symmetric, dtype)
    back = torch.argsort(chosen)
    codes, group_of_input = codes[:, back], (ascending(inputs, size))[back]
    tensors = {"qweight": words(codes, bits).T.contiguous(),
               "qzeros": words((zeros - less).T & (2**bits - 1), bits),
               "scales": scales.T.contiguous(), "g_idx": group_of_input.to(torch.int32)}
    if bias:
        tensors["bias"] = torch.zeros(rows, dtype=dtype)
    codes = unpacked(tensors["qweight"].T, bits, inputs)
    zeros = ((unpacked(tensors["qzeros"], bits, rows) + less) & (2**bits - 1)).T
    return tensors, dequantised(codes, tensors["scales"].T, zeros, tensors["g_idx"].long())


def awq(weight, group, dtype, **_):
    codes, scales, zeros, size = round_groups(weight, 4, group, False, dtype)
    tensors = {"qweight": words(codes.T.contiguous(), 4, AWQ_NIBBLE),
               "qzeros": words(zeros.T.contiguous(), 4, AWQ_NIBBLE),
               "scales": scales.T.contiguous()}
    codes = unpacked(tensors["qweight"], 4, weight.shape[0], AWQ_NIBBLE).T
    zeros = unpacked(tensors["qzeros"], 4, weight.shape[0], AWQ_NIBBLE).T
    return tensors, dequantised(codes, scales, zeros, ascending(weight.shape[1], size))


def compressed_config(form, bits, group, symmetric, activations=None):
    weights = dict(num_bits=bits, type="int", symmetric=symmetric, dynamic=False, actorder=None,
                   strategy="group" if group else "channel", group_size=group or None)
    return dict(quant_method="compressed-tensors", format=form, quantization_status="compressed",
                ignore=["lm_head"], kv_cache_scheme=None, config_groups=dict(group_0=dict(
                    targets=["Linear"], weights=weights, input_activations=activations,
                    output_activations=None)))


def float_config(strategy, activations, block=None):
    weights = dict(num_bits=8, type="float", symmetric=True, dynamic=False, strategy=strategy,
                   block_structure=block)
    config = compressed_config("float-quantized", 8, 0, True, activations)
    config["config_groups"]["group_0"]["weights"] = weights
    return config


def cases():
    """name: (config class, changes, function, its arguments, quantization_config)"""
    import torch
    from transformers import (DeepseekV3Config, LlamaConfig, Qwen2Config, Qwen3Config,
                              Qwen3MoeConfig)
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    dynamic = dict(num_bits=8, type="int", symmetric=True, dynamic=True, strategy="token")
    packed = "pack-quantized"
    return {
        "quantised_ct_int4": (LlamaConfig, {}, compressed_tensors,
                              dict(bits=4, group=32, symmetric=True, dtype=bf16),
                              compressed_config(packed, 4, 32, True)),
        "quantised_ct_int4_zeros": (Qwen2Config, dict(intermediate_size=88), compressed_tensors,
                                    dict(bits=4, group=32, symmetric=False, dtype=f16),
                                    compressed_config(packed, 4, 32, False)),
        "quantised_ct_int8_channel": (Qwen3Config, dict(head_dim=32, tie_word_embeddings=True),
                                      compressed_tensors,
                                      dict(bits=8, group=0, symmetric=True, dtype=f32),
                                      compressed_config(packed, 8, 0, True)),
        "quantised_ct_w8a8": (LlamaConfig, {}, whole_bytes, dict(dtype=bf16),
                              compressed_config("int-quantized", 8, 0, True, dynamic)),
        "quantised_gptq": (LlamaConfig, {}, gptq,
                           dict(bits=4, group=32, symmetric=True, dtype=f16, less=1, bias=True),
                           dict(quant_method="gptq", bits=4, group_size=32, sym=True, desc_act=False,
                                lm_head=False)),
        "quantised_gptq_v2_order": (Qwen2Config, {}, gptq,
                                    dict(bits=4, group=64, symmetric=False, dtype=f16, less=0,
                                         order=True),
                                    dict(quant_method="gptq", bits=4, group_size=64, sym=False,
                                         desc_act=True, checkpoint_format="gptq_v2")),
        "quantised_gptq_int8": (LlamaConfig, {}, gptq,
                                dict(bits=8, group=0, symmetric=False, dtype=f16, less=1),
                                dict(quant_method="gptq", bits=8, group_size=-1, sym=False,
                                     desc_act=False, checkpoint_format="gptq")),
        "quantised_awq": (LlamaConfig, {}, awq, dict(group=64, dtype=f16),
                          dict(quant_method="awq", bits=4, group_size=64, zero_point=True,
                               version="gemm", modules_to_not_convert=None)),
        "quantised_ct_int4_experts": (
            Qwen3MoeConfig, dict(make_logits.SMALL, head_dim=32, num_experts=6,
                                 num_experts_per_tok=2, moe_intermediate_size=32,
                                 norm_topk_prob=True),
            compressed_tensors, dict(bits=4, group=32, symmetric=True, dtype=bf16),
            compressed_config(packed, 4, 32, True)),
        "quantised_fp8_block": (Qwen3Config, dict(head_dim=32, intermediate_size=88), fp8,
                                dict(dtype=f32, key="weight_scale_inv", block=(48, 32)),
                                dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                     weight_block_size=[48, 32])),
        "quantised_ct_fp8_channel": (Qwen2Config, dict(intermediate_size=88), fp8,
                                     dict(dtype=bf16),
                                     float_config("channel", dict(dynamic, type="float"))),
        "quantised_ct_fp8_tensor": (LlamaConfig, {}, fp8,
                                    dict(dtype=bf16, single=True, input_scale=True),
                                    float_config("tensor", {**dynamic, "type": "float",
                                                             "dynamic": False})),
        # Blocks that end within the latents, and within a head's matrices.
        "quantised_fp8_deepseek": (
            DeepseekV3Config, dict(
                make_logits.SMALL, num_key_value_heads=4, rms_norm_eps=1e-6, kv_lora_rank=64,
                q_lora_rank=40, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=16,
                n_routed_experts=8, num_experts_per_tok=2, n_shared_experts=1, n_group=2,
                topk_group=1, first_k_dense_replace=1, moe_intermediate_size=32,
                routed_scaling_factor=1.0),
            fp8, dict(dtype=f32, key="weight_scale_inv", block=(48, 32)),
            dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                 weight_block_size=[48, 32])),
    }


def is_quantised(name):
    """Tools leave the output matrix and routers as they are."""
    return name != "lm_head" and not name.endswith(".mlp.gate")


def quantise(model, function, arguments):
    """Replaces the linear layers' weights by dequantised ones; returns the tensors of the file."""
    import torch
    stored = {}
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or not is_quantised(name):
            continue
        tensors, weight = function(module.weight.detach(), **arguments)
        stored.update({f"{name}.{key}": value for key, value in tensors.items()})
        if name.endswith("kv_b_proj"):  # a worker rounds it, as it cuts it up
            weight = weight.to(torch.bfloat16).float()
        with torch.no_grad():
            module.weight.copy_(weight)
    linear = {f"{name}.weight" for name, module in model.named_modules()
              if isinstance(module, torch.nn.Linear) and is_quantised(name)}
    for name, value in model.state_dict().items():
        tied = name == "lm_head.weight" and model.config.tie_word_embeddings
        if name not in linear and not tied:
            stored.setdefault(name, value.to(torch.bfloat16))
    return {name: value.contiguous() for name, value in stored.items()}


def round_inputs(model, layers):
    """Makes linear layers round their inputs as the kernels do; returns what undoes it."""
    import torch
    most = 127 * 256 + 127

    def rounded(_, inputs):
        row = inputs[0]
        size = row.abs().amax(-1, keepdim=True)
        return (torch.round(row * (most / size)) * (size / most),)

    hooks = [module.register_forward_pre_hook(rounded) for name, module in model.named_modules()
             if isinstance(module, torch.nn.Linear) and layers(name)]
    return lambda: [hook.remove() for hook in hooks]


def compute(model, tokens, layers, integers=True):
    """What a model gives for tokens; layers(name) says whether a linear layer is quantised, and
    `integers` whether to integers."""
    import torch
    expected = {"tokens": tokens[0].to(torch.int32)}
    with torch.no_grad():
        for key, attention in [("logits", "eager"), ("logits_bf16_kv", "bf16_kv")]:
            make_logits.use_attention(model, attention)
            expected[key] = model(tokens, use_cache=False).logits[0].contiguous()
        if integers:
            undo = round_inputs(model, layers)
            expected["logits_int16"] = model(tokens, use_cache=False).logits[0].contiguous()
            undo()
    return expected


def make(name, case, seed):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM
    config_class, changes, function, arguments, quantisation = case
    config = config_class(**{**make_logits.SHAPE, **SHAPE, **changes})
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    make_logits.draw_weights(model, generator)
    model.tie_weights()
    stored = quantise(model, function, arguments)
    tokens = torch.randint(0, config.vocab_size, (1, make_logits.TOKENS), generator=generator)
    expected = compute(model, tokens, is_quantised, function is not fp8)
    directory = make_logits.ROOT / "tests" / "golden" / "logits" / name
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    make_logits.use_attention(model, "eager")
    written = {**config.to_dict(), "architectures": [type(model).__name__], "dtype": "bfloat16",
               "quantization_config": quantisation}
    (directory / "config.json").write_text(json.dumps(written, indent=2, sort_keys=True) + "\n")
    save_file(stored, directory / "model.safetensors", metadata={"format": "pt"})
    save_file(expected, directory / "expected.safetensors")
    if "logits_int16" not in expected:
        print(f"{name}: logits up to {expected['logits'].abs().max():.2f}")
        return
    off = (expected["logits_int16"] - expected["logits_bf16_kv"]).pow(2).mean().sqrt()
    print(f"{name}: logits up to {expected['logits'].abs().max():.2f}, integers change them by "
          f"{off / expected['logits'].pow(2).mean().sqrt():.1e}")


def main():
    import torch
    torch.set_num_threads(1)
    make_logits.register_bf16_kv()
    check_examples()
    for seed, (name, case) in enumerate(cases().items()):
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        make(name, case, seed + 101)


if __name__ == "__main__":
    make_logits.enter_venv()
    sys.exit(main())
