#!/usr/bin/env python3
"""Regenerates tests/golden/beams.json: what transformers' beam search finds in small random models.

    python3 tests/golden/make_beams.py

Runs itself in the environment of make_logits.py. A model is a table of logits: those of the next token depend on the
last one alone. They are multiples of 1/128, so that they are exact in every format. Each case has the arguments of
generate(), the answers without the prompt, best first, and their scores. Cases in which rounding decides, because two
answers have the same score, are left out: a little noise changes their answers.
"""

import itertools
import json
import pathlib

from make_logits import enter_venv

VOCAB = 24
MODELS = 3
OUT = pathlib.Path(__file__).with_name("beams.json")


def make_models():
    import numpy

    random = numpy.random.default_rng(5)
    # Different numbers in every row.
    rows = numpy.stack([random.permutation(numpy.arange(-512, 512))[:VOCAB] for _ in range(MODELS * VOCAB)])
    return list((rows / 128).reshape(MODELS, VOCAB, VOCAB))


def wrap(table):
    import torch
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutput

    class Table(PreTrainedModel, GenerationMixin):
        config_class = PretrainedConfig

        def __init__(self):
            super().__init__(PretrainedConfig(vocab_size=VOCAB, num_hidden_layers=1, is_encoder_decoder=False))
            self.logits = torch.nn.Parameter(torch.tensor(table, dtype=torch.float32))

        def forward(self, input_ids, **_):
            return CausalLMOutput(logits=self.logits[input_ids])

        def prepare_inputs_for_generation(self, input_ids, **_):
            return {"input_ids": input_ids}

    return Table()


def search(model, prompt, width, length_penalty, early_stopping, tokens, stops, penalty):
    import torch

    answers = min(width, 3)
    out = model.generate(torch.tensor([prompt]), num_beams=width, num_return_sequences=answers, do_sample=False,
                         length_penalty=length_penalty, early_stopping=early_stopping, max_new_tokens=tokens,
                         eos_token_id=stops, pad_token_id=VOCAB - 1, repetition_penalty=penalty, use_cache=False,
                         return_dict_in_generate=True, output_scores=True)
    found = []
    for row in out.sequences.tolist():
        answer = row[len(prompt):]
        ends = [i for i, token in enumerate(answer) if token in stops]
        found.append(answer[:ends[0] + 1] if ends else answer)
    return found, [round(score, 5) for score in out.sequences_scores.tolist()]


def main():
    enter_venv()
    import numpy

    tables = make_models()
    noise = numpy.random.default_rng(6)
    cases, left_out = [], 0
    for number, table in enumerate(tables):
        model, noisy = wrap(table).eval(), wrap(table + noise.normal(0, 1e-4, table.shape)).eval()
        for width, length_penalty, early_stopping, stops in itertools.product(
                [2, 4, 8], [-0.5, 0.0, 1.0, 2.0], [False, True, "never"], [[2], [2, 5]]):
            turn = len(cases) + left_out
            prompt = [7, (width + turn) % VOCAB]
            penalty = 1.0 if turn % 3 else 1.3
            tokens = 1 + turn % 14
            arguments = (prompt, width, length_penalty, early_stopping, tokens, stops, penalty)
            answers, scores = search(model, *arguments)
            if search(noisy, *arguments)[0] != answers:
                left_out += 1
                continue
            cases.append({"model": number, "prompt": prompt, "width": width, "length_penalty": length_penalty,
                          "early_stopping": early_stopping, "tokens": tokens, "stops": stops,
                          "repetition_penalty": penalty, "answers": answers, "scores": scores})
    print(f"{len(cases)} cases, {left_out} left out")
    lines = ",\n".join(json.dumps(case) for case in cases)
    models = ",\n".join(json.dumps(table.tolist()) for table in tables)
    OUT.write_text(f'{{"models": [\n{models}\n],\n"cases": [\n{lines}\n]}}\n')


main()
