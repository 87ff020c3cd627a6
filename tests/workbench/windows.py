"""Workbenches that are served, and windows of a real browser at them."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn

from second_brain.workbench.app import create_app

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

CHROMIUM = os.environ.get("CHROMIUM_BIN") or shutil.which("chromium") or shutil.which("chrome")

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on PATH or in CHROMIUM_BIN"
)


@contextmanager
def served(dsn: str, **options: Any) -> Iterator[str]:
    """Serve a workbench as the command does; yield its address."""
    app = create_app(dsn, **options)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join()


@contextmanager
def headless() -> Iterator["Browser"]:
    """Start Chromium."""
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        # Chromium has no sandbox for root.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def window(browser: "Browser", address: str) -> Iterator["Page"]:
    """Open a wide window, whose console must stay empty."""
    complaints: list[str] = []
    context = browser.new_context(base_url=address, viewport={"width": 1360, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    def note_dialog(dialog: "Dialog") -> None:
        complaints.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", note_dialog)
    yield page
    context.close()
    assert complaints == []
