"""A session of Debian's chromium, and what the tests of pages ask of it."""

from __future__ import annotations

import base64
import json
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

READY = "return document.documentElement.dataset.ready === 'true'"


class Browser:
    """Chromium without a window, driven through selenium."""

    def __init__(self) -> None:
        from selenium.webdriver import Chrome, ChromeOptions
        from selenium.webdriver.chrome.service import Service

        options = ChromeOptions()
        for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = which("chromedriver")
        assert driver, "chromedriver is missing: run `make browser`"
        self.driver = Chrome(options=options, service=Service(driver))
        axe = find_spec("axe_playwright_python")  # carries the script of axe-core's rules, and is not imported
        assert axe and axe.submodule_search_locations, "axe-core is missing: run `make browser`"  # noqa: PT018
        self._axe = (Path(axe.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")

    def look(self, width: int, scheme: str, height: int = 900, media: str = "screen") -> None:
        """Set the size of the window in pixels and the color scheme that the reader prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})

    def open(self, page: Path) -> None:
        """Open a page, and wait until it is drawn."""
        self.logs()
        self.driver.get(page.as_uri())
        assert self.run(READY)

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script."""
        return self.driver.execute_script(script, *arguments)

    def logs(self) -> tuple[list[str], list[str]]:
        """(messages of the console, addresses that were asked for) since the last call."""
        messages = [entry["message"] for entry in self.driver.get_log("browser")]
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        return messages, asked

    def choose(self, picker: str, text: str) -> None:
        """Choose the option with this text."""
        self.run(
            "const box = document.getElementById(arguments[0]);"
            "box.value = [...box.options].find((each) => each.text === arguments[1]).value;"
            "box.dispatchEvent(new Event('change', {bubbles: true}));",
            picker,
            text,
        )

    def table(self, name: str) -> list[dict[str, str]]:
        """The rows of a table in their order, by the texts of the heads; the parts of a cell stand on lines."""
        return self.run(
            "const table = document.querySelector(`table[data-table='${arguments[0]}']`);"
            "const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);"
            "const text = (cell) => [...cell.children].map((part) => part.textContent).join('\\n') || cell.textContent;"
            "return [...table.tBodies[0].rows].map((row) =>"
            "  Object.fromEntries([...row.cells].map((cell, n) => [heads[n], text(cell)])));",
            name,
        )

    def violations(self) -> list[str]:
        """What axe-core finds wrong with the page, for the WCAG 2.2 levels A and AA and for best practices."""
        self.run(self._axe)
        found = self.driver.execute_async_script(
            "const done = arguments[0];"
            "axe.run(document, {resultTypes: ['violations']}).then((result) => done(result.violations));"
        )
        return [f"{each['id']}: {node['html'][:160]}" for each in found for node in each["nodes"]]

    def picture(self, path: Path) -> None:
        """A picture of the whole page."""
        path.parent.mkdir(parents=True, exist_ok=True)
        size = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))
