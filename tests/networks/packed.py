"""Networks over batches of texts and signals of different lengths, packed as torch.nn.utils.rnn
packs them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class PackedGru(nn.Module):
    """Stacked GRUs in one direction, from the last call's state, over rows sorted by length."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(10, 12, num_layers=2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(12), nn.Linear(12, 5)

    def forward(self, x: Tensor, lengths: Tensor, state: Tensor):  # type: ignore[no-untyped-def]
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True)
        packed, state = self.rnn(packed, state)
        y, _ = pad_packed_sequence(packed, batch_first=True, total_length=x.size(1))
        return self.head(self.norm(y)), state


class PackedTagger(nn.Module):
    """A tagger of words in sentences of any lengths and order: an LSTM in both directions, and a
    sentence's class of the final states.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 20, num_layers=2, bidirectional=True, dropout=0.3)
        self.tags, self.classes = nn.Linear(40, 7), nn.Linear(40, 3)

    def forward(self, tokens: Tensor):  # type: ignore[no-untyped-def]
        lengths = (tokens != 0).sum(1)
        words = self.embedding(tokens).transpose(0, 1)
        packed, (h, _) = self.lstm(
            pack_padded_sequence(words, lengths.cpu(), enforce_sorted=False)
        )
        y, _ = pad_packed_sequence(
            packed, padding_value=-1.0, total_length=tokens.size(1)
        )
        return self.tags(y).transpose(0, 1), self.classes(
            torch.cat([h[-2], h[-1]], 1)
        ).softmax(1)
