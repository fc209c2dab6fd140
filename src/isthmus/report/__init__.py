"""Reports: a result as one HTML file that needs no network and computes nothing anew."""

from isthmus.report.page import Page
from isthmus.report.save import page_of, page_of_document, save_page, save_report

__all__ = ["Page", "page_of", "page_of_document", "save_page", "save_report"]
