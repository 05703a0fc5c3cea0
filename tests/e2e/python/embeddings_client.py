"""The official OpenAI client's embeddings, against a model that gives them: embeddings_client.py ENDPOINT

Prints one line a check and ends with 0 when all of them hold.
"""

import math
import sys

import openai

from checks import run

MODEL = "tiny"
TEXTS = [f"The {name} runs to the sea." for name in ("river", "stream", "brook", "creek")]
checks = []


def check(function):
    checks.append(function)
    return function


def embed(client, texts, **more):
    answer = client.embeddings.create(model=MODEL, input=texts, **more)
    return [one.embedding for one in answer.data]


@check
def one_text(client):
    answer = client.embeddings.create(model=MODEL, input=TEXTS[0])
    assert answer.object == "list" and len(answer.data) == 1
    one = answer.data[0]
    assert one.object == "embedding" and one.index == 0
    assert abs(math.sqrt(sum(x * x for x in one.embedding)) - 1) < 1e-5
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0


@check
def several_texts_are_in_order_and_each_as_if_alone(client):
    alone = [embed(client, text)[0] for text in TEXTS]
    assert len({tuple(one) for one in alone}) == len(TEXTS)
    assert embed(client, TEXTS) == alone
    assert embed(client, TEXTS[::-1]) == alone[::-1]


@check
def many_texts(client):
    texts = [TEXTS[i % 4] if i % 2 else f"{i} {TEXTS[0]}" for i in range(100)]
    found = embed(client, texts)
    assert len(found) == 100 and found[1] == found[5] and found[0] != found[2]
    assert found[98] == embed(client, texts[98])[0]


@check
def both_encodings_are_the_same_numbers(client):
    # The client asks for base64 by itself, and decodes it.
    floats = embed(client, TEXTS, encoding_format="float")
    decoded = embed(client, TEXTS)
    for one, other in zip(floats, decoded):
        assert all(abs(a - b) <= 1e-7 * abs(a) for a, b in zip(one, other))


@check
def fewer_dimensions_are_the_first_ones_normalised(client):
    whole, = embed(client, TEXTS[0])
    short, = embed(client, TEXTS[0], dimensions=8)
    length = math.sqrt(sum(x * x for x in whole[:8]))
    assert len(short) == 8
    assert all(abs(a / length - b) < 1e-6 for a, b in zip(whole, short))


@check
def token_ids(client):
    assert len(embed(client, [[5, 6, 7], [8]])) == 2


@check
def errors_name_the_field(client):
    for field, more in [("dimensions", dict(input="a", dimensions=100000)),
                        ("input", dict(input=[])), ("input", dict(input="")),
                        ("encoding_format", dict(input="a", encoding_format="int8"))]:
        try:
            client.embeddings.create(model=MODEL, **more)
            raise AssertionError(f"{field} was accepted")
        except openai.BadRequestError as error:
            assert error.param == field, (field, error.param, error.message)
            assert field in error.message, error.message


if __name__ == "__main__":
    sys.exit(run(checks, openai.OpenAI(base_url=f"http://{sys.argv[1]}/v1", api_key="none",
                                       max_retries=0)))
