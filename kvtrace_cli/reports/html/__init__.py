"""A run as one HTML file that needs no network."""

from typing import Final

# How each of our pages begins, so that one may be written over an older one and over nothing else.
BEGINNING: Final = "<!doctype html><!-- kvtrace report -->"
