#!/usr/bin/env python3
"""Accuracy and perplexity of the tiny model on its held-out items, measured by Ladder itself.

    python3 tools/tinyworld/evaluate.py models/tinyworld
    python3 tools/tinyworld/evaluate.py models/tinyworld --ladder build/release/ladder -- --dtype f32

prints a Markdown table. The items are <model>/eval/*.jsonl; `ladder generate` answers them greedily, all tasks in one
run, and `ladder score` gives the perplexity of the held-out stories. What follows `--` goes to both commands. Any other
folder with a checkpoint of this model (a quantized one, say) can be measured with --items models/tinyworld/eval. Needs
Python alone.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import world as w

WHAT = {
    "qa": "questions about a story, one step",
    "two_steps": "questions about a story, two steps",
    "addition": "addition of two-digit numbers",
    "json": "JSON record, parses and is right",
    "copy": "copying up to 190 tokens, no error",
    "recall": "a code from a story of 240 to 1,120 tokens",
    "towns": "facts of towns, learnt by heart, never asked",
    "chat": "replies in a ChatML chat",
}
AT_LEAST = {"qa": 95, "addition": 90, "json": 95}


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with exit code {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def parses(text):
    try:
        json.loads(text)
        return True
    except ValueError:
        return False


def answers_of(ladder, model, items, options):
    """What the model says to each item, greedily."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = Path(folder) / "prompts.jsonl"
        write_lines(prompts, [{field: item[field] for field in ("prompt", "max_tokens", "stop")} for item in items])
        results = run([str(ladder), "generate", "--model", str(model), "--prompts", str(prompts), "--temperature", "0",
                       "--format", "jsonl", *options])
    if len(results) != len(items):
        sys.exit(f"ladder generate: expected {len(items)} results, got {len(results)}")
    texts = {result["index"]: result["outputs"][0]["text"] for result in results}
    return [texts[index] for index in range(len(items))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ladder", default="./ladder", help="the binary, or the script that builds and calls it")
    parser.add_argument("--items", type=Path, help="the held-out items, if not MODEL/eval")
    parser.add_argument("--failures", type=int, default=0, help="wrong answers to print of each task")
    arguments = sys.argv[1:]
    border = arguments.index("--") if "--" in arguments else len(arguments)
    args, options = parser.parse_args(arguments[:border]), arguments[border + 1:]
    tasks = w.read_items(args.items or args.model / "eval")
    stories = tasks.pop("text")
    flat = [(task, item) for task, items in tasks.items() for item in items]

    with tempfile.TemporaryDirectory() as folder:
        texts = Path(folder) / "texts.jsonl"
        write_lines(texts, stories)
        summary = run([args.ladder, "score", "--model", str(args.model), "--input", str(texts), "--format", "jsonl",
                       *options])[-1]["summary"]
    answers = {task: [] for task in tasks}
    texts = answers_of(args.ladder, args.model, [item for _, item in flat], options)
    for (task, item), text in zip(flat, texts):
        answers[task].append((text, item))
    print("| task | items | right | aim |\n|---|---|---|---|")
    for task, pairs in answers.items():
        right = sum(w.is_right(task, text, item["answer"]) for text, item in pairs)
        aim = f"{AT_LEAST[task]} %" if task in AT_LEAST else ""
        print(f"| {WHAT[task]} | {len(pairs)} | {100 * right / len(pairs):.1f} % | {aim} |")
        if task == "json":
            parsing = sum(parses(text) for text, _ in pairs)
            print(f"| JSON record, parses | {len(pairs)} | {100 * parsing / len(pairs):.1f} % | {aim} |")
    print(f"\nPerplexity of {len(stories)} held-out stories ({summary['tokens']} tokens): {summary['perplexity']:.3f}")
    for task, pairs in answers.items():
        wrong = [(text, item) for text, item in pairs if not w.is_right(task, text, item["answer"])]
        for text, item in wrong[:args.failures]:
            print(json.dumps({"task": task, "prompt": item["prompt"][-160:], "answer": item["answer"], "got": text}))


if __name__ == "__main__":
    main()
