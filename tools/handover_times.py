#!/usr/bin/env python3
"""What a first token still waits when its prompt is computed, by how the two servers were told (step8_advanced/disaggregation).

    tools/handover_times.py [--binary build/release/ladder] [--prompt 1900] [--chunk 512] [--rounds 8] [--json FILE]

Three times `ladder serve --disaggregate 1P1D` with models/tinyworld on the CPU, one thread for each engine: one after the other, at
once, and at once layer by layer. In each round each of them gets one prompt; what is told is the router's router_handover_seconds. The
hidden share is what of one after the other has gone.
"""
import argparse
import http.client
import json
import pathlib
import platform
import random
import re
import statistics
import subprocess
import sys
import time

KINDS = {"one after the other": ["--prefill-first"], "at once": [], "at once, layer by layer": ["--kv-layer-by-layer"]}


class Server:
    def __init__(self, arguments, flags):
        command = [arguments.binary, "serve", "--model", "models/tinyworld", "--device", "cpu", "--dtype", "f32", "--disaggregate", "1P1D",
                   "--port", "0", "--threads", "1", "--no-prefix-caching", "--max-num-batched-tokens", str(arguments.chunk), *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        found = next((match for line in self.process.stdout if (match := re.search(r"listening on http://[^:]*:(\d+)", line))), None)
        if not found:
            sys.exit("handover_times: a server did not begin to listen")
        self.port = int(found[1])

    def get(self, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST" if body else "GET", path, body and json.dumps(body), {"Content-Type": "application/json"})
        return connection.getresponse().read().decode()

    def metric(self, name):
        return float(re.search(rf"^ladder:router_{name} (\S+)", self.get("/metrics"), re.M)[1])

    def handover(self, prompt):
        """Seconds, and whether both were told at once."""
        before = self.metric("handover_seconds_sum"), self.metric("at_once_transfers_total")
        self.get("/v1/completions", {"prompt": prompt, "max_tokens": 2, "ignore_eos": True, "stream": True})
        return self.metric("handover_seconds_sum") - before[0], self.metric("at_once_transfers_total") > before[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="build/release/ladder")
    parser.add_argument("--prompt", type=int, default=1900)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    draw = random.Random(1)
    servers = {kind: Server(arguments, flags) for kind, flags in KINDS.items()}
    try:
        for server in servers.values():  # where the engine is read is known by an answer, and how many there are by a report
            server.handover([draw.randrange(10, 400) for _ in range(arguments.prompt)])
        time.sleep(3)
        times = {kind: [] for kind in KINDS}
        for _ in range(arguments.rounds):
            for kind, server in servers.items():
                seconds, at_once = server.handover([draw.randrange(10, 400) for _ in range(arguments.prompt)])
                if at_once == (kind == "one after the other"):
                    sys.exit(f"handover_times: {kind}: it was not told so")
                times[kind].append(seconds)
    finally:
        for server in servers.values():
            server.process.terminate()
        for server in servers.values():
            server.process.wait()
    whole = statistics.median(times["one after the other"])
    for kind, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{kind:<24} {median * 1e3:6.1f} ms ({min(seconds) * 1e3:.1f} to {max(seconds) * 1e3:.1f}), hidden {1 - median / whole:.2f}")
    if arguments.json:
        commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude", "*"], capture_output=True, text=True)
        arguments.json.write_text(json.dumps({
            "command": " ".join(["tools/handover_times.py", *sys.argv[1:]]), "commit": commit.stdout.strip(), "machine": platform.machine(),
            "seconds": times}, indent=1) + "\n")


if __name__ == "__main__":
    main()
