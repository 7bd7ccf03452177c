#!/usr/bin/env python3
"""How many prompts a server computes beside an answer, and what two formulas say of it (step8_advanced/disaggregation, 8.7.planner).

    build/release/ladder serve --model models/tinyworld --device cpu --threads 1 --max-num-batched-tokens 512 --no-prefix-caching
    tools/prompts_beside.py [--port 8000] [--prompt 1536] [--output 32] [--busy 0.55] [--seconds 120]

Five requests alone say how long a prompt takes and how long a token. Then requests come as a Poisson process, so that prompts
keep the server busy for that share of the time. An answer sees the prompts that end between its first token and its last.
"""

import argparse
import http.client
import json
import math
import random
import statistics
import threading
import time


def ask(arguments, seed, answers):
    """Appends when it was sent, and when each token came."""
    draw = random.Random(seed)
    body = {"prompt": [draw.randrange(10, 400) for _ in range(arguments.prompt)], "max_tokens": arguments.output,
            "ignore_eos": True, "stream": True, "temperature": 0}
    connection = http.client.HTTPConnection("127.0.0.1", arguments.port, timeout=600)
    sent = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    tokens = [time.monotonic() for line in connection.getresponse() if b'"choices":[{' in line]
    answers.append((sent, tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--prompt", type=int, default=1536)
    parser.add_argument("--output", type=int, default=32)
    parser.add_argument("--busy", type=float, default=0.55)
    parser.add_argument("--seconds", type=float, default=120)
    arguments = parser.parse_args()
    steps = arguments.output - 1

    alone = []
    for seed in range(5):
        ask(arguments, seed, alone)
    prompt = statistics.median(tokens[0] - sent for sent, tokens in alone)
    token = statistics.median((tokens[-1] - tokens[0]) / steps for _, tokens in alone)
    print(f"alone: a prompt takes {prompt:.3f} s, a token {1e3 * token:.1f} ms")

    rate, answers, threads = arguments.busy / prompt, [], []
    arrivals, end = random.Random(7), time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        time.sleep(arrivals.expovariate(rate))
        threads.append(threading.Thread(target=ask, args=(arguments, 100 + len(threads), answers)))
        threads[-1].start()
    for thread in threads:
        thread.join()

    ends = [tokens[0] for _, tokens in answers]
    seen = [sum(tokens[0] < other <= tokens[-1] for other in ends) for _, tokens in answers]
    share = [sum(count == n for count in seen) / len(seen) for n in range(2)]
    print(f"{len(seen)} answers: {share[0]:.2f} see no prompt, {share[1]:.2f} one, {1 - sum(share):.2f} two or more")
    none_in_the_mean = math.exp(-rate * steps * token / (1 - arguments.busy))
    none_in_a_busy_time = (1 - arguments.busy) * math.exp(-rate * steps * token)
    print(f"no prompt: {none_in_the_mean:.2f} by the mean over time, {none_in_a_busy_time:.2f} as the planner counts")


if __name__ == "__main__":
    main()
