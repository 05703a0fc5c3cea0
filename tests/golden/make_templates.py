#!/usr/bin/env python3
"""Writes what Jinja itself renders of chat templates, in an environment set up as Hugging Face
sets it up.

templates/chats.json   named lists of messages, and tools
templates/models/X.json   for X.jinja of a well-known model: [{"chat", ..., "output" or "error"}]
templates/features.json   one small template for each feature of the supported subset, likewise

Usage: tests/golden/make_templates.py   (creates its own environment under .venv/)
"""
import datetime
import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv" / "golden-tokenizer"
PACKAGES = ["tokenizers==0.21.0", "jinja2==3.1.6"]
HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "templates"
NOW = 1735689600 + 12 * 3600  # 2025-01-01 12:00 UTC


def enter_environment():
    python = VENV / "bin" / "python"
    if pathlib.Path(sys.prefix) != VENV:
        if not python.exists():
            subprocess.check_call([sys.executable, "-m", "venv", str(VENV)])
            subprocess.check_call([str(python), "-m", "pip", "-q", "install", *PACKAGES])
        os.execv(python, [str(python), *sys.argv])


enter_environment()
import jinja2  # noqa: E402
from jinja2.exceptions import TemplateError  # noqa: E402
from jinja2.ext import Extension, loopcontrols  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(["name:endgeneration"], drop_needle=True)


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).strftime(form)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def render(template, case):
    variables = dict(case.get("extra", {}))
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        if name in case:
            variables[name] = case[name]
    variables.setdefault("messages", [])
    variables.setdefault("tools", None)
    variables.setdefault("add_generation_prompt", True)
    try:
        return {"output": template.render(**variables)}
    except TemplateError as error:
        plain = type(error) is TemplateError  # raised by the template itself
        return {"error": str(error) if plain else ""}
    except (TypeError, ValueError, AttributeError, KeyError, ZeroDivisionError):
        return {"error": ""}


def write(path, data):
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in data)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather of a place \u2014 now & later",
            "parameters": {
                "type": "object",
                "properties": {
                    "place": {"type": "string", "description": "A town, e.g. \"K\u00f6ln\""},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                    "days": {"type": "array", "items": {"type": "integer"}},
                },
                "required": ["place"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            },
        },
    },
]


def message(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {
    "type": "function",
    "id": "abcde1234",
    "function": {"name": "get_weather", "arguments": {"place": "K\u00f6ln", "days": [1, 2]}},
}
USER = message("user", "Hello, who are you?")
SYSTEM = message("system", "You are a miller.\nBe brief.")
ASSISTANT = message("assistant", " I grind corn. ")
CHATS = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, ASSISTANT, message("user", "  And flour?\n"), ASSISTANT, message("user", "Ok")],
    "system_turns": [SYSTEM, USER, ASSISTANT, message("user", "\u6c34\u8eca \U0001f600 <b>&amp;</b>")],
    "ends_with_assistant": [USER, ASSISTANT],
    "double_user": [USER, USER],
    "system_late": [USER, SYSTEM],
    "empty": [],
    "empty_content": [message("user", "")],
    "thinking": [
        USER,
        message("assistant", "<think>\nHm, corn.\n</think>\n\nI grind."),
        message("user", "Why?"),
        message("assistant", "<think>\nwhy\n</think>\n\nBecause.", reasoning_content="why"),
    ],
    "null_content": [USER, message("assistant", None), message("user", "x")],
    "tool_calls": [
        SYSTEM,
        message("user", "Weather?"),
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "get_weather", "content": "{\"t\": 21}",
         "tool_call_id": "abcde1234"},
        message("assistant", "21 degrees."),
        message("user", "Thanks"),
    ],
    "two_tool_calls": [
        message("user", "Weather?"),
        {"role": "assistant", "content": "Let me see.", "tool_calls": [
            CALL, {"type": "function", "id": "fghij5678",
                   "function": {"name": "add", "arguments": {"a": 1, "b": 2.5}}}]},
        {"role": "tool", "name": "get_weather", "content": "21", "tool_call_id": "abcde1234"},
        {"role": "tool", "name": "add", "content": "3.5", "tool_call_id": "fghij5678"},
    ],
    "tool_calls_text_arguments": [
        message("user", "Weather?"),
        {"role": "assistant", "content": "Hm.", "tool_calls": [
            {"type": "function", "id": "abcde1234",
             "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "content": "3", "tool_call_id": "abcde1234"},
    ],
    "parts": [message("user", [{"type": "text", "text": "Look: "}, {"type": "text", "text": "x"}])],
}


TOOL_CHATS = ("one", "system_turns", "empty", "tool_calls", "two_tool_calls")


def chat_cases(bos, eos, extras):
    for chat, messages in CHATS.items():
        for extra in extras:
            for generate in (True, False):
                for tools in (False, True) if chat in TOOL_CHATS else (False,):
                    case = {"messages": messages, "add_generation_prompt": generate,
                            "extra": extra}
                    if bos:
                        case["bos_token"] = bos
                    if eos:
                        case["eos_token"] = eos
                    if tools:
                        case["tools"] = TOOLS
                    yield chat, case


# Options of a model's template that are not <s>, </s> and nothing more.
OPTIONS = {
    "chatml": {"bos": "", "eos": "<|im_end|>"},
    "llama3": {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>"},
    "llama31": {
        "bos": "<|begin_of_text|>",
        "eos": "<|eot_id|>",
        "extras": ({}, {"tools_in_user_message": False, "date_string": "26 Jul 2024"},
                   {"builtin_tools": ["code_interpreter", "get_weather"]}),
    },
    "qwen25": {"bos": "", "eos": "<|im_end|>"},
    "qwen3": {"bos": "", "eos": "<|im_end|>", "extras": ({}, {"enable_thinking": False})},
    "gpt_oss": {
        "bos": "<|startoftext|>",
        "eos": "<|return|>",
        "extras": ({}, {"reasoning_effort": "high", "builtin_tools": ["browser", "python"]}),
    },
    "gemma": {"bos": "<bos>", "eos": "<eos>"},
    "gemma3": {"bos": "<bos>", "eos": "<eos>"},
}


def model_cases(name, source):
    template = environment().from_string(source)
    options = {"bos": "<s>", "eos": "</s>", "extras": ({},), **OPTIONS.get(name, {})}
    for chat, case in chat_cases(**options):
        result = render(template, case)
        line = {key: case[key] for key in case if key not in ("messages", "tools")}
        yield {"chat": chat, "tools": "tools" in case, **line, **result}


def feature_cases(features):
    for source, *inputs in features:
        template = environment().from_string(source)
        for extra in inputs or [{}]:
            yield {"template": source, "extra": extra, **render(template, {"extra": extra})}


def main():
    sys.path.insert(0, str(HERE))
    from template_features import FEATURES

    (OUT / "chats.json").write_text(
        json.dumps({"tools": TOOLS, "chats": CHATS}, ensure_ascii=False, indent=1) + "\n")
    for path in sorted((OUT / "models").glob("*.jinja")):
        cases = list(model_cases(path.stem, path.read_text(encoding="utf-8")))
        write(path.with_suffix(".json"), cases)
        print(path.stem, len(cases), sum("error" in case for case in cases), "errors")
    cases = list(feature_cases(FEATURES))
    write(OUT / "features.json", cases)
    print("features", len(cases), sum("error" in case for case in cases), "errors")


if __name__ == "__main__":
    main()
