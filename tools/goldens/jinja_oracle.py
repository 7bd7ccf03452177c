#!/usr/bin/env python3
"""What jinja2 renders, with the settings that transformers renders chat templates with, as cases for our interpreter.

    jinja_oracle.py small                       writes tests/goldens/jinja/small.jsonl from jinja_cases.py
    jinja_oracle.py random SEED COUNT OUT       random templates; tests/goldens/jinja/random.jsonl is 1 400
    jinja_oracle.py folder OUT NAME=DIR...      every DIR/**/*.jinja on many conversations; NAME is what results call it

A case is a line {"name", "template", "variables", "text"}, or "error" instead of "text" where jinja2 refuses; the first
line says which jinja2. A case without "template" has that of the line before; "of" and "sha256" name a file. Ours is
held against a file of cases by
    LADDER_JINJA_CASES=OUT build/release/tests/test_step2 --gtest_filter='JinjaOracle.*'
and LADDER_JINJA_RESULTS=FILE writes what came out for each template, as tests/goldens/jinja/published.jsonl has it.

Run: pip install jinja2; python3 tools/goldens/jinja_oracle.py ...
"""
import datetime
import functools
import hashlib
import json
import pathlib
import sys
import warnings

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

import jinja_conversations
from jinja_cases import CASES
from jinja_random import RandomTemplate

GOLDENS = pathlib.Path(__file__).resolve().parent.parent.parent / "tests/goldens/jinja"
NOW = datetime.datetime(2024, 7, 26)  # as ours, where no time is given


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = NOW.strftime
    return made


ENVIRONMENT = environment()


@functools.lru_cache(maxsize=4)  # a file's template, for all of its conversations
def compiled(template):
    return ENVIRONMENT.from_string(template)


def case(name, template, variables):
    """None where the text is of no use for a comparison."""
    result = {"name": name, "template": template, "variables": variables}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result["text"] = compiled(template).render(**variables)
    except Exception as error:  # whatever Python raises, ours must refuse
        result["error"] = type(error).__name__ + ": " + str(error)[:80]
    if " object at 0x" in result.get("text", "") or "built-in method" in result.get("text", ""):
        return None
    return result


def write(path, cases):
    path.parent.mkdir(parents=True, exist_ok=True)
    header = {"oracle": f"jinja2 {jinja2.__version__}"}
    lines = [json.dumps(line, ensure_ascii=False) for line in [header, *cases]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    errors = sum("error" in one for one in cases)
    print(f"{path}: {len(cases)} cases, {errors} of them refused, jinja2 {jinja2.__version__}")


def small():
    return [case(name, template, variables) for name, template, variables in CASES]


def random_cases(seed, count):
    cases, number, refused = [], 0, 0
    while len(cases) < count:
        number += 1
        maker = RandomTemplate(f"{seed}/{number}")
        one = case(f"{seed}/{number}", maker.template(), maker.variables())
        if one is None or len(one.get("text", "")) > 3000:
            continue
        if "error" in one:  # half of all, and less telling
            refused += 1
            if refused % 4:
                continue
        cases.append(one)
    return cases


def folder(name, directory):
    cases = []
    for path in sorted(directory.glob("**/*.jinja")):
        template = path.read_text(encoding="utf-8")
        of = f"{name}/{path.relative_to(directory)}"
        # Once per file: a template may be longer than all of its conversations.
        mine = {"template": template, "of": of, "sha256": hashlib.sha256(template.encode()).hexdigest()}
        for label, variables in jinja_conversations.of_template(ENVIRONMENT, template):
            one = case(f"{of}: {label}", template, variables)
            if one is not None:
                del one["template"]
                cases.append({**one, **mine})
                mine = {}
    return cases


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:] or ["-h"]
    if mode == "small" and not arguments:
        write(GOLDENS / "small.jsonl", small())
    elif mode == "random" and len(arguments) == 3:
        write(pathlib.Path(arguments[2]), random_cases(int(arguments[0]), int(arguments[1])))
    elif mode == "folder" and len(arguments) >= 2 and all("=" in argument for argument in arguments[1:]):
        named = [argument.split("=", 1) for argument in arguments[1:]]
        write(pathlib.Path(arguments[0]),
              [one for name, directory in named for one in folder(name, pathlib.Path(directory))])
    else:
        sys.exit(__doc__)
