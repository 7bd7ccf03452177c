"""The openai library's loop of tool calls, whole and streamed: python openai_tools_check.py URL/v1 call_tokens.json

The model is too small to choose a tool. What it writes in the first turn is given by the request's own sampling: only the
tokens of call_tokens.json, the pieces of one call and then an end, are allowed, the bias says which comes first, and the
penalty lets none come twice. All else is what a client does with any model: the text is generated token by token, and
the call is found in it by the server.
"""
import json
import sys

import openai

client = openai.OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0)
model = client.models.list().data[0].id
TOKENS = json.load(open(sys.argv[2]))  # in the order that they are to be written in
CALLING = {"logit_bias": {str(token): 100 - 20 * i for i, token in enumerate(TOKENS)},
           "extra_body": {"allowed_token_ids": TOKENS, "repetition_penalty": 1e6}}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather of a town",
           "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}}}
HELLO = {"role": "user", "content": "Hello!"}


def expect(condition, *shown):
    if not condition:
        raise SystemExit("FAILED  " + (" ".join(map(str, shown)) or "not as expected"))


def whole(**fields):
    answer = client.chat.completions.create(**fields).choices[0]
    calls = [call.model_dump() for call in answer.message.tool_calls or []]
    return answer.message.content or "", calls, answer.finish_reason


# The deltas put together as the library's users do.
def streamed(**fields):
    content, calls, finish_reason = "", [], None
    for chunk in client.chat.completions.create(**fields, stream=True):
        choice = chunk.choices[0]
        content += choice.delta.content or ""
        finish_reason = choice.finish_reason or finish_reason
        for call in choice.delta.tool_calls or []:
            if call.index == len(calls):
                calls.append({"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": ""}})
            calls[call.index]["function"]["arguments"] += call.function.arguments or ""
    return content, calls, finish_reason


def loop(ask):
    messages, called = [HELLO], []
    for turn in range(3):
        content, calls, finish_reason = ask(model=model, messages=messages, tools=[WEATHER], tool_choice="auto", max_tokens=12,
                                            temperature=0, **(CALLING if turn == 0 else {}))
        expect((finish_reason == "tool_calls") == bool(calls), finish_reason, content, calls)
        if not calls:
            return content, called, turn
        expect(content == "", content)
        messages.append({"role": "assistant", "content": content or None, "tool_calls": calls})
        for call in calls:
            expect(call["id"].startswith("call_") and call["type"] == "function", call)
            town = json.loads(call["function"]["arguments"])["town"]
            called.append((call["function"]["name"], town))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"In {town} the sun shines."})
    raise SystemExit("FAILED  the loop does not end")


results = [loop(whole), loop(streamed)]
for name, (content, called, turn) in zip(["whole", "streamed"], results):
    expect(called == [("weather", "Northfield")] and turn == 1 and content, name, content, called, turn)
    print(f"ok      loop of tool calls, {name}: {called}, then {content!r}")
expect(results[0] == results[1], results)

fields = dict(model=model, messages=[HELLO], tools=[WEATHER], max_tokens=12, temperature=0, **CALLING)
content, calls, finish_reason = whole(**fields, tool_choice="none")
expect(not calls and content.startswith("<tool_call>") and finish_reason == "stop", content, calls, finish_reason)
print("ok      tool_choice none: the same text stays text")
for choice in ["required", {"type": "function", "function": {"name": "weather"}}]:
    try:
        client.chat.completions.create(**fields, tool_choice=choice)
        expect(False, choice, "was not refused")
    except openai.BadRequestError as error:
        expect(error.param == "tool_choice", error)
print("ok      tool_choice required, or a tool's name: BadRequestError names the field")
