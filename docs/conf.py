"""Builds the documentation: ``sphinx-build -W -c docs . build/site``.

The source is the whole repository, so that a link between two Markdown files is the
same on this site and where the files are read without it.
"""

from __future__ import annotations

import sys
from functools import cache
from inspect import isfunction, signature
from pathlib import Path
from pydoc import locate
from typing import Any, get_type_hints

from docutils.nodes import Element
from jinja2 import Environment
from sphinx.addnodes import desc_signature
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.inspect import stringify_signature

sys.path.insert(0, str(Path(__file__).parent))

import references

import spark_audit as sa
from spark_audit.cli import main
from spark_train import cli as training

project = "SPARK Audit"
project_copyright = "The SPARK Audit developers, MIT licence"
extensions = ["sphinx.ext.autodoc", "numpydoc", "myst_parser"]
nitpicky = True  # a reference to what does not exist is a warning
root_doc = "README"
include_patterns = ["docs/*.md", "*.md", "benchmarks/*.md", "reports/README.md"]
include_patterns += ["manifests/README.md"]
include_patterns += ["docs/audits/*.md", "docs/contributing/*.md", "docs/roles/*.md"]
include_patterns += ["reports/claims/*/claims.md", "reports/claims/*/retention.md"]
exclude_patterns = [".*"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
smartquotes = False  # they would make a dash of the two hyphens of an option
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
numpydoc_show_class_members = False

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = html_copy_source = False
html_show_sphinx = False
templates_path = ["_templates"]
html_additional_pages = {"index": "first.html"}
html_sidebars = {"**": ["contents.html"]}
html_theme_options = {
    "navbar_center": [],
    # Pages with wide tables take the place of their contents.
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "docs/comparison": [],
        "docs/metrics": [],
    },
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
}

TEMPLATES = ("docs/api", "docs/api-stats", "docs/commands")
STATISTICS = Path(sa.__file__).parent / "stats"
CONTENTS = """

```{toctree}
:hidden:
:caption: Begin

docs/installing
docs/quickstart
docs/gallery
docs/concepts
docs/reading
docs/tutorial
docs/unlearning
```

```{toctree}
:hidden:
:caption: By role

docs/roles/researcher
docs/roles/privacy-engineer
docs/roles/data-protection-officer
```

```{toctree}
:hidden:
:caption: Guide

docs/data
docs/recipes
docs/checkpoints
docs/metrics
docs/limits
docs/reports-and-gate
docs/frames
docs/extending
docs/training
docs/integrations
docs/comparison
```

```{toctree}
:hidden:
:caption: Audits

docs/audits
docs/audits/common
docs/audits/before-training
docs/audits/matched
docs/audits/canary
docs/audits/epsilon
docs/audits/twins
docs/audits/mia
docs/audits/other-tools
docs/audits/extract
docs/audits/passages
docs/audits/endpoints
docs/audits/generated
docs/audits/series
docs/audits/doors
docs/audits/erasure
docs/audits/stages
docs/audits/rank
docs/audits/nll
docs/audits/noise
docs/audits/utility
docs/audits/persons
docs/audits/groups
docs/audits/relearn
```

```{toctree}
:hidden:
:caption: Reference

docs/commands
docs/api
docs/api-stats
docs/glossary
```

```{toctree}
:hidden:
:caption: Project

CONTRIBUTING
docs/contributing/house
docs/contributing/adding
docs/contributing/style
SECURITY
CHANGELOG
docs/citing
reports/README
manifests/README
Claims on real tasks <reports/claims/real/claims>
Claims on made-up tasks <reports/claims/made/claims>
Retention on small tasks <reports/claims/question/retention>
Two designs that ER does not learn <reports/claims/retention/retention>
benchmarks/README
benchmarks/known_truth
benchmarks/known_truth_erasure
benchmarks/at_most
benchmarks/passages
benchmarks/generated
benchmarks/groups
benchmarks/canaries
benchmarks/membership
benchmarks/named_rows
```
"""


def commands() -> dict[str, Any]:
    """Every command by what is typed, such as ``spark-audit data import``."""
    tree: dict[str, Any] = {}
    every = [*sa.audits.AUDITS, *main.COMMAND_GROUPS, "all", "gate"]
    apps = {
        "spark-audit": main.command_app(every),
        "spark-train": training.command_app([]),
    }
    for program, app in apps.items():
        for name in (one for one in app if not one.startswith("-")):
            inner = [one for one in app[name] if not one.startswith("-")]
            named = {one: app[name][one] for one in inner} or {"": app[name]}
            tree |= {f"{program} {name} {k}".strip(): c for k, c in named.items()}
    return tree


def options(command: Any) -> list[Any]:
    """The options of a command, and what it takes without a name, with their help."""
    collection = command.assemble_argument_collection(parse_docstring=True)
    return [one for one in collection if one.show]


def names_of_option(option: Any) -> list[str]:
    """The names of an option; without those that empty a list, as in ``--help``."""
    return [name for name in option.names if not name.startswith("--empty-")]


@cache
def declarations() -> dict[str, Any]:
    """What the pages in TEMPLATES are made of."""
    functions = [name for name in sa.__all__ if isfunction(getattr(sa, name))]
    return {
        "commands": commands(),
        "options": options,
        "names_of_option": names_of_option,
        "flag": bool,
        # Audits of files have options of their own.
        "audits": [
            f"spark-audit {name}"
            for name in sa.audits.AUDITS
            if not sa.audits.about(name).of_files
        ],
        "functions": functions,
        "classes": [n for n in sa.__all__ if n[0].isupper()],
        "classes_of_audits": list(sa.audits.AUDITS.values()),
        "exported_statistics": [f"`{name}`" for name in sorted(sa.stats.__all__)],
        "statistics": sorted(path.stem for path in STATISTICS.glob("[a-z]*.py")),
    }


def rendered(app: Sphinx, name: str, source: list[str]) -> None:
    """Fill in a page that is a template, and add the contents to the first page."""
    if name in TEMPLATES:
        template = Environment(trim_blocks=True).from_string(source[0])
        source[0] = template.render(declarations())
    elif name == root_doc:
        source[0] += CONTENTS


def plain_types(
    app: Sphinx, what: str, name: str, one: Any, options: Any, shown: str, of: str
) -> tuple[str, str] | None:
    """A class's signature without the flags and checks that its types carry."""
    if what != "class" or "Annotated" not in (shown or ""):
        return None
    own, fields = signature(one), getattr(one, "model_fields", {})
    hints = {k: f.annotation for k, f in fields.items()} or get_type_hints(one)
    parameters = [
        each.replace(annotation=hints.get(each.name, each.annotation))
        for each in own.parameters.values()
    ]
    own = own.replace(parameters=parameters)
    return stringify_signature(own, unqualified_typehints=True), of


def without_entry(
    app: Sphinx, env: BuildEnvironment, reference: Element, text: Element
) -> Element | None:
    """Show as text a reference to what has no entry on this site, if it exists.

    These are types of signatures, which are made from the code; names of other
    projects; and names of ours that docstrings refer to for readers of the code. Any
    other reference is left to Sphinx, which warns of it.
    """
    inside = reference.parent
    while inside is not None and not isinstance(inside, desc_signature):
        inside = inside.parent

    name = reference["reftarget"]
    if name.partition(".")[0] in references.PACKAGES or "." not in name:
        has_name = references.exists(name, reference.get("py:module") or "")
    else:
        has_name = locate(name) is not None
    return text if inside is not None or has_name else None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("missing-reference", without_entry)
    app.connect("autodoc-process-signature", plain_types)
    app.connect("source-read", rendered)
