"""EleutherAI's lm-eval, unchanged, against a router and its workers: lm_eval_client.py ENDPOINT MODEL_FOLDER

Runs a task of its own with likelihoods (multiple choice) and one with answers, and holds the likelihoods against those that
/v1/completions gives for the same token ids. Prints one line a check and ends with 0 when all of them hold.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

from checks import run

QUESTIONS = [
    ("A river flows into", [" the sea", " a stone", " the moon"]),
    ("Bread is made of", [" flour", " rain"]),
    ("At night one sees", [" the stars", " the sun", " bread", " a river"]),
]
CHOICES = """
task: penstock_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: ""
doc_to_target: 0
metric_list: [{{metric: acc}}]
"""
ANSWERS = """
task: penstock_answers
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
output_type: generate_until
test_split: test
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[0]}}}}"
generation_kwargs: {{until: ["\\n"], max_gen_toks: 8, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


def post(endpoint, body):
    request = urllib.request.Request(f"http://{endpoint}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Run:
    """lm-eval's samples of both tasks."""

    def __init__(self, endpoint, model, folder):
        self.endpoint, self.model, self.folder = endpoint, model, folder
        data = folder / "questions.jsonl"
        data.write_text("".join(json.dumps({"question": question, "choices": choices}) + "\n" for question, choices in QUESTIONS))
        for name, text in (("choices", CHOICES), ("answers", ANSWERS)):
            (folder / f"{name}.yaml").write_text(text.format(data=data))
        arguments = f"model=tiny,base_url=http://{endpoint}/v1/completions,tokenizer={model},num_concurrent=2,max_retries=1,tokenized_requests=True"
        subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--include_path", folder,
                        "--tasks", "penstock_choices,penstock_answers", "--output_path", folder / "out", "--log_samples"], check=True,
                       stdout=sys.stderr, env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}, timeout=300)

    def samples(self, task):
        found = list((self.folder / "out").rglob(f"samples_penstock_{task}_*.jsonl"))
        assert len(found) == 1, found
        return [json.loads(line) for line in found[0].read_text().splitlines()]

    def likelihood(self, question, choice):
        """Of the choice behind the question, by the API itself."""
        import transformers  # pylint: disable=import-outside-toplevel
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model)
        context, whole = (tokenizer.encode(text, add_special_tokens=False) for text in (question, question + choice))
        scored = post(self.endpoint, {"prompt": whole, "max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True})
        return sum(scored["choices"][0]["logprobs"]["token_logprobs"][len(context):len(whole)])


def likelihoods_are_those_of_the_api(lm_eval):
    samples = lm_eval.samples("choices")
    assert len(samples) == len(QUESTIONS)
    for sample in samples:
        question, choices = sample["doc"]["question"], sample["doc"]["choices"]
        for choice, (response,) in zip(choices, sample["resps"], strict=True):
            given, expected = float(response[0]), lm_eval.likelihood(question, choice)
            assert given < 0 and math.isclose(given, expected, abs_tol=1e-3), (question, choice, given, expected)


def answers_are_generated(lm_eval):
    samples = lm_eval.samples("answers")
    assert len(samples) == len(QUESTIONS) and all(sample["resps"][0][0] for sample in samples), samples


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="penstock-lm-eval-") as where:
        sys.exit(run([likelihoods_are_those_of_the_api, answers_are_generated], Run(sys.argv[1], sys.argv[2], pathlib.Path(where))))
