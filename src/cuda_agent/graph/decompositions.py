"""Which composite operations are kept whole, beyond core ATen.

Everything else goes to core ATen ops through torch's own table. Recurrent layers would unroll over
time; norms, softmax and attention are kept so that a skill matches what the author meant.
"""

from __future__ import annotations

# ruff: noqa: SIM905
from collections.abc import Callable
from typing import Any

import torch

KEPT_WHOLE = frozenset(
    """
    lstm gru rnn_tanh rnn_relu scaled_dot_product_attention instance_norm native_layer_norm
    native_group_norm _softmax _log_softmax nll_loss_forward nll_loss2d_forward
    convolution gelu tril triu
    linalg_vector_norm cumsum cumprod flip diag_embed max_pool2d_with_indices
    max_pool3d_with_indices avg_pool2d avg_pool3d _native_batch_norm_legit
    _native_batch_norm_legit_no_training
    """.split()
)


def table() -> dict[torch._ops.OperatorBase, Callable[..., Any]]:
    """torch's default table without the ops that are kept whole."""
    decompositions = torch.export.default_decompositions()
    for op in list(decompositions.keys()):
        if str(op).split(".")[1] in KEPT_WHOLE:
            decompositions.pop(op)
    return decompositions
