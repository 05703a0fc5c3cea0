"""Pydantic AI, unchanged, over chat completions: pydantic_ai_client.py ENDPOINT

An agent with a tool, answers as a Pydantic model in the library's two ways (a tool's arguments, and a JSON schema), and a stream. The model
knows nothing of tools, so its choice is forced. Prints one line a check and ends with 0 when all of them hold.
"""

import asyncio
import sys
import typing

import pydantic
import pydantic_ai
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from checks import run

checks = []
SETTINGS = {"temperature": 0, "max_tokens": 1000, "parallel_tool_calls": False}


def check(function):
    checks.append(function)
    return function


class Booking(pydantic.BaseModel):
    city: typing.Literal["Paris", "Rome"]
    guests: typing.Literal[2, 4]


@check
async def an_answer_is_a_model_by_a_tool(model):
    agent = pydantic_ai.Agent(model, output_type=Booking, instructions="You book tables.", model_settings=SETTINGS)
    result = await agent.run("A table, please.")
    assert isinstance(result.output, Booking), result.output
    assert result.usage.output_tokens > 0, result.usage


@check
async def an_answer_is_a_model_by_a_schema(model):
    agent = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(Booking), model_settings=SETTINGS)
    result = await agent.run("A table, please.")
    assert isinstance(result.output, Booking), result.output


@check
async def a_tool_is_called_before_the_answer(model):
    agent = pydantic_ai.Agent(model, output_type=Booking, model_settings=SETTINGS)
    calls = []

    async def once(_, tool):
        return None if calls else tool

    @agent.tool_plain(prepare=once)
    def free_tables(city: typing.Literal["Paris", "Rome"]) -> int:
        """The number of free tables in a city."""
        calls.append(city)
        return 3

    result = await agent.run("A table, please.")
    assert isinstance(result.output, Booking) and len(calls) <= 1 and set(calls) <= {"Paris", "Rome"}, calls


@check
async def text_streams(model):
    agent = pydantic_ai.Agent(model, model_settings={"temperature": 0, "max_tokens": 24})
    whole = (await agent.run("Tell a story.")).output
    async with agent.run_stream("Tell a story.") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1 and "".join(pieces) == whole, (pieces, whole)


def main():
    return run([in_a_loop(function) for function in checks], None)


def in_a_loop(function):
    """A check of its own event loop, to which its client belongs."""
    async def call():
        provider = OpenAIProvider(base_url=f"http://{sys.argv[1]}/v1", api_key="none")
        await function(OpenAIChatModel("tiny", provider=provider))

    def check_it(_):
        asyncio.run(call())
    check_it.__name__ = function.__name__
    return check_it


if __name__ == "__main__":
    sys.exit(main())
