"""The report as a reader sees it: in Chromium, on a desk and on a phone, dark and light, and on paper."""

import base64
import re
import shutil

import numpy as np
import pytest
from test_report import NASTY, result_of, rows_of, trust, tuned

from rgcss_dask.reporting import write_report

pytestmark = pytest.mark.integration

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
ARGUMENTS = """
    --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --disable-dev-shm-usage
""".split()
SIZES = {"desk": (1280, 800), "phone": (390, 844), "small phone": (320, 640)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs Chromium and its driver (Debian: chromium, chromium-driver)")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium: the extra 'browser'")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (*ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    X = rows_of()
    names = [*NASTY, *(f"column {i}" for i in range(len(NASTY), 24))]
    all_there = {"tuning": tuned(), "trust": trust()}
    write_report(result_of(**all_there), folder / "image.html", image_shape=(4, 6), rows=X)
    write_report(result_of(names=names, k=12, **all_there, provenance={"a": NASTY[5]}), folder / "names.html", rows=X)
    grid = {"latitude": np.arange(4), "longitude": np.arange(6)}
    write_report(result_of(), folder / "map.html", grid=grid, rows=X)
    return folder


def show(browser, path, size="desk", scheme="light"):
    width, height = SIZES[size]
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size != "desk"},
    )
    scheme = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    browser.get_log("browser")  # what earlier pages said
    browser.get(path.as_uri())


def colour(browser, what):
    """Return the brightness of a computed colour."""
    words = browser.execute_script(f"return {what}")
    return np.mean([float(part) for part in words[words.index("(") + 1 : -1].split(",")[:3]])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["image", "names", "map"])
def test_it_looks_right(browser, reports, name, size, scheme):
    show(browser, reports / f"{name}.html", size, scheme)
    assert browser.get_log("browser") == []
    page, window = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert page <= window, "the page can be scrolled sideways"
    pictures = browser.execute_script("return [...document.images].map(i => i.complete && i.naturalWidth)")
    assert all(pictures)
    assert len(pictures) == (18 if name == "image" else 0)
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('svg, svg image')].map(s => s.getBoundingClientRect())"
        ".map(r => [r.width, r.height])"
    )
    assert np.min(sizes) > 50
    assert not browser.execute_script("return [...document.querySelectorAll('script')].length - 1")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_and_drawings_follow_dark_and_light(browser, reports, scheme):
    show(browser, reports / "image.html", scheme=scheme)
    paper = colour(browser, "getComputedStyle(document.body).backgroundColor")
    words = colour(browser, "getComputedStyle(document.body).color")
    labels = colour(browser, "getComputedStyle(document.querySelector('.figures svg text')).fill")
    assert (paper > 200 and words < 80) if scheme == "light" else (paper < 60 and words > 180)
    assert abs(paper - labels) > 80


FIRST = "return [...document.querySelector('table').tBodies[0].rows].map(r => r.cells[%d].dataset.value)"


def test_a_press_on_a_head_sorts_the_table(browser, reports):
    show(browser, reports / "image.html")
    heads = browser.find_elements("css selector", "table:first-of-type th button")
    picks, columns = browser.execute_script(FIRST % 0), browser.execute_script(FIRST % 1)
    assert picks == ["1", "2", "3", "4", "5"]
    heads[1].click()
    assert browser.execute_script(FIRST % 1) == sorted(columns, key=int)
    heads[1].send_keys("\ue007")  # the Enter key
    assert browser.execute_script(FIRST % 1) == sorted(columns, key=int, reverse=True)
    states = "return [...document.querySelectorAll('table:first-of-type th')].map(h => h.getAttribute('aria-sort'))"
    assert browser.execute_script(states)[:3] == [None, "descending", None]
    heads[0].click()
    assert browser.execute_script(FIRST % 0) == picks


def test_names_are_sorted_as_words(browser, reports):
    show(browser, reports / "names.html")
    browser.find_elements("css selector", "table:first-of-type th button")[1].click()
    numbered = [name for name in browser.execute_script(FIRST % 1) if name.startswith("column ")]
    assert numbered == sorted(numbered, key=lambda name: int(name.split()[1]))


def test_without_script_the_table_is_plain_and_complete(browser, reports):
    text = (reports / "image.html").read_text()
    plain = reports / "plain.html"
    plain.write_text(re.sub("<script>.*?</script>", "", text, flags=re.DOTALL))
    show(browser, plain)
    assert not browser.find_elements("css selector", "th button, script")
    assert len(browser.find_elements("css selector", "table:first-of-type tbody tr")) >= 5


def test_it_prints(browser, reports):
    show(browser, reports / "image.html", scheme="dark")
    paper = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert paper.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert colour(browser, "getComputedStyle(document.body).backgroundColor") == 255
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
