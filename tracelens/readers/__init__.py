"""Readers: one file a format, reached only through the `readers` hook."""
