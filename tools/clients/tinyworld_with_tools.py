"""A copy of models/tinyworld that can be made to call a tool: python tinyworld_with_tools.py MODEL COPY

Its chat template shows tools and calls, as Hermes' does, and the last tokens of its vocabulary are the pieces of a call.
COPY/call_tokens.json: their ids in order, then that of an end token.
"""
import json
import pathlib
import shutil
import sys

TEMPLATE = """{%- if tools %}{{- '<|im_start|>system\\nTools: ' }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content }}
    {%- for call in message.tool_calls %}{{- '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
PIECES = ['<tool_call>{"name": "weather", ', '"arguments": {"town": "', 'Northfield"}}', "</tool_call>"]

model, copy = map(pathlib.Path, sys.argv[1:])
shutil.rmtree(copy, ignore_errors=True)
copy.mkdir(parents=True)
for file in model.iterdir():
    if file.is_file() and file.name not in ("tokenizer_config.json", "tokenizer.json"):
        (copy / file.name).symlink_to(file.resolve())
config = json.loads((model / "tokenizer_config.json").read_text())
(copy / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))

tokenizer = json.loads((model / "tokenizer.json").read_text())
bpe = tokenizer["model"]
replaced = sorted(bpe["vocab"].items(), key=lambda item: item[1])[-len(PIECES):]
for (text, token), merge, piece in zip(replaced, bpe["merges"][-len(PIECES):], PIECES):
    assert "".join(merge) == text, "the last merges make the last tokens"
    del bpe["vocab"][text]
    tokenizer["added_tokens"].append({"id": token, "content": piece, "single_word": False, "lstrip": False, "rstrip": False,
                                      "normalized": False, "special": False})
del bpe["merges"][-len(PIECES):]
tokenizer["added_tokens"].sort(key=lambda token: token["id"])
(copy / "tokenizer.json").write_text(json.dumps(tokenizer))
end = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<|endoftext|>")
(copy / "call_tokens.json").write_text(json.dumps([token for _, token in replaced] + [end]))
