"""A result as one page for a browser: text written here, tables and charts drawn by the scripts in ``files``."""

from evaluator.report.page.page import SUFFIXES, write_page

__all__ = ["SUFFIXES", "write_page"]
