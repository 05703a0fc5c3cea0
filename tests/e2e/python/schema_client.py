"""Random schemas, and answers of a model that knows nothing of them: schema_client.py ENDPOINT [SCHEMAS [SEED]]

Every answer ends, and is JSON that jsonschema takes for valid. A failure prints the seed of its schema.
"""

import concurrent.futures
import json
import random
import sys
import urllib.error
import urllib.request

import jsonschema

from checks import run

WORDS = ["river", "tree", "old", "H\u00fcgel", "a \"quoted\" word", "line\nbreak", "back\\slash", "\u6c34"]
checks = []


def check(function):
    checks.append(function)
    return function


class Schemas:
    """Random schemas whose languages are finite: a weak model would not end others."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def make(self, depth=3):
        kinds = [self.enum, self.constant, self.integer, self.string, self.pattern, self.formatted, self.simple]
        if depth > 0:
            kinds += [self.object, self.array, self.tuple, self.any_of, self.several_types, self.all_of, self.one_of] * 2
        return self.random.choice(kinds)(depth - 1)

    def value(self):
        return self.random.choice([None, True, False, 0, -7, 12.5, self.random.choice(WORDS), [], [1, "a"], {"k": None}])

    def enum(self, _):
        values = [self.value() for _ in range(self.random.randint(1, 5))]
        return {"enum": [value for i, value in enumerate(values) if value not in values[:i]]}

    def constant(self, _):
        return {"const": self.value()}

    def integer(self, _):
        least = self.random.randint(-300, 300)
        schema = {"type": "integer", "minimum": least, "maximum": least + self.random.choice([0, 1, 9, 5000])}
        if self.random.random() < 0.3:
            schema = {"type": "integer", "exclusiveMinimum": least - 0.5, "exclusiveMaximum": least + 50}
        return schema

    def string(self, _):
        least = self.random.choice([0, 0, 1, 3])
        schema = {"type": "string", "maxLength": least + self.random.randint(0, 12)}
        return schema | ({"minLength": least} if least else {})

    def pattern(self, _):
        return {"type": "string", "pattern": self.random.choice([
            r"^[a-z]{2,5}$", r"^\d{3}-\d{2}$", r"^(yes|no|maybe)$", r"^[^x]{1,4}$", r"^.{0,6}$", r"^\S{1,3}\s\w?$", r'^"\\{1,2}\t?$', r"^a$|^.b$"])}

    def formatted(self, _):
        return {"type": "string", "format": self.random.choice(["date", "uuid", "ipv4"])}

    def simple(self, _):
        return {"type": self.random.choice(["boolean", "null"]), "title": "t", "description": "d"}

    def object(self, depth):
        names = self.random.sample(["a", "b c", "\u00e9", "q\"", "z", "name", "x1"], self.random.randint(1, 4))
        schema = {"type": "object", "properties": {name: self.make(depth) for name in names}}
        schema["required"] = [name for name in names if self.random.random() < 0.6]
        if self.random.random() < 0.5:
            schema["additionalProperties"] = self.random.choice([False, True, {"type": "null"}])
        return schema

    def array(self, depth):
        least = self.random.randint(0, 2)
        return {"type": "array", "items": self.make(depth), "minItems": least, "maxItems": least + self.random.randint(0, 2)}

    def tuple(self, depth):
        return {"type": "array", "prefixItems": [self.make(depth) for _ in range(self.random.randint(1, 3))]}

    def any_of(self, depth):
        return {"anyOf": [self.make(depth) for _ in range(self.random.randint(1, 3))]}

    def several_types(self, _):
        return {"type": ["null", "boolean", "integer"], "minimum": 3, "maximum": 4}

    def all_of(self, depth):
        return {"allOf": [{"type": "object", "properties": {"one": self.make(depth)}, "required": ["one"]},
                          {"type": "object", "properties": {"two": self.make(depth)}}]}

    def one_of(self, depth):
        return {"oneOf": [{"type": "object", "properties": {"kind": {"const": kind}, "value": self.make(depth)}, "required": ["kind"]}
                          for kind in ("p", "q")]}


def spacious(seed):
    """White space may be anywhere: this model then writes all that it may, so these schemas are smaller."""
    return seed % 3 == 0


def ask(endpoint, schema, seed):
    body = {"prompt": "The old river", "max_tokens": 1500, "seed": seed, "temperature": seed % 3 / 2,
            "response_format": {"type": "json_schema", "json_schema": {"name": "random", "schema": schema}},
            "disable_any_whitespace": not spacious(seed)}
    request = urllib.request.Request(f"http://{endpoint}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return json.load(response)["choices"][0]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.code}: {error.read().decode()}") from error


def answer_is_valid(endpoint, seed):
    schema = Schemas(seed).make(depth=1 if spacious(seed) else 3)
    try:
        choice = ask(endpoint, schema, seed)
        assert choice["finish_reason"] == "stop", choice["text"][-200:]
        jsonschema.Draft202012Validator(schema).validate(json.loads(choice["text"]))
    except Exception as error:
        raise AssertionError(f"seed {seed}, schema {json.dumps(schema)}: {type(error).__name__}: {str(error)[:400]}") from error


@check
def every_answer_is_valid(arguments):
    endpoint, count, first = arguments
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda seed: answer_is_valid(endpoint, seed), range(first, first + count)))
    assert len(answers) == count


if __name__ == "__main__":
    given = sys.argv[2:] + ["120", "1"][len(sys.argv) - 2:]
    sys.exit(run(checks, (sys.argv[1], int(given[0]), int(given[1]))))
