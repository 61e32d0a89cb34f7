"""Pure functions over a Trace's tables: numbers that rules and reports share. No opinions, no files."""
