"""A small GLM-like serving stack that runs on a laptop: two expert-parallel prefill ranks and a decode process.

`python -m tracelens_serving run` starts it. It knows nothing of profilers or of tracelens.
"""
