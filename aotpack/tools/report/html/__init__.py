"""Self-contained HTML pages: one file that opens from disk, with its data, styles and scripts inside."""

from .page import Page as Page
from .page import Section as Section
from .page import fragment as fragment
from .page import render as render
