# SPDX-License-Identifier: Apache-2.0
"""Tests the report page in a headless Chromium: contents, zoom, keyboard, filter, light and dark, hostile names.
Without a browser it checks only the structure, and the exit status is 77.
check.py PATH_OF_PAGES [FOLDER_FOR_PICTURES]; TARN_BROWSER names another browser."""
import html.parser
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chromium  # noqa: E402

problems = []


def promise(kept, title, *seen):
    if not kept:
        problems.append(title)
        print(f"FAILED: {title} {' '.join(map(repr, seen))}")


class Structure(html.parser.HTMLParser):
    """Every opened element is closed in order; ids are unique; every reference to an id resolves."""

    def __init__(self, name):
        super().__init__()
        self.name, self.open, self.ids, self.refers, self.texts, self.script = name, [], [], [], {}, None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if "id" in attributes:
            self.ids.append(attributes["id"])
        for key in ("for", "aria-controls", "aria-labelledby", "aria-describedby"):
            self.refers += attributes.get(key, "").split()
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)
        if tag == "script":
            self.script = attributes.get("id", "script")
            self.texts[self.script] = ""

    def handle_endtag(self, tag):
        promise(self.open and self.open.pop() == tag, f"{self.name}: {tag} is closed where it was opened", self.getpos())

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.texts[self.script] += data


def check_structure(name, text):
    page = Structure(name)
    page.feed(text)
    page.close()
    promise(not page.open, f"{name}: everything is closed", page.open)
    promise(len(page.ids) == len(set(page.ids)), f"{name}: each id is unique")
    promise(set(page.refers) <= set(page.ids), f"{name}: every referenced id exists", set(page.refers) - set(page.ids))
    promise(json.loads(page.texts["tarn-info"])["format"] == 1, f"{name}: its data is JSON")


def check_shown(b, name, want):
    text = lambda id: b.run(f"document.getElementById('{id}').textContent")
    data = lambda id, key: b.run(f"document.getElementById('{id}').dataset.{key}")
    promise(float(data("tiles", "peakBytes")) == want["peak"], f"{name}: the peak is the program's", data("tiles", "peakBytes"), want)
    promise(float(data("tiles", "liveBytes")) == want["live"], f"{name}: the curve ends at the live bytes", data("tiles", "liveBytes"))
    promise(float(data("moment", "bytes")) == want["peak"], f"{name}: the tables first show the peak")
    promise(int(data("map", "blocks")) == want["blocks"], f"{name}: the map has every block", data("map", "blocks"), want)
    promise(int(data("moment", "blocks")) == want["peak_blocks"], f"{name}: each block of the peak is known", data("moment", "blocks"), want)
    calls = "1 call" if want["calls"] == 1 else f"{want['calls']:,} calls"
    promise(calls in text("about"), f"{name}: the calls are counted, not what the pool reserved", text("about"))
    if want["calls"]:
        promise(f"call {want['peak_call']:,}" in text("moment-about"), f"{name}: the peak is at its call", text("moment-about"))
        if name != "replay" and b.run("document.getElementById('axis-time').getAttribute('aria-pressed')") == "true":
            promise(float(data("chart", "to")) == want["now"], f"{name}: the axis ends with the program", data("chart", "to"), want)
    sum_of_tags = b.run("""[...document.querySelectorAll('#moment-tags tr')].length""")
    promise(sum_of_tags > 0, f"{name}: a tag has bytes at the peak, or the page shows that none has")


def check_fits(b, name):
    for width in (320, 768, 1280):
        b.resize(width, 800)
        b.frame()
        promise(b.run("document.documentElement.scrollWidth") <= width, f"{name}: nothing is wider than a page of {width}")
        cut = b.run("""[...document.querySelectorAll('button, h1, h2, h3, dd, dt, li')].filter(e => e.offsetParent &&
          e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display !== 'inline').map(e => e.textContent)""")
        promise(not cut, f"{name}: no text is cut at a width of {width}", cut)
    b.resize(1280, 900)
    b.frame()


