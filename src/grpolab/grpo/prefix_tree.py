"""Prefix trees: sequences that begin alike share their common tokens. Trees are packed into rows of one width.

The completions of a group share their prompt and often more, and a causal model gives a prefix the same logits whatever
follows. So one forward pass over the nodes of the trees, each attending to its ancestors only, gives all logits.

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
    """The distinct prefixes of some sequences as one model input, and the index of the logits for each token."""

    tokens_RW: Tensor
    positions_RW: Tensor  # of the token in its sequence, from 0
    attends_R1WW: Tensor  # bool: each place attends to itself and its ancestors
    place_BC: Tensor  # index into the flattened rows, whose logits predict the token; arbitrary for padding, 1st tokens
    cost: float = 0.0


def prefix_tree(
    tokens_BC: Tensor, real_BC: Tensor, tree_of_B: Tensor, break_even: float, plain_cost: float
) -> PrefixTree | None:
    """Pack sequences (prompt and completion, padded on either side) into trees; None if that costs >= `plain_cost`.

    `tree_of_B` is the tree's number of each sequence. A place costs 1 for its matrix products plus W / `break_even` for
    attention over the whole row.
    """
    used_BC = (real_BC[:, :-1] & real_BC[:, 1:]).cpu().numpy()  # a sequence's last token predicts nothing
    read_BC = tokens_BC[:, :-1].cpu().numpy()
    parent_N, token_N, tree_N, position_N = np.zeros((4, read_BC.size), int)
    node_BC, ends = np.zeros(read_BC.shape, int), [0]
    node_B = -1 - tree_of_B.cpu().numpy()  # the node of each row's last token; negative before its first token
    for c in range(read_BC.shape[1]):  # each distinct pair (parent, token) of a column is a node
        rows = np.flatnonzero(used_BC[:, c])
        edges, edge_of_row = np.unique(node_B[rows] << 32 | read_BC[rows, c], return_inverse=True)
        new = slice(ends[-1], ends[-1] + len(edges))
        parent_N[new], token_N[new] = parents, _ = edges >> 32, edges & 0xFFFFFFFF
        tree_N[new] = np.where(parents < 0, -1 - parents, tree_N[parents])
        position_N[new] = np.where(parents < 0, 0, position_N[parents] + 1)
        node_B[rows] = new.start + edge_of_row
        node_BC[:, c] = node_B.clip(0)
        ends.append(new.stop)
    N = ends[-1]
    if not N:  # every completion is masked, and prompts have a single token
        return None
    parent_N, token_N, tree_N, position_N = parent_N[:N], token_N[:N], tree_N[:N], position_N[:N]

    sizes_P = np.bincount(tree_N)
    row_P, start_P, width, cost = packed_rows(sizes_P, break_even)
    if cost >= plain_cost:
        return None
    row_N, column_N = row_P[tree_N], np.empty(N, int)
    by_tree = np.argsort(tree_N, kind="stable")
    column_N[by_tree] = np.arange(N) - np.repeat(np.cumsum(sizes_P) - sizes_P - start_P, sizes_P)
    R = int(row_P.max()) + 1
    tokens_RW, positions_RW = np.zeros((2, R, width), int)
    tokens_RW[row_N, column_N], positions_RW[row_N, column_N] = token_N, position_N
    attends_RWW = np.zeros((R, width, width), bool)
    attends_RWW[:, np.arange(width), np.arange(width)] = True
    for start, end in itertools.pairwise(ends):  # by column, so that parents come before their children
        inner = np.arange(start, end)[parent_N[start:end] >= 0]
        attends_RWW[row_N[inner], column_N[inner]] |= attends_RWW[row_N[inner], column_N[parent_N[inner]]]
    place_BC = np.pad((row_N * width + column_N)[node_BC], ((0, 0), (1, 0)))  # shifted: a place predicts the next token
    arrays = tokens_RW, positions_RW, attends_RWW, place_BC
    tokens, positions, attends, place = (torch.from_numpy(array).to(tokens_BC.device) for array in arrays)
    return PrefixTree(tokens, positions, attends[:, None], place, cost)


def packed_rows(sizes_P: Ints, break_even: float) -> tuple[Ints, Ints, int, float]:
    """Return each tree's row and first column, and the rows' width and total cost, for the cheapest width."""
    total, largest = int(sizes_P.sum()), int(sizes_P.max())
    order = np.argsort(-sizes_P, kind="stable")  # the largest come first, each into the first row with room
    sizes = sizes_P[order].tolist()
    rows, starts, best_width, best_cost = list[int](), list[int](), 0, np.inf
    for width in range(largest, 4 * largest + 1):
        cost_of_row = width * (1 + width / break_even)
        if -(-total // width) * cost_of_row >= best_cost:
            continue  # even without empty places this width would cost more
        filled, row_of, start_of = list[int](), list[int](), list[int]()
        for size in sizes:
            row = next((row for row, places in enumerate(filled) if places + size <= width), len(filled))
            filled += [0] * (row == len(filled))
            row_of.append(row)
            start_of.append(filled[row])
            filled[row] += size
        if len(filled) * cost_of_row < best_cost:
            rows, starts, best_width, best_cost = row_of, start_of, width, len(filled) * cost_of_row
    row_P, start_P = np.empty((2, len(sizes_P)), int)
    row_P[order], start_P[order] = rows, starts
    return row_P, start_P, best_width, best_cost
