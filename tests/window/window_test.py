"""The server's page in a headless Chromium.

    window_test.py --binary build/release/ladder [--screenshots FOLDER]

Exits with 77 where there is no Chromium to try it with (Debian: apt-get install chromium).
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import chromium

ROOT = pathlib.Path(__file__).resolve().parents[2]
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\x1b[2J & <b>bold</b>"
KEY = "secret-of-the-test"


class Server:
    def __init__(self, *flags):
        self.process = subprocess.Popen(
            [ARGUMENTS.binary, "serve", "--port", "0", "--model", str(ROOT / "models" / "tinyworld"), "--kv-memory", "4MiB",
             "--max-num-seqs", "8", *flags], stdout=subprocess.PIPE, text=True)
        for line in self.process.stdout:
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found[1]
                return
        raise RuntimeError("ladder serve does not listen")

    def ask(self, path, body=None, key=KEY):
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
                                         data=None if body is None else json.dumps(body).encode())
        return urllib.request.urlopen(request, timeout=60)

    def close(self):
        self.process.terminate()
        code = self.process.wait(30)
        self.process.stdout.close()
        return code


class WindowTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.browser = chromium.Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        code = cls.server.close()
        if code != 0:
            raise AssertionError(f"ladder serve ended with {code}")

    def new_page(self):
        page = self.browser.new_page()
        self.addCleanup(page.close)
        return page

    def open(self, url=None, width=1360, height=1000, phone=False):
        page = self.new_page()
        page.size(width, height, phone)
        page.go_to((url or self.server.url) + "/")
        return page

    def picture(self, page, name):
        if ARGUMENTS.screenshots:
            page.screenshot(pathlib.Path(ARGUMENTS.screenshots) / f"{name}.png")

    def generate(self, prompt, tokens=60, **fields):
        with self.server.ask("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}) as answer:
            return json.load(answer)

    def watched(self):
        """A page that has seen a request of sixty tokens."""
        page = self.open()
        page.wait_for("document.getElementById('source').textContent === 'live'", "the page is live")
        self.generate("One day")
        page.wait_for("Number(document.body.dataset.records) > 60", "sixty steps arrive")
        return page

    def text(self, page, name):
        return page.evaluate(f"document.getElementById('{name}').textContent")

    def test_steps_arrive_and_the_page_stands_still_when_it_is_paused(self):
        page = self.watched()
        page.wait_for("document.getElementById('figure-step').textContent === 'at rest'", "the engine comes to rest")
        page.evaluate("document.getElementById('pause').click()")
        page.wait_for("document.getElementById('pause').getAttribute('aria-pressed') === 'true'", "it is paused")
        place = page.evaluate("Number(document.body.dataset.place)")
        page.evaluate("document.activeElement.blur()")
        for _ in range(3):
            page.key("ArrowLeft")
        page.wait_for(f"Number(document.body.dataset.place) === {place - 3}", "three steps back")
        self.assertRegex(self.text(page, "figure-step"), r"^\d+$")
        self.assertEqual(self.text(page, "figure-running"), "1")
        self.assertIn("1 of at most 8 sequences", self.text(page, "batch-note"))
        step = int(self.text(page, "figure-step"))
        page.key("ArrowRight")
        page.wait_for(f"document.getElementById('figure-step').textContent === '{step + 1}'", "a step forward")
        held = int(self.text(page, "count-held"))
        self.assertGreater(held, 0)
        self.generate("Another day")
        page.wait_for(f"Number(document.body.dataset.records) > {place + 50}", "steps arrive meanwhile")
        self.assertEqual(self.text(page, "figure-step"), str(step + 1), "paused")
        page.key("End")
        page.wait_for("document.body.dataset.place === String(Number(document.body.dataset.records) - 1)", "the latest")
        self.picture(page, "desktop")
        self.assertEqual(page.complaints(), [])

    def test_the_blocks_going_back_are_those_of_then(self):
        page = self.watched()
        page.wait_for("document.getElementById('figure-step').textContent === 'at rest'", "the engine comes to rest")
        counts = "['held','shared','cached','free'].map(name => Number(document.getElementById('count-' + name).textContent))"
        at_rest = page.evaluate(counts)
        self.assertEqual(at_rest[0] + at_rest[1], 0, "nobody holds a block")
        page.key("ArrowLeft")
        page.wait_for("document.getElementById('figure-step').textContent !== 'at rest'", "the last step")
        in_step = page.evaluate(counts)
        self.assertGreater(in_step[0], 0)
        self.assertEqual(sum(in_step), sum(at_rest))
        page.key("End")
        page.wait_for("document.getElementById('figure-step').textContent === 'at rest'", "the end again")
        self.assertEqual(page.evaluate(counts), at_rest)

    def test_a_request_is_followed(self):
        page = self.watched()
        page.wait_for("document.getElementById('figure-step').textContent === 'at rest'", "the engine comes to rest")
        for _ in range(5):  # before the step that it ended with
            page.key("ArrowLeft")
        page.wait_for("document.querySelector('#batch .sequence') !== null", "a sequence in the batch")
        page.evaluate("document.querySelector('#batch .sequence').click()")
        page.wait_for("!document.getElementById('follow').hidden", "it is followed")
        self.assertIn("prompt tokens", self.text(page, "follow-text"))
        self.assertIn("decodes its token", self.text(page, "follow-text"))

    def test_the_text_of_a_model_and_of_a_trace_stays_text(self):
        page = self.open()
        page.wait_for("document.getElementById('source').textContent === 'live'", "the page is live")
        chunks = [{"choices": [{"index": 0, "delta": {"content": part}}]} for part in (HOSTILE[:30], HOSTILE[30:])]
        body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        self.answer_chat_with(page, body)
        self.say(page, "Hello")
        page.wait_for("document.querySelector('#messages .assistant')?.textContent.includes('bold</b>')", "the answer is shown")
        self.assertEqual(page.evaluate("document.querySelector('#messages .assistant').textContent"), HOSTILE)
        self.assertEqual(page.evaluate("document.querySelectorAll('#messages img, #messages script, #messages b').length"), 0)
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "trace.jsonl"
            records = [{"restart": True}, {"step": 0, "arrived": [[0, HOSTILE, 0, 9, 0.0]], "batch": [[0, "p", 9, 0]], "queue": [0],
                                           "ended": [[0, HOSTILE]], "blocks": [[0, 3, "h"], [5, 2, "s"]], "evicted": [[5, 1]]}]
            file.write_text("\n".join(json.dumps(line) for line in [
                {"ladder_trace": 1, "num_blocks": 40, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 16, "started": 0},
                *records]) + "\n")
            page.choose_file("#file", file)
            page.wait_for("document.getElementById('source').textContent === 'trace.jsonl'", "the file is read")
            page.key("ArrowRight")
            page.wait_for("document.querySelector('#batch .sequence') !== null", "its step is shown")
            page.evaluate("document.querySelector('#batch .sequence').click()")
            page.wait_for("!document.getElementById('follow').hidden", "it is followed")
        self.assertEqual(page.evaluate("document.querySelector('#batch .name').textContent"), HOSTILE)
        self.assertEqual(self.text(page, "count-evicted"), "1")
        self.assertEqual([self.text(page, f"count-{name}") for name in ("held", "shared", "cached", "free")], ["3", "2", "0", "35"])
        self.assertEqual(page.evaluate("document.querySelectorAll('main img, main script, main section b img').length"), 0)
        time.sleep(0.2)
        self.assertNotEqual(page.evaluate("document.title"), "owned")
        # The policy alone would have stopped it, too.
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        time.sleep(0.3)
        self.assertEqual(page.evaluate("document.title"), "Ladder")

    def say(self, page, text):
        page.evaluate(f"document.getElementById('prompt').value = {json.dumps(text)}")
        page.evaluate("document.getElementById('chat-form').requestSubmit()")

    def answer_chat_with(self, page, body):
        """The page's own request for an answer gets this body, with the server's page and policy as they are."""
        import base64

        def on_event(message):
            if message["method"] == "Fetch.requestPaused":
                page.on_event = None
                page.call("Fetch.fulfillRequest", requestId=message["params"]["requestId"], responseCode=200,
                          responseHeaders=[{"name": "Content-Type", "value": "text/event-stream"}],
                          body=base64.b64encode(body.encode()).decode())
        page.on_event = on_event
        page.call("Fetch.enable", patterns=[{"urlPattern": "*/v1/chat/completions"}])

    def test_a_conversation(self):
        page = self.open()
        page.wait_for("document.getElementById('model').textContent !== ''", "the model's name")
        self.say(page, "One day")
        page.wait_for("document.querySelector('#messages .assistant')?.textContent.length > 5 && document.getElementById('send').textContent === 'Send'",
                      "an answer, whether or not the model has a chat template")
        page.wait_for("document.querySelector('#messages small') !== null", "its usage")
        self.assertTrue(page.evaluate("document.getElementById('chat-error').hidden"))

    def test_files_that_are_no_trace_are_refused_with_a_line(self):
        page = self.open()
        header = {"ladder_trace": 1, "num_blocks": 8, "block_size": 4, "max_num_seqs": 2, "max_num_batched_tokens": 16, "started": 0}
        with tempfile.TemporaryDirectory() as folder:
            for i, text in enumerate(["", "hello\n", "{}\n", '{"ladder_trace":2}\n', json.dumps({**header, "num_blocks": 1e12}) + "\n",
                                      json.dumps(header) + '\n{"blocks":[[7,2,"h"]]}\n', json.dumps(header) + '\n{"batch":7}\n',
                                      json.dumps(header) + "\n[[]]\n" + "null\n"]):
                file = pathlib.Path(folder) / f"bad{i}.jsonl"
                file.write_text(text)
                page.evaluate("document.getElementById('file-error').hidden = true")
                page.choose_file("#file", file)
                page.wait_for(f"!document.getElementById('file-error').hidden && document.getElementById('file-error').textContent.startsWith('bad{i}')",
                              f"{text!r} is refused")
        page.evaluate("document.getElementById('live').click()")
        page.wait_for("document.getElementById('source').textContent === 'live'", "live again")
        self.assertEqual(page.complaints(), [])

    def test_on_a_phone_nothing_is_wider_than_the_screen(self):
        page = self.open(width=390, height=844, phone=True)
        self.generate("One day " * 20)
        page.wait_for("Number(document.body.dataset.records) > 50", "steps arrive")
        for part in ("show-engine", "show-chat"):
            page.evaluate(f"document.getElementById('{part}').click()")
            time.sleep(0.2)
            self.picture(page, f"phone-{part}")
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 390)
        small = page.evaluate("[...document.querySelectorAll('button, .button')].filter(one => one.offsetParent !== null && one.getBoundingClientRect().height < 24).map(one => one.id)")
        self.assertEqual(small, [], "too small for a finger")

    def test_every_control_has_a_name_and_the_keyboard_reaches_it(self):
        page = self.watched()
        unnamed = page.evaluate("""[...document.querySelectorAll('button, input, textarea, canvas')].filter(one =>
            !(one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.length)).map(one => one.outerHTML)""")
        self.assertEqual(unnamed, [])
        reached = set()
        for _ in range(60):
            page.key("Tab")
            reached.add(page.evaluate("document.activeElement.id"))
        for name in ("prompt", "send", "back", "pause", "latest", "position", "file"):
            if not page.evaluate(f"document.getElementById('{name}').disabled"):
                self.assertIn(name, reached)

    def test_the_api_page(self):
        page = self.new_page()
        page.go_to(self.server.url + "/docs")
        self.assertIn("/v1/chat/completions", page.evaluate("document.body.textContent"))
        self.assertEqual(page.complaints(), [])

    def test_with_a_key_the_page_asks_for_it(self):
        server = Server("--api-key", KEY)
        try:
            page = self.open(server.url)
            page.wait_for("!document.getElementById('key-form').hidden", "the page asks for the key")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                server.ask("/window/events", key="wrong")
            self.assertEqual(refused.exception.code, 401)
            page.evaluate(f"document.getElementById('key').value = '{KEY}'")
            page.evaluate("document.getElementById('key-form').requestSubmit()")
            page.wait_for("document.getElementById('source').textContent === 'live'", "the page is live")
            self.assertTrue(page.evaluate("document.getElementById('key-form').hidden"))
        finally:
            self.assertEqual(server.close(), 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True)
    parser.add_argument("--screenshots", help="a folder for pictures")
    ARGUMENTS, rest = parser.parse_known_args()
    if chromium.find() is None:
        print("window_test: skipped: there is no chromium here (Debian: apt-get install chromium)")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *rest])
