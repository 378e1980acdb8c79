"""WindowLayer: a sliding-window layer of transformers that keeps the rows that saving needs.

transformers' own layer keeps window - 1 rows, which begin in the midst of a block of prefixd. This
one keeps the window and two blocks before it, and once more the rows at the end of the prompt, so
that the same prompt and the next turn are both found. What attention sees is the same."""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicSlidingWindowLayer

Run = tuple[int, torch.Tensor, torch.Tensor]
"""Position of the first row, keys and values [batch, heads, n, dim]."""


class WindowLayer(DynamicSlidingWindowLayer):
    keys: Any  # tensors, once there are rows
    values: Any

    def __init__(self, sliding_window: int, block_tokens: int) -> None:
        super().__init__(sliding_window)
        self._block_tokens = block_tokens
        self._mark = 0  # the end of the block in which the last prompt ends
        self._at_mark: Run | None = None

    @property
    def runs(self) -> list[Run]:
        """The rows that are here: first those up to the end of the prompt, then the last ones."""
        runs = [] if self._at_mark is None else [self._at_mark]
        if self.is_initialized and self.keys.numel():
            runs.append((self.cumulative_length - self.keys.shape[-2], self.keys, self.values))
        return runs

    def restore(self, begin: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Takes the rows of tokens from `begin` on, as if it had computed them."""
        self.lazy_initialization(keys, values)
        self.keys, self.values = keys, values
        self.cumulative_length = begin + keys.shape[-2]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.record_past:  # of assisted decoding, which crops
            self._forget()
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        new = key_states.shape[-2]
        keys = torch.cat([self.keys, key_states], dim=-2)
        values = torch.cat([self.values, value_states], dim=-2)
        kept = self.sliding_window + 2 * self._block_tokens
        self.keys, self.values = keys[:, :, -kept:], values[:, :, -kept:]
        self.cumulative_length += new
        self._note_prompt(new)
        seen = self.sliding_window - 1 + new
        return keys[:, :, -seen:], values[:, :, -seen:]

    def crop(self, tokens_to_remove: int) -> None:
        self._forget()
        super().crop(tokens_to_remove)

    def reset(self) -> None:
        self._forget()
        super().reset()

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._forget()
        super().reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._forget()
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._forget()
        super().batch_select_indices(indices)

    def _note_prompt(self, new: int) -> None:
        if new > 1:
            blocks = -(-self.cumulative_length // self._block_tokens)
            self._mark = blocks * self._block_tokens
        if self.cumulative_length == self._mark:
            begin = self.cumulative_length - self.keys.shape[-2]
            self._at_mark = (begin, self.keys.clone(), self.values.clone())

    def _forget(self) -> None:
        self._mark, self._at_mark = 0, None
