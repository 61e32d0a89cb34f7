"""Small widgets: each shows one thing and knows nothing of the others."""
