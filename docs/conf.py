"""Settings of the documentation site; CONTRIBUTING.md has the command that builds it."""

import shutil
import sys
import tomllib
import warnings
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

from rgcss_dask import __version__  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

project = "rgcss_dask"
author = copyright = PROJECT["authors"][0]["name"]  # noqa: A001 (the name that Sphinx reads)
version = release = __version__
repository = PROJECT["urls"]["Source"]

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "cells",
    "numpydoc",
    "myst_parser",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
    "repository_pages",
]
exclude_patterns = ["_build", "decisions/README.md", "_examples", "_templates", "gallery/*.ipynb", "gallery/*.py"]
templates_path = ["_templates"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!rgcss_dask\.).*")]  # types of other packages and words of numpydoc
suppress_warnings = ["config.cache"]

# Pages are MyST; cells.py runs their code.
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
smartquotes = False  # commands are copied from the pages

# Reference.
autosummary_generate = True
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say it in words
default_role = "autolink"
numpydoc_show_class_members = False  # the template of classes shows them
numpydoc_xref_param_type = False
numpydoc_attributes_as_param_list = True


def as_it_stands(app, ctx, lines):
    """Show the signs of help texts as they are: they are not reStructuredText."""
    lines[:] = [line if line.lstrip().startswith("..") else line.replace("*", r"\*") for line in lines]


def setup(app):  # noqa: D103
    for part in ("description", "options", "arguments"):
        app.connect(f"sphinx-click-process-{part}", as_it_stands)


# Gallery: the examples of the repository, run on sizes that take seconds.
ARGUMENTS = {
    "02_out_of_core_zarr.py": ["200000"],
    "03_on_a_cluster.py": ["100000"],
    "06_gene_panel.py": ["10000", "500"],
    "08_many_columns.py": ["4000", "3000", "16"],
    "11_downstream.py": ["20000"],
}
EXAMPLES = HERE / "_examples"
EXAMPLES.mkdir(exist_ok=True)
for kept in EXAMPLES.iterdir():
    if not (ROOT / "examples" / kept.name).exists():
        kept.unlink()
for example in (*(ROOT / "examples").glob("[0-9]*.py"), ROOT / "examples/GALLERY_HEADER.rst"):
    shutil.copy2(example, EXAMPLES)


def small_sizes(gallery_conf, script_vars):  # noqa: D103
    return ARGUMENTS.get(Path(script_vars["src_file"]).name, [])


sphinx_gallery_conf = {
    "examples_dirs": "_examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\d\d_",
    "within_subsection_order": "FileNameSortKey",
    "reset_argv": "conf.small_sizes",
    "abort_on_example_error": True,
    "plot_gallery": True,
    "download_all_examples": False,
    "remove_config_comments": True,
    "min_reported_time": 10,
    "show_memory": False,
    "show_signature": False,
    "capture_repr": (),
    "image_scrapers": ("matplotlib",),
}
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

# Looks.
html_theme = "pydata_sphinx_theme"
html_title = f"rgcss_dask {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "rgcss_dask"},
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "icon_links": [{"name": "Source", "url": repository, "icon": "fa-brands fa-github"}],
    "show_prev_next": True,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
