#!/usr/bin/env python3
"""Compare Ladder's tokenizer with Hugging Face tokenizers: speed on the same texts, one thread each, and equal ids.

The texts are what any machine has: the language reference that comes with Python and the licence texts (english), the
sources of Python's library (code), sentences put together from common words (chinese), identifiers (identifiers), and
two that no cache of words helps: words of random letters (random_words) and random Chinese characters
(random_chinese).

    pip install tokenizers==0.23.2
    python3 tools/tokenizer_compare.py --tokenizer ../shared/data/qwen3-tokenizer --build build/release

--check N instead encodes N difficult texts (tools/goldens/make_tokenizer_golden.py) with both, through
`ladder tokenize`, and counts those whose ids differ.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import tokenizers  # noqa: E402  (reads the two settings above)

DOCUMENT = 4096  # characters of one text


def cut(text, limit=2_000_000):
    return [text[i:i + DOCUMENT] for i in range(0, min(len(text), limit), DOCUMENT)]


def english():
    from pydoc_data import topics
    licences = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
    return cut("\n".join(list(topics.topics.values()) + [p.read_text(errors="replace") for p in licences if p.is_file()]))


def code():
    library = pathlib.Path(os.__file__).parent
    return cut("\n".join(p.read_text(errors="replace") for p in sorted(library.glob("*.py"))))


def chinese():
    words = ("今天 天气 很好 我们 一起 去 公园 散步 学习 机器 语言 模型 研究 北京 上海 老师 学生 问题 可以 已经 没有 时候 知道 "
             "工作 发展 国家 经济 社会 世界 中国 人民 政府 公司 市场 技术 科学 文化 历史 教育 健康 环境 城市 农村 生活 家庭 朋友 "
             "的 了 在 是 和 有 不 这 那 也 都 就 还 要 会 能 到 说 看 做 想 走 来 去 给 把 被 让 从 向 对 为 以 及 与").split()
    rng = random.Random(2)
    text = "".join("".join(rng.choice(words) for _ in range(rng.randint(4, 14))) + rng.choice(",。。!?\n")
                   for _ in range(40_000))
    return cut(text)


def random_words():
    rng = random.Random(3)
    return cut(" ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 12))) for _ in range(200_000)))


def identifiers():
    rng = random.Random(4)
    parts = "get set max min num token block cache slot batch size index count view head layer rank query state".split()
    return cut(" ".join("_".join(rng.choices(parts, k=rng.randint(1, 4))) + str(rng.randrange(1000)) + rng.choice("();,.[]")
                        for _ in range(100_000)))


def random_chinese():
    rng = random.Random(5)
    return cut("".join(chr(rng.randrange(0x4E00, 0x5E00)) if rng.random() < 0.9 else ",。"[rng.randrange(2)]
                       for _ in range(400_000)))


def best_seconds(run, least=3.0):
    """Processor time, as Google Benchmark counts it for Ladder: other work on the machine favours neither."""
    run()
    times = []
    while sum(times) < least or len(times) < 3:
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def speed(arguments, folder):
    oracle = tokenizers.Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    corpora = {make.__name__: make() for make in (english, code, chinese, identifiers, random_words, random_chinese)}
    for name, texts in corpora.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(t) + "\n" for t in texts))
    command = [str(arguments.build / "bench/bench_step2"), "--benchmark_filter=tokenizer_encode",
               "--benchmark_format=json", "--benchmark_repetitions=5", "--benchmark_min_time=0.5"]
    environment = os.environ | {"LADDER_TOKENIZER": str(arguments.tokenizer), "LADDER_TOKENIZER_TEXTS": str(folder)}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    ladder = {}
    for row in json.loads(output)["benchmarks"]:
        if row["run_type"] == "iteration":
            name = row["name"].split("/")[1]
            ladder[name] = max(ladder.get(name, 0), row["bytes_per_second"])
    rows = []
    for name, texts in corpora.items():
        size = sum(len(t.encode()) for t in texts)
        # Both ways to encode; encode_batch_fast leaves out what Ladder leaves out (offsets).
        hugging_face = size / min(
            best_seconds(lambda: [oracle.encode(t, add_special_tokens=False) for t in texts]),
            best_seconds(lambda: oracle.encode_batch_fast(texts, add_special_tokens=False)))
        rows.append({"text": name, "bytes": size, "ladder_MB_per_s": round(ladder[name] / 1e6, 1),
                     "hugging_face_MB_per_s": round(hugging_face / 1e6, 2), "ratio": round(ladder[name] / hugging_face, 1)})
    return rows


def check(arguments):
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "goldens"))
    from make_tokenizer_golden import random_text
    oracle = tokenizers.Tokenizer.from_file(str(arguments.tokenizer / "tokenizer.json"))
    rng = random.Random(arguments.seed)
    texts = [random_text(rng) for _ in range(arguments.check)]
    command = [str(arguments.build / "ladder"), "tokenize", "--model", str(arguments.tokenizer)]
    lines = subprocess.run(command, input="".join(json.dumps({"text": t}) + "\n" for t in texts).encode(), check=True,
                           stdout=subprocess.PIPE).stdout.split(b"\n")[:-1]
    assert len(lines) == len(texts), f"{len(lines)} lines for {len(texts)} texts"
    differing = [t for t, line in zip(texts, lines) if json.loads(line)["ids"] != oracle.encode(t).ids]
    for text in differing[:10]:
        print("differs:", ascii(text))
    print(f"{len(texts)} texts (seed {arguments.seed}), {len(differing)} with other ids than tokenizers "
          f"{tokenizers.__version__}")
    return 1 if differing else 0


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=pathlib.Path, required=True, help="folder of a tokenizer.json")
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/release"))
    parser.add_argument("--check", type=int, metavar="N", help="compare the ids of N difficult texts instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path, help="also write the result here")
    arguments = parser.parse_args()
    if arguments.check:
        return check(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = speed(arguments, pathlib.Path(folder))
    print(f"one thread of {processor()}, tokenizers {tokenizers.__version__}, best of several runs")
    print(f"{'text':20} {'bytes':>9} {'Ladder MB/s':>12} {'HF MB/s':>9} {'ratio':>6}")
    for row in rows:
        print(f"{row['text']:20} {row['bytes']:9} {row['ladder_MB_per_s']:12.1f} {row['hugging_face_MB_per_s']:9.2f} "
              f"{row['ratio']:6.1f}")
    if arguments.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True).stdout.strip()
        arguments.json.write_text(json.dumps(
            {"command": "tools/tokenizer_compare.py --tokenizer " + arguments.tokenizer.name, "commit": commit,
             "processor": processor(), "tokenizers": tokenizers.__version__, "threads": 1, "time": "processor time, best run", "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
