#!/usr/bin/env python3
"""Regenerates tests/golden/embedding: a small random embedding model and what transformers computes with it.

    python3 tests/golden/make_embedding.py

Runs itself in .venv/golden, as make_logits.py does. The checkpoint is as Qwen3-Embedding's: saved
without its head, so that names of tensors lack "model.", with the files of sentence-transformers
that say how a text's embedding is made. expected.safetensors has
    tokens      [n] I32
    hidden      [n, hidden] F32   the last hidden state of each token, everything in float32, but
                                  keys and values rounded to bf16 before attention
    embeddings  [n, hidden] F32   of the first 1, 2, ... n tokens
"""

import json

import make_logits

TARGET = make_logits.ROOT / "tests" / "golden" / "embedding"
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
MODES = ["cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens",
         "lasttoken"]


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n")


def main():
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3Config, Qwen3Model
    torch.set_num_threads(1)
    make_logits.register_bf16_kv()
    config = Qwen3Config(**{**make_logits.SHAPE, **make_logits.SMALL}, head_dim=24,
                         rope_theta=1e6, tie_word_embeddings=True,
                         architectures=["Qwen3ForCausalLM"])
    generator = torch.Generator().manual_seed(77)
    model = Qwen3Model._from_config(config, attn_implementation="eager").float().eval()
    make_logits.draw_weights(model, generator)
    tokens = torch.randint(0, config.vocab_size, (1, make_logits.TOKENS), generator=generator)
    make_logits.use_attention(model, "bf16_kv")
    with torch.no_grad():
        hidden = model(tokens, use_cache=False).last_hidden_state[0].contiguous()
    make_logits.use_attention(model, "eager")
    model.to(torch.bfloat16).save_pretrained(TARGET)
    saved = json.loads((TARGET / "config.json").read_text())
    write_json(TARGET / "config.json", {**saved, "architectures": ["Qwen3ForCausalLM"]})
    write_json(TARGET / "modules.json", MODULES)
    modes = {f"pooling_mode_{mode}": mode == "lasttoken" for mode in MODES}
    write_json(TARGET / "1_Pooling" / "config.json",
               {"word_embedding_dimension": config.hidden_size, **modes, "include_prompt": True})
    embeddings = torch.nn.functional.normalize(hidden, dim=-1)
    save_file({"tokens": tokens[0].to(torch.int32), "hidden": hidden, "embeddings": embeddings},
              TARGET / "expected.safetensors")
    print(f"hidden states up to {hidden.abs().max():.2f}")


if __name__ == "__main__":
    make_logits.enter_venv()
    main()
