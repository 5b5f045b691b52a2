"""Every distinct prefix once: the completions of a prompt as a tree behind it, trees packed into rows of one width.

The completions of a group share prefixes, and a causal model gives a prefix the same logits whoever continues it. So a
forward over the nodes of the trees, each attending to its ancestors alone, holds the logits of all completions.

Letters of shapes besides those of `batch.py`: N nodes, R rows of W places each.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PrefixTree:
    """The distinct prefixes of some completions as one input of a transformer, and where each token is predicted."""

    tokens_RW: Tensor
    positions_RW: Tensor  # in the prompt and its completion, from 0
    attends_R1WW: Tensor  # bool: a place to itself and its ancestors
    place_BT: Tensor  # place in the flattened rows whose logits predict the token; at padding any


def prefix_tree(
    prompts_PL: Tensor,
    prompt_mask_PL: Tensor | None,
    prompt_of_B: Tensor,
    tokens_BT: Tensor,
    mask_BT: Tensor,
    reach: float,
) -> PrefixTree | None:
    """The trees of completions; None where each completion by itself behind its group's prompt costs less.

    A place costs 1 + W / `reach`: its matrix products, and an attention that the mask makes as long as the row.
    """
    L, T = prompts_PL.shape[1], tokens_BT.shape[1]
    if prompt_mask_PL is None:
        prompt_mask_PL = torch.ones_like(prompts_PL, dtype=torch.bool)
    tokens_BC = torch.cat([prompts_PL[prompt_of_B], tokens_BT[:, :-1]], 1).cpu().numpy()
    used_BC = torch.cat([prompt_mask_PL[prompt_of_B], mask_BT[:, 1:]], 1).cpu().numpy()  # the last predicts nothing
    parent_N, token_N, tree_N, position_N = np.zeros((4, tokens_BC.size), int)
    node_BC, ends = np.zeros(tokens_BC.shape, int), [0]
    node_B = -1 - prompt_of_B.cpu().numpy()  # the node of each row's last token; below 0: before its prompt
    for c in range(L + T - 1):  # the nodes of a column are its distinct (parent, token)
        rows = np.flatnonzero(used_BC[:, c])
        edges, edge_of_row = np.unique(node_B[rows] << 32 | tokens_BC[rows, c], return_inverse=True)
        new = slice(ends[-1], ends[-1] + len(edges))
        parent_N[new], token_N[new] = parents, _ = edges >> 32, edges & 0xFFFFFFFF
        tree_N[new] = np.where(parents < 0, -1 - parents, tree_N[parents])
        position_N[new] = np.where(parents < 0, 0, position_N[parents] + 1)
        node_B[rows] = new.start + edge_of_row
        node_BC[:, c] = node_B
        ends.append(new.stop)
    N = ends[-1]
    parent_N, token_N, tree_N, position_N = parent_N[:N], token_N[:N], tree_N[:N], position_N[:N]

    sizes_P = np.bincount(tree_N)
    row_P, start_P, width, cost = packed_rows(sizes_P, reach)
    P, B, behind = np.count_nonzero(sizes_P), len(tokens_BT), T - 1
    if cost >= P * L * (1 + L / reach) + B * behind * (1 + (L + T) / reach):
        return None
    row_N, column_N = row_P[tree_N], np.empty(N, int)
    by_tree = np.argsort(tree_N, kind="stable")
    column_N[by_tree] = np.arange(N) - np.repeat(np.cumsum(sizes_P) - sizes_P - start_P, sizes_P)
    R = int(row_P.max()) + 1
    tokens_RW, positions_RW = np.zeros((2, R, width), int)
    tokens_RW[row_N, column_N], positions_RW[row_N, column_N] = token_N, position_N
    attends_RWW = np.zeros((R, width, width), bool)
    attends_RWW[:, np.arange(width), np.arange(width)] = True
    for start, end in itertools.pairwise(ends):  # parents come first
        inner = np.arange(start, end)[parent_N[start:end] >= 0]
        attends_RWW[row_N[inner], column_N[inner]] |= attends_RWW[row_N[inner], column_N[parent_N[inner]]]
    place_BT = (row_N * width + column_N)[node_BC[:, L - 1 :]]
    arrays = tokens_RW, positions_RW, attends_RWW[:, None], place_BT
    return PrefixTree(*(torch.from_numpy(array).to(tokens_BT.device) for array in arrays))


def packed_rows(sizes_P: Ints, reach: float) -> tuple[Ints, Ints, int, float]:
    """Row and first place of each tree, the width of the rows, and their cost: that of the best of a dozen widths.

    Largest trees first, each into the first row with room.
    """
    largest = int(sizes_P.max())
    best = None
    for width in range(largest, 4 * largest + 1, max(8, largest // 4)):
        filled: list[int] = []
        row_P, start_P = np.zeros((2, len(sizes_P)), int)
        for tree in np.argsort(-sizes_P, kind="stable"):
            row = next((row for row, places in enumerate(filled) if places + sizes_P[tree] <= width), len(filled))
            filled += [0] * (row == len(filled))
            row_P[tree], start_P[tree] = row, filled[row]
            filled[row] += int(sizes_P[tree])
        cost = len(filled) * width * (1 + width / reach)
        if best is None or cost < best[3]:
            best = row_P, start_P, width, cost
    assert best is not None
    return best
