"""What the server writes for real models, beside what their own templates and OpenAI's own encoder write."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from chat_families import REAL, TOKENIZERS, needs_tokenizers, real
from transformers import PreTrainedTokenizerFast

from art.engine.constraints import Grammars
from art.rendering.chat_renderer import Parsed, ToolCall
from art.rendering.tool_text import as_plain, with_tools_text

pytestmark = [pytest.mark.slow, needs_tokenizers]

SYSTEM = {"role": "system", "content": "Be brief, \u00e9t\u00e9 2024."}
USER = {"role": "user", "content": "What do 2 pens and 13 cups cost?\n  \u65e5\u672c \U0001f642"}
SAID = {"role": "assistant", "content": "It's 28 dollars."}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "price",
            "description": "The price of one item.",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}},
                "required": ["item"],
            },
        },
    }
]
WRITTEN = '{"item":  "pen <|end|>"}'
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "call_0", "type": "function", "function": {"name": "price", "arguments": WRITTEN}}],
}
RESULT = {"role": "tool", "tool_call_id": "call_0", "name": "price", "content": "2 dollars"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3", "Qwen3Renderer"),
        ("llama-3", "Llama3Renderer"),
        ("llama-3-short", "GenericToolsRenderer"),
        ("gpt-oss", "GptOssRenderer"),
        ("gemma-3", "GenericToolsRenderer"),
        ("smollm2", "GenericToolsRenderer"),
    ],
)
def test_each_model_has_its_format(name: str, kind: str) -> None:
    assert real(name).kind == kind


@pytest.mark.parametrize("name", ["qwen3", "llama-3-short", "gemma-3", "smollm2"])
def test_first_prompts_are_what_the_models_own_template_and_tokenizer_write(name: str) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(TOKENIZERS / name))

    def wanted(messages: list[Any], tools: Any = None) -> list[int]:
        return list(
            tokenizer.apply_chat_template(
                messages, tools=tools, add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )

    chat = real(name)
    for messages in ([USER], [SYSTEM, USER], [SYSTEM, USER, SAID, USER]):
        assert chat.render(messages, None) == wanted(messages)
    if name == "qwen3":
        assert chat.render([SYSTEM, USER], TOOLS) == wanted([SYSTEM, USER], TOOLS)
    else:
        told = with_tools_text(as_plain([SYSTEM, USER]), TOOLS, system=True)
        assert chat.render([SYSTEM, USER], TOOLS) == wanted(told)


def test_gpt_oss_is_written_as_openais_own_encoder_writes_it() -> None:
    """The encoder has its vocabulary from the same tokenizer, whose checksum is that of OpenAI's file."""
    import openai_harmony as harmony

    encoder = harmony.load_harmony_encoding(harmony.HarmonyEncodingName.HARMONY_GPT_OSS)
    chat = real("gpt-oss")
    config = chat._renderer.config
    system = harmony.SystemContent.new().with_conversation_start_date(
        chat._renderer._conversation_start_date_resolved
    )
    system = system.with_reasoning_effort(harmony.ReasoningEffort.MEDIUM)
    if config.model_identity is not None:
        system = system.with_model_identity(config.model_identity)
    developer = harmony.DeveloperContent.new().with_instructions(SYSTEM["content"])
    function = TOOLS[0]["function"]
    developer = developer.with_function_tools(
        [harmony.ToolDescription.new(function["name"], function["description"], function["parameters"])]
    )
    of_role = harmony.Message.from_role_and_content
    talk = harmony.Conversation.from_messages(
        [
            of_role(harmony.Role.SYSTEM, system),
            of_role(harmony.Role.DEVELOPER, developer),
            of_role(harmony.Role.USER, USER["content"]),
        ]
    )
    wanted = encoder.render_conversation_for_completion(talk, harmony.Role.ASSISTANT)
    ids = chat.render([SYSTEM, USER], TOOLS)
    # The renderer opens the thought with which each reply begins; the encoder leaves that to the model.
    assert ids[: len(wanted)] == wanted
    assert chat.decode(ids[len(wanted) :]) == "<|channel|>analysis<|message|>"
    assert chat.encode(chat.decode(ids)) == ids


@pytest.mark.parametrize("name", REAL)
def test_a_call_is_recorded_as_written_and_gone_on_from(name: str) -> None:
    """With a text in it that spells special tokens; the next prompt has every id of the turn before."""
    chat = real(name)
    prompt = chat.render([SYSTEM, USER], TOOLS)
    reply = chat.reply(prompt, CALL, TOOLS)
    read = chat.parse(reply, prompt, TOOLS)
    (call,) = read.tool_calls
    assert (read.content, call.name) == ("", "price")
    assert json.loads(call.arguments) == json.loads(WRITTEN)
    if "<|end|>" not in chat._tokenizer._backend.get_vocab() or name == "gpt-oss":
        assert call.arguments == WRITTEN
    bridged = chat.bridge(prompt, reply, [RESULT], TOOLS)
    assert bridged is not None and bridged[: len(prompt) + len(reply)] == prompt + reply
    whole = chat.render([SYSTEM, USER, CALL, RESULT], TOOLS)
    tail = bridged[len(prompt) + len(reply) :]
    assert whole[-len(tail) :] == tail
    cut = chat.bridge(prompt, reply[:-2], [USER], TOOLS)
    assert cut is None or cut[: len(prompt) + len(reply) - 2] == prompt + reply[:-2]


@pytest.mark.parametrize("name", sorted(set(REAL) - {"gpt-oss"}))
def test_the_grammar_of_calls_lets_through_what_the_format_writes(name: str) -> None:
    chat = real(name)
    grammars = Grammars(str(TOKENIZERS / name))
    prompt = chat.render([SYSTEM, USER], TOOLS)
    plain = {
        "id": "call_0",
        "type": "function",
        "function": {"name": "price", "arguments": '{"item": "pen"}'},
    }
    ids = chat.reply(prompt, {**CALL, "tool_calls": [plain]}, TOOLS)
    thought = "<think>\n\n</think>\n\n"
    start = len(chat.encode(thought)) if chat.decode(ids).startswith(thought) else 0
    constraint = chat.grammar(prompt, text=None, tools=TOOLS, parallel=True)
    assert constraint is not None
    guide = grammars.open(constraint, chat.stop_token_ids)
    size = max(ids) + 64
    for one in ids[start:]:
        assert np.unpackbits(guide.allowed(size), bitorder="little")[one], chat.decode([one])
        if one in chat.stop_token_ids:
            break
        guide.advance(one)
    guide = grammars.open(constraint, chat.stop_token_ids)
    assert not np.unpackbits(guide.allowed(size), bitorder="little")[chat.encode("Hello")[0]]
    read = chat.parse(ids, prompt, TOOLS, constrained=True)
    assert read == Parsed(content="", tool_calls=(ToolCall(name="price", arguments='{"item": "pen"}'),))
