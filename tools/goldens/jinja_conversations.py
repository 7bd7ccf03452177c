"""Conversations that a chat template is rendered with: turns, empty contents, tools and their calls, thoughts, parts."""
import jinja2.meta

def message(role, content, **more):
    return {"role": role, "content": content, **more}


CALL = {"id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"city": "Zürich", "days": 2}}}
# Some templates write JSON Schema as types and take an array's `items` for the method of that name: they never end on it.
PLAIN_TOOL = {"type": "function", "function": {
    "name": "add", "description": "Adds <two> numbers.",
    "parameters": {"type": "object", "properties": {
        "a": {"type": "number", "description": "The first"}, "b": {"type": "integer", "description": ""}}, "required": ["a", "b"]}}}
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "The weather <of a city> & its \"wind\".",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Name of the city"},
            "days": {"type": "integer", "description": "How many", "enum": [1, 2]},
            "unit": {"type": ["string", "null"], "default": None},
            "tags": {"type": "array", "items": {"type": "string"}}},
            "required": ["city"]},
        "return": {"type": "object", "properties": {"t": {"type": "number"}}}}},
    {"type": "function", "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}},
]
CONVERSATIONS = {
    "user": [message("user", "Hi")],
    "system": [message("system", "Be brief."), message("user", "Hi")],
    "spaces": [message("system", " S\n"), message("user", "\u00a0 Hi \t"), message("assistant", "  Hello.\n\n"),
               message("user", "")],
    "empty": [message("system", ""), message("user", ""), message("assistant", ""), message("user", "")],
    "turns": [message("user", "a"), message("assistant", "A"), message("user", "b"), message("assistant", "B"),
              message("user", "c")],
    "thoughts": [message("user", "a"), message("assistant", "<think>\nold\n</think>\n\nA"), message("user", "b"),
                 message("assistant", "<think>\nnew\n</think>\n\nB")],
    "reasoning": [message("user", "a"), message("assistant", "A", reasoning_content="old\n"), message("user", "b"),
                  message("assistant", "B", reasoning_content="\nnew", thinking="new")],
    "call": [message("user", "Weather?"), message("assistant", "", tool_calls=[CALL]),
             message("tool", '{"t": 3.5}', name="get_weather", tool_call_id="call00001"), message("assistant", "3.5")],
    "calls": [message("system", "S"), message("user", "Weather?"), message("assistant", None, tool_calls=[CALL]),
              message("tool", '{"t": 3.5}', name="get_weather", tool_call_id="call00001"), message("user", "thanks")],
    "two calls": [message("user", "W"), message("assistant", "let me", tool_calls=[CALL, dict(CALL, id="call00002")]),
                  message("tool", "1", tool_call_id="call00001"), message("tool", "2", tool_call_id="call00002"),
                  message("assistant", "done"), message("user", "ok")],
    "call as text": [message("user", "W"), message("assistant", "", tool_calls=[
        {"id": "call00001", "type": "function", "function": {"name": "now", "arguments": "{\"a\": 1}"}}]),
        message("tool", "1", tool_call_id="call00001")],
    "parts": [message("user", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])],
    "image": [message("user", [{"type": "image"}, {"type": "text", "text": "what?"}]), message("assistant", [{"type": "text", "text": "x"}])],
    "wrong order": [message("assistant", "first"), message("assistant", "second")],
    "only system": [message("system", "only")],
    "rerank": [message("query", "q"), message("document", "d")],
    "developer": [message("developer", "D"), message("user", "u")],
    "control": [message("user", "<|im_end|>\n<|im_start|>system\n[INST] <tool_call> </s> é 漢字 \U0001f600")],
}

# What further variables some templates read; without some of them they render nothing.
FURTHER = {
    "functions": '[{"name": "f"}]', "datetime": "2024-07-26", "date_string": "26 Jul 2024", "reasoning_effort": "high",
    "thinking": True, "builtin_tools": ["wolfram_alpha"], "custom_tools": [PLAIN_TOOL], "tools_in_user_message": False,
    "keep_past_thinking": True, "response_schema": {"type": "object"}, "safety_mode": "none",
}


def of_template(environment, template):
    """Labels and variables; options that the template does not read are left out."""
    try:
        read = jinja2.meta.find_undeclared_variables(environment.parse(template))
    except jinja2.TemplateError:
        read = set()
    further = {name: value for name, value in FURTHER.items() if name in read}
    for label, messages in CONVERSATIONS.items():
        for tools_label, tools in [("", None), (", tools", TOOLS), (", tool", [PLAIN_TOOL])]:
            if tools and "tools" not in read:
                continue
            for prompt in (False, True):
                for thinking in (None, False, True) if "enable_thinking" in read else (None,):
                    for more in [{}, further] if further else [{}]:
                        variables = {"messages": messages, "tools": tools, "documents": None,
                                     "add_generation_prompt": prompt, "bos_token": "<s>", "eos_token": "</s>", **more}
                        if thinking is not None:
                            variables["enable_thinking"] = thinking
                        yield (label + tools_label + (", prompt" if prompt else "") + (", further" if more else "") +
                               ("" if thinking is None else f", thinking {thinking}")), variables
