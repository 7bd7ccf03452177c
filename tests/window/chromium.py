"""A headless Chromium, driven by the DevTools protocol over a WebSocket of its own: the standard library is all it needs."""
import base64
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile
import time


def find():
    """The program, or None."""
    return next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)


class WebSocket:
    """A client's side: text messages, whole."""

    def __init__(self, port, path):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
                             f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        assert b"101" in self.file.readline()
        while self.file.readline().strip():
            pass

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        length = struct.pack("!BB", 0x81, 0x80 | len(data)) if len(data) < 126 else \
            struct.pack("!BBH", 0x81, 0x80 | 126, len(data)) if len(data) < 65536 else \
            struct.pack("!BBQ", 0x81, 0x80 | 127, len(data))
        masked = bytes(byte ^ mask[i % 4] for i, byte in enumerate(data))
        self.socket.sendall(length + mask + masked)

    def receive(self):
        message = b""
        while True:
            head = self.file.read(2)
            if len(head) < 2:
                raise ConnectionError("the browser has closed the connection")
            length = head[1] & 0x7F
            if length == 126:
                length = struct.unpack("!H", self.file.read(2))[0]
            elif length == 127:
                length = struct.unpack("!Q", self.file.read(8))[0]
            message += self.file.read(length)
            if head[0] & 0x80:
                return message.decode()

    def close(self):
        self.socket.close()


class Page:
    """One tab."""

    def __init__(self, browser, socket_path):
        self.socket = WebSocket(browser.port, socket_path)
        self.next_id = 0
        self.answers = {}
        self.events = []
        self.on_event = None
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        self.next_id += 1
        mine = self.next_id
        self.socket.send(json.dumps({"id": mine, "method": method, "params": parameters}))
        while mine not in self.answers:
            message = json.loads(self.socket.receive())
            if "id" in message:  # perhaps of a call further out, during which on_event has called
                self.answers[message["id"]] = message
            elif "method" in message:
                self.events.append(message)
                if self.on_event:
                    self.on_event(message)
        message = self.answers.pop(mine)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']['message']}")
        return message["result"]

    def close(self):
        """Its feed too: a browser opens six connections to a server, all its tabs together."""
        self.call("Page.close")
        self.socket.close()

    def evaluate(self, expression):
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{expression}: {result['exceptionDetails'].get('exception', result['exceptionDetails'])}")
        return result["result"].get("value")

    def wait_for(self, expression, what, seconds=60):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := self.evaluate(expression):
                return value
            time.sleep(0.05)
        raise AssertionError(f"waited {seconds} s in vain: {what} ({expression})")

    def go_to(self, url):
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'", f"{url} loads")

    def key(self, name, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code="Space" if name == " " else name, text=text if kind == "keyDown" else "",
                      windowsVirtualKeyCode={" ": 32, "ArrowLeft": 37, "ArrowRight": 39, "End": 35, "Home": 36, "Enter": 13, "Tab": 9}[name])

    def size(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1,
                  mobile=phone)

    def dark(self, on):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if on else "light"}])

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def choose_file(self, selector, path):
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def complaints(self):
        """What the browser's console has: errors, refused resources, exceptions."""
        found = []
        for event in self.events:
            if event["method"] == "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                found.append(str(details.get("exception", {}).get("description", details.get("text"))))
            if event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] in ("error", "warning"):
                entry = event["params"]["entry"]
                found.append(f"{entry['text']} {entry.get('url', '')}")
        return found


class Browser:
    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="ladder_window_", ignore_cleanup_errors=True)
        # Without a sandbox: in a container there is none to be had, and the pages are our own.
        self.process = subprocess.Popen(
            [find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
             "--remote-debugging-port=0", f"--user-data-dir={self.folder.name}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = pathlib.Path(self.folder.name) / "DevToolsActivePort"
        until = time.monotonic() + 60
        while not (port_file.exists() and port_file.read_text().count("\n") >= 1):
            if self.process.poll() is not None or time.monotonic() > until:
                self.close()
                raise RuntimeError("the browser does not start")
            time.sleep(0.05)
        lines = port_file.read_text().split("\n")
        self.port = int(lines[0])
        self.main = WebSocket(self.port, lines[1])

    def new_page(self):
        self.main.send(json.dumps({"id": 1, "method": "Target.createTarget", "params": {"url": "about:blank"}}))
        while (message := json.loads(self.main.receive())).get("id") != 1:
            pass
        return Page(self, f"/devtools/page/{message['result']['targetId']}")

    def close(self):
        if hasattr(self, "main"):
            self.main.close()
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()
