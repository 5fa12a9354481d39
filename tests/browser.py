"""Pages in headless Chromium, where there is one."""

import json
import re
import shutil
import subprocess
from html import escape, unescape

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
needs_browser = pytest.mark.skipif(
    not CHROMIUM, reason="no Chromium here: apt-get install chromium runs the browser tests"
)

MEASURE = """
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const wide = [...page.querySelectorAll("body *")].filter(element =>
    !element.closest(".table") && !element.closest("svg") &&
    element.getBoundingClientRect().right > frame.clientWidth + 0.5);
  const found = {
    title: page.title, width: frame.clientWidth, content: root.scrollWidth,
    scripts: page.scripts.length, wide: wide.map(element => element.outerHTML.slice(0, 80)),
    background: frame.contentWindow.getComputedStyle(page.body).backgroundColor,
    pwned: [document, page].some(d => d.documentElement.dataset.pwned),
  };
  const result = document.createElement("pre");
  result.id = "result"; result.textContent = JSON.stringify(found);
  document.body.append(result);
};
frame.srcdoc = JSON.parse(document.querySelector("#source").textContent);
"""


def chromium(arguments, folder):
    """What Chromium prints, with a profile of its own."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        f"--user-data-dir={folder / 'profile'}",
        *arguments,
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return result.stdout


def measure(page, width, folder):
    """What a browser makes of a page in a window of this width."""
    harness = folder / "harness.html"
    content = json.dumps(page).replace("<", "\\u003c")
    harness.write_text(
        f'<!doctype html><meta charset="utf-8"><iframe style="width:{width}px;height:800px;'
        f'border:0"></iframe><script type="application/json" id="source">{content}</script>'
        f"<script>{MEASURE}</script>",
        encoding="utf-8",
    )
    dom = chromium(["--virtual-time-budget=5000", "--dump-dom", harness.as_uri()], folder)
    found = re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)
    assert found, f"The page was not measured: {escape(dom[:500])}"
    return json.loads(unescape(found[1]))


def scripted(page, script, folder):
    """What a script finds on a page that a browser shows; `show` ends it."""
    harness, content = folder / "harness.html", json.dumps(page).replace("<", "\\u003c")
    show = (
        "const show = found => { const result = document.createElement('pre'); result.id = "
        "'result'; result.textContent = JSON.stringify(found); document.body.append(result); };"
    )
    harness.write_text(
        '<!doctype html><meta charset="utf-8"><iframe></iframe><script type="application/json" '
        f'id="source">{content}</script><script>{show} const frame = '
        f"document.querySelector('iframe'); frame.onload = () => {{ {script} }}; frame.srcdoc = "
        "JSON.parse(document.querySelector('#source').textContent);</script>"
    )
    dom = chromium(["--virtual-time-budget=3000", "--dump-dom", harness.as_uri()], folder)
    return json.loads(unescape(re.search(r'<pre id="result">(.*?)</pre>', dom, re.DOTALL)[1]))


def screenshot(page, width, scheme, folder, height):
    """A picture of the page as a reader with that colour scheme sees it."""
    source, picture = folder / "page.html", folder / f"{width}-{scheme}.png"
    source.write_text(page, encoding="utf-8")
    chromium(
        [
            f"--blink-settings=preferredColorScheme={['dark', 'light'].index(scheme)}",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            source.as_uri(),
        ],
        folder,
    )
    return picture
