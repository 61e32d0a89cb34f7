"""Triton kernels with torch references: the numerical lab behind the rules about precision and bandwidth.

    python -m tracelens_kernels compile --precision tf32 -o DIR    compile for sm_90 without a GPU, dump TTIR + metadata
    python -m tracelens_kernels record DIR                         record the KDA chain at tf32 and tf32x3 (needs CUDA)
    python -m tracelens_kernels record-pairs DIR                   record gemv and matmul pairs (needs CUDA)

Knows neither tracelens nor the serving stack. Importing this package loads neither torch nor triton.
"""

PRECISIONS = ("tf32", "tf32x3", "bf16x3", "bf16x6", "ieee")
"""What `input_precision` of `tl.dot` can be for fp32 operands on CUDA."""