def check_keys(b):
    share = lambda: float(b.run("document.getElementById('chart').dataset.share"))
    start = lambda: float(b.run("document.getElementById('chart').dataset.from"))
    b.run("document.getElementById('chart').focus()")
    promise(share() == 1, "the whole range is shown at first")
    for _ in range(3):
        b.key("+")
    promise(abs(share() - 1 / 8) < 1e-6, "three presses of + show an eighth", share())
    before = start()
    b.key("PageUp")
    promise(start() < before, "Page Up goes back", start())
    b.key("0")
    promise(share() == 1, "0 shows all again")
    said = b.run("document.getElementById('moment-about').textContent")
    b.key("ArrowLeft", shift=True)
    now = b.run("document.getElementById('moment-about').textContent")
    promise(now != said and "chosen" in b.run("document.getElementById('moment-title').textContent"), "an arrow moves the moment", now)
    promise("live" in b.run("document.getElementById('spoken').textContent"), "a screen reader announces the moment")
    b.key("p")
    promise(b.run("document.getElementById('moment-about').textContent") == said, "P returns to the peak")

    b.run("document.getElementById('map').focus()")
    b.key("Home")
    b.key("ArrowRight")
    promise(b.run("document.getElementById('map').dataset.block") == "1", "an arrow goes to the next block")
    promise("0x7f5a" in b.run("document.getElementById('map-readout').textContent"), "the address of the block is shown")
    b.key("End")
    promise(int(b.run("document.getElementById('map').dataset.block")) > 100, "End goes to the last one")
    b.run("document.getElementById('tab-tags').focus()")
    b.key("ArrowRight")
    promise(b.run("document.activeElement.id") == "tab-blocks" and not b.run("document.getElementById('panel-blocks').hidden"),
            "arrows go from table to table")
    reached = set()
    b.run("document.activeElement.blur(); document.body.focus(); window.scrollTo(0, 0)")
    for _ in range(60):
        b.key("Tab", drawn=False)
        reached.add(b.run("document.activeElement.id || document.activeElement.className"))
    wanted = {"theme-dark", "show-tags", "zoom-in", "chart", "color-tag", "map", "tab-blocks", "filter-blocks", "sort", "scroll"}
    promise(wanted <= reached, "Tab reaches everything", wanted - reached)
    b.run("document.getElementById('chart').focus()")
    promise(b.run("getComputedStyle(document.activeElement).outlineStyle") == "solid", "the focused element has a visible outline")


def check_pointer(b):
    b.run("window.scrollTo(0, 0)")
    box = json.loads(b.run("JSON.stringify(document.getElementById('chart').getBoundingClientRect())"))
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    before = b.run("document.getElementById('chart-readout').textContent")
    b.mouse("mouseMoved", x + 100, y)
    b.frame()
    promise(b.run("document.getElementById('chart-readout').textContent") != before, "the pointer shows the value of the curve")
    b.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300)
    b.frame()
    share = float(b.run("document.getElementById('chart').dataset.share"))
    promise(0.3 < share < 0.5, "the wheel zooms in", share)
    start = float(b.run("document.getElementById('chart').dataset.from"))
    b.mouse("mousePressed", x, y, button="left", clickCount=1)
    b.mouse("mouseMoved", x - 150, y, button="left", buttons=1)
    b.mouse("mouseReleased", x - 150, y, button="left", clickCount=1)
    b.frame()
    promise(float(b.run("document.getElementById('chart').dataset.from")) > start, "a drag pans")
    b.run("document.getElementById('zoom-all').click()")
    b.frame()
    b.click(box["x"] + 100, y)
    promise("chosen" in b.run("document.getElementById('moment-title').textContent"), "a click chooses a moment")
    b.run("document.getElementById('to-peak').click()")


def check_tables(b):
    b.run("document.getElementById('tab-blocks').click(); document.getElementById('filter-blocks').focus()")
    rows = "[...document.querySelectorAll('#panel-blocks tbody tr')].map(r => r.textContent)"
    before = b.run(rows)
    b.type("OPTIMIZER")
    after = b.run(rows)
    promise(0 < len(after) < len(before) and all("optimizer" in row for row in after), "a filter keeps what has the text", len(after))
    b.type(" nowhere")
    promise(b.run(rows) == [] and "Nothing matches" in b.run("document.querySelector('#panel-blocks [role=status]').textContent"),
            "and says where nothing has")
    sort = "document.querySelectorAll('#panel-tags .sort')[5].click()"
    b.run("document.getElementById('tab-tags').click();" + sort)
    column = "[...document.querySelectorAll('#panel-tags tbody tr')].map(r => +r.children[5].textContent.replaceAll(',', ''))"
    promise(b.run(column) == sorted(b.run(column), reverse=True) and b.run(column)[0] > 0, "a click sorts, the most first", b.run(column))
    b.run(sort)
    promise(b.run(column) == sorted(b.run(column)), "a second click reverses the order", b.run(column))
    b.run("document.getElementById('tab-numbers').click()")
    promise("Largest free range" in b.run("document.getElementById('panel-numbers').textContent"), "the pool's numbers are there")


def check_colors(b):
    def shine(color):
        parts = [int(color[i:i + 2], 16) / 255 for i in (1, 3, 5)]
        return sum(w * (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4) for w, p in zip((0.2126, 0.7152, 0.0722), parts))

    def contrast(a, b):
        bright, dark = sorted((shine(a), shine(b)), reverse=True)
        return (bright + 0.05) / (dark + 0.05)

    seen = {}
    for scheme in ("light", "dark"):
        b.prefer(prefers_color_scheme=scheme)
        b.frame()
        get = lambda name: b.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
        seen[scheme] = b.run("getComputedStyle(document.body).backgroundColor")
        for text in ("ink", "soft"):
            for ground in ("surface", "page"):
                promise(contrast(get(text), get(ground)) >= 4.5, f"{scheme}: {text} is read on {ground}", contrast(get(text), get(ground)))
        promise(contrast(get("on-chosen"), get("chosen")) >= 4.5, f"{scheme}: a pressed button is read")
        for mark in ("live", "reserved", "requested", "focus", "deferred", "c0", "c1", "c3", "c4", "c5", "c6", "c7"):
            promise(contrast(get(mark), get("surface")) >= 2.9, f"{scheme}: {mark} is seen", contrast(get(mark), get("surface")))
    promise(seen["light"] != seen["dark"], "the system's choice of light or dark is followed")
    b.run("document.getElementById('theme-light').click()")
    promise(b.run("getComputedStyle(document.body).backgroundColor") == seen["light"], "the system's choice can be overridden")
    b.run("document.getElementById('theme-auto').click()")
    b.prefer(prefers_color_scheme="light", prefers_reduced_motion="reduce")
    promise(b.run("getComputedStyle(document.getElementById('zoom-in')).transitionDuration") == "0s", "reduced motion disables transitions")


