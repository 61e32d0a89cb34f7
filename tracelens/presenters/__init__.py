"""Ways to show a Report, one file a format."""
