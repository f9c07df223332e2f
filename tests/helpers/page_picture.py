"""A picture of the first screen of a page: python page_picture.py REPORT PICTURE (`make browser` first)."""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from browser_session import Browser

WIDTH, HEIGHT, SCALE = 1280, 1180, 1.25


def main(report: Path, picture: Path) -> None:
    browser = Browser()
    browser.look(WIDTH, "light", HEIGHT)
    browser.open(report.resolve())
    clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": SCALE}
    shot = browser.driver.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip})
    picture.write_bytes(base64.b64decode(shot["data"]))
    browser.driver.quit()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
