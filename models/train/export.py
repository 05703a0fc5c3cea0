"""Writes a checkpoint in Hugging Face form: bf16 safetensors, config, tokenizer, chat template."""

import json
import pathlib

import torch
from safetensors.torch import save_file

from tokenizer import BOS, END, EOS, SPECIAL

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def config_json(c):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": [EOS, END],
        "head_dim": c.head_dim,
        "hidden_act": "silu",
        "hidden_size": c.d,
        "initializer_range": 0.02,
        "intermediate_size": c.ff,
        "max_position_embeddings": c.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers,
        "num_key_value_heads": c.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": c.eps,
        "rope_scaling": None,
        "rope_theta": c.theta,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": c.vocab,
    }


def hf_name(name):
    """Our parameter name to Hugging Face's."""
    if name.startswith("lm_head"):
        return name
    if name.startswith("layers.") and "_proj" in name:
        _, layer, leaf, kind = name.split(".")
        home = "self_attn" if leaf[:2] in ("q_", "k_", "v_", "o_") else "mlp"
        return f"model.layers.{layer}.{home}.{leaf}.{kind}"
    return "model." + name


def _write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def export(model, tok, out):
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    tensors = {hf_name(n): p.detach().to(torch.bfloat16).contiguous()
               for n, p in model.named_parameters()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tok.save(str(out / "tokenizer.json"))
    _write_json(out / "config.json", config_json(model.cfg))
    _write_json(out / "generation_config.json", {
        "bos_token_id": BOS, "eos_token_id": [EOS, END], "do_sample": False})
    special = {"bos_token": SPECIAL[BOS], "eos_token": SPECIAL[END]}
    _write_json(out / "special_tokens_map.json", special)
    _write_json(out / "tokenizer_config.json", {
        "add_bos_token": True,
        "add_eos_token": False,
        "added_tokens_decoder": {
            str(i): {"content": t, "lstrip": False, "normalized": False, "rstrip": False,
                     "single_word": False, "special": True} for i, t in enumerate(SPECIAL)},
        **special,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.cfg.context,
        "tokenizer_class": "PreTrainedTokenizerFast",
    })


def load_weights(model, path):
    """The inverse: fills `model` from an exported directory (weights as rounded to bf16)."""
    from safetensors.torch import load_file
    tensors = load_file(pathlib.Path(path) / "model.safetensors")
    state = {n: tensors[hf_name(n)].float() for n, _ in model.named_parameters()}
    model.load_state_dict(state)
    return model
