"""One file a source; `together` records them all, on one clock. Only code in a recorded process uses torch."""
