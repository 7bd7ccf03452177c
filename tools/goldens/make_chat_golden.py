#!/usr/bin/env python3
"""Write tests/goldens/chat_templates.jsonl: the SHA-256 of published chat templates and what transformers renders with them.

FOLDER holds the templates as NAME.jinja, or as NAME--EDITION.jinja where one was published in several spellings or
editions that render the same; NAME says which one it is. The texts themselves are not
part of this repository: they come with the checkpoints (the field chat_template of tokenizer_config.json).

Run: pip install transformers jinja2; python3 tools/goldens/make_chat_golden.py FOLDER
"""
import hashlib
import json
import pathlib
import re
import sys

import transformers
from transformers.utils.chat_template_utils import render_jinja_template

BOS = "<|begin|>"
DATE = "26 Jul 2024"


def message(role, content):
    return {"role": role, "content": content}


CONVERSATIONS = [
    [message("user", "Hi")],
    [message("system", "Be brief."), message("user", "Hi")],
    [message("system", " S\n"), message("user", "\u00a0 Hi \t"), message("assistant", "  Hello.\n\n"), message("user", "")],
    [message("user", "a"), message("assistant", "<think>\nold\n</think>\n\nA"), message("user", "b"),
     message("assistant", "<think>\nnew\n</think>\n\nB")],
    [message("user", "a"), message("assistant", "x</think>y</think>\n\nA"), message("system", "later"),
     message("assistant", "B"), message("assistant", "")],
    [message("user", "a"), message("assistant", "A"), message("user", "<tool_response>\n1\n</tool_response>"),
     message("assistant", "\n<think>t</think>B"), message("assistant", "\n\nC")],
    [message("assistant", "first")],
    [message("system", "only")],
]


def sha256(template):
    """Of the text as Jinja reads it: every line break is \\n, and the last one of the file does not count."""
    text = re.sub(r"\r\n|\r", "\n", template)
    return hashlib.sha256((text[:-1] if text.endswith("\n") else text).encode()).hexdigest()


def render(template, messages, **options):
    rendered = render_jinja_template([messages], chat_template=template, bos_token=BOS, date_string=DATE, **options)
    return (rendered[0] if isinstance(rendered, tuple) else rendered)[0]


def cases(template):
    for messages in CONVERSATIONS:
        for prompt in (False, True):
            yield {"messages": messages, "add_generation_prompt": prompt,
                   "text": render(template, messages, add_generation_prompt=prompt)}
        if "enable_thinking" in template:
            for thinking in (False, True):
                yield {"messages": messages, "add_generation_prompt": True, "enable_thinking": thinking,
                       "text": render(template, messages, add_generation_prompt=True, enable_thinking=thinking)}


def main():
    templates = {}
    for path in sorted(pathlib.Path(sys.argv[1]).glob("*.jinja")):
        with path.open(encoding="utf-8", newline="") as file:
            text = file.read()
        name, _, edition = path.stem.partition("--")
        rendered = list(cases(text))
        entry = templates.setdefault(name, {"name": name, "sha256": {}, "cases": rendered})
        assert entry["cases"] == rendered, f"{path}: renders something else than the other editions"
        entry["sha256"][edition] = sha256(text)
    out = pathlib.Path(__file__).parent.parent.parent / "tests/goldens/chat_templates.jsonl"
    header = {"oracle": f"transformers {transformers.__version__}", "bos_token": BOS, "date": DATE}
    out.write_text("".join(json.dumps(line) + "\n" for line in [header, *templates.values()]), encoding="utf-8")
    for entry in templates.values():
        for edition, digest in entry["sha256"].items():
            print(entry["name"], edition or "-", digest)


if __name__ == "__main__":
    main()
