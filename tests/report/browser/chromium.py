# SPDX-License-Identifier: Apache-2.0
"""Controls a headless Chromium over a pipe with its own protocol: it needs only Python and opens no port."""
import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time


class Failed(Exception):
    pass


def find():
    """The browser's path, or None. A browser in a snap has its own /tmp and cannot read the pages."""
    names = [os.environ.get("TARN_BROWSER", ""), "chromium", "chromium-browser", "google-chrome"]
    paths = [path for path in map(shutil.which, filter(None, names)) if path]
    return next((path for path in paths if "snap" not in os.path.realpath(path)), None)


class Browser:
    def __init__(self, path, width=1280, height=900):
        self.profile = tempfile.mkdtemp(prefix="tarn_browser_")
        to_browser, self.out = os.pipe()
        self.into, from_browser = os.pipe()

        def wire():  # the browser reads from 3 and writes to 4
            a, b = os.dup(to_browser), os.dup(from_browser)
            os.dup2(a, 3)
            os.dup2(b, 4)

        arguments = [path, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                     "--disable-extensions", "--disable-background-networking", "--disable-component-update", "--disable-sync",
                     "--hide-scrollbars", "--remote-debugging-pipe", f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(arguments, preexec_fn=wire, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.buffer, self.last, self.said, self.loads, self.session = b"", 0, [], [], None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width, height)

    def close(self):
        try:
            self.session = None
            self.call("Browser.close")
            self.process.wait(10)
        except (Failed, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        for end in (self.out, self.into):
            os.close(end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _read(self, deadline):
        while b"\0" not in self.buffer:
            if not select.select([self.into], [], [], max(0, deadline - time.monotonic()))[0]:
                raise Failed("the browser does not answer")
            chunk = os.read(self.into, 1 << 20)
            if not chunk:
                raise Failed("the browser has ended")
            self.buffer += chunk
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def _note(self, message):
        method, what = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = what["exceptionDetails"]
            self.said.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and what["type"] in ("error", "warning", "assert"):
            self.said.append(" ".join(str(a.get("value", a.get("description"))) for a in what["args"]))
        elif method == "Log.entryAdded" and what["entry"]["level"] in ("error", "warning"):
            self.said.append(what["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not what["request"]["url"].startswith(("data:", "about:")):
            self.loads.append(what["request"]["url"])

    def call(self, method, timeout=60, **arguments):
        self.last += 1
        message = {"id": self.last, "method": method, "params": arguments}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + timeout
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self.last:
                if "error" in answer:
                    raise Failed(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self._note(answer)

    def run(self, script):
        """The value of a script's last expression; waits for promises."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise Failed(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, path, timeout=60):
        self.said, self.loads = [], []
        self.call("Page.navigate", url=f"file://{os.path.abspath(path)}")
        deadline = time.monotonic() + timeout
        while not self.run("document.readyState === 'complete' && location.href.startsWith('file:')"):
            if time.monotonic() > deadline:
                raise Failed(f"{path} does not load")
            time.sleep(0.02)
        self.frame()

    def frame(self):
        """Waits until the requested state is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def resize(self, width, height, scale=1):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def prefer(self, **features):
        self.call("Emulation.setEmulatedMedia", features=[{"name": k.replace("_", "-"), "value": v} for k, v in features.items()])

    def key(self, key, shift=False, drawn=True):
        codes = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Home": 36, "End": 35, "Tab": 9,
                 "PageUp": 33, "PageDown": 34}
        code, text = codes.get(key, ord(key[0].upper())), key if len(key) == 1 else None
        down = {"type": "keyDown", "key": key, "windowsVirtualKeyCode": code, "modifiers": 8 if shift else 0}
        if text:
            down["text"] = text
        self.call("Input.dispatchKeyEvent", **down)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)
        if drawn:
            self.frame()

    def type(self, text):
        self.call("Input.insertText", text=text)
        self.frame()

    def mouse(self, kind, x, y, **more):
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x, y):
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", clickCount=1)
        self.frame()

    def picture(self, path, whole=True):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        arguments = {"format": "png"}
        if whole:
            arguments.update(captureBeyondViewport=True, clip={"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1})
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("Page.captureScreenshot", **arguments)["data"]))
