"""Full screens: the report, and the keys."""