def check_spike(b, want):
    for width in (320, 997, 1280):
        b.resize(width, 800)
        b.frame()
        promise(float(b.run("document.getElementById('chart').dataset.most")) == want["peak"],
                f"a peak of one event in {want['events']:,} is drawn at a width of {width}")
    b.resize(1280, 900)


def check_without_history(b, name):
    """Without calls no curve of live bytes is drawn, and no peak is named; what the pool reserved is drawn if it was recorded."""
    note = b.run("document.getElementById('chart-note').textContent")
    promise("No calls were recorded" in note and "tarn::with_history{}" in note, f"{name}: the page shows how to record calls", note)
    promise(b.run("document.querySelector('#tiles dd').textContent") == "–", f"{name}: no peak is claimed")
    promise(b.run("document.getElementById('moment-title').textContent") == "Live at the snapshot", f"{name}: the tables show the snapshot")
    promise("peak" not in b.run("document.querySelector('#panel-tags thead').textContent").replace("Its own peak", ""),
            f"{name}: no table has a column of the peak")
    if name == "no_events":
        promise(b.run("document.getElementById('chart').hidden"), "there is no chart without events")
    else:
        promise(b.run("document.getElementById('chart-legend').textContent") == "reserved", "only reserved bytes are drawn")
        blue = b.run("""(() => { const c = document.getElementById('chart'), p = c.getContext('2d');
          const live = getComputedStyle(document.documentElement).getPropertyValue('--live').trim();
          const want = [1, 3, 5].map((i) => parseInt(live.slice(i, i + 2), 16)), d = p.getImageData(0, 0, c.width, c.height).data;
          let n = 0;
          for (let i = 0; i < d.length; i += 4) n += want.every((w, k) => Math.abs(d[i + k] - w) < 3) && d[i + 3] > 250;
          return n; })()""")
        promise(blue == 0, "no pixel has the colour of live bytes", blue)


def main():
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        subprocess.run([sys.argv[1], folder], check=True)
        expected = json.loads((folder / "expected.json").read_text())
        for name in expected:
            check_structure(name, (folder / f"{name}.html").read_text())
        path = chromium.find()
        if not path:
            print("SKIPPED: no chromium; the pages' structure was checked" if not problems else f"{len(problems)} failed")
            return 1 if problems else 77
        b = chromium.Browser(path)
        try:
            b.prefer(prefers_color_scheme="light")
            for name, want in expected.items():
                b.open(folder / f"{name}.html")
                check_shown(b, name, want)
                if name in ("training", "hostile", "empty"):
                    check_fits(b, name)
                if name == "training":
                    for check in (check_keys, check_pointer, check_tables, check_colors):
                        check(b)
                if name == "hostile":
                    promise(not b.run("window.harmed") and not b.run("document.images.length"), "a hostile name runs no script")
                    promise("<img src=x" in b.run("document.getElementById('title').textContent"), "a hostile name is shown literally")
                if name == "spike":
                    check_spike(b, want)
                if name == "forgotten":
                    promise("earlier call" in b.run("document.getElementById('chart-note').textContent"), "the page shows how many events were dropped")
                if name in ("no_history", "no_events"):
                    check_without_history(b, name)
                if name == "replay":
                    promise(b.run("document.getElementById('axis').hidden"), "a replay has no time to show")
                b.run("""for (const id of ['show-tags', 'show-requested', 'color-size', 'color-stream', 'color-tag', 'color-use'])
                  if (document.getElementById(id).offsetParent) document.getElementById(id).click()""")
                b.frame()
                if pictures:
                    for scheme in ("light", "dark"):
                        b.prefer(prefers_color_scheme=scheme)
                        b.frame()
                        b.picture(pictures / f"{name}_{scheme}.png")
                    b.prefer(prefers_color_scheme="light")
                promise(not b.said, f"{name}: the browser reports no problem", b.said)
                promise(len(b.loads) == 1, f"{name}: nothing else is loaded", b.loads)
        finally:
            b.close()
    print(f"{len(problems)} checks failed" if problems else f"{len(expected)} pages pass all checks in {pathlib.Path(path).name}")
    return 1 if problems else 0


sys.exit(main())
