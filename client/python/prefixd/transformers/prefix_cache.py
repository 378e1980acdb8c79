"""PrefixCache: the shared caches of one transformers model."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch
from transformers import DynamicCache

from .. import Client
from ..engine.saver import Saver
from ..engine.spaces import Unsupported
from . import batch, geometry
from .core import Core, Origin
from .options import Options
from .saving import Save

log = logging.getLogger("prefixd.transformers")

Ids = Sequence[int] | torch.Tensor


class PrefixCache:
    """The caches of `model`, shared with every process that has the same model.

    tokenizer: transformers' tokenizer, its folder, or a digest; default: it is beside the model's
    weights. weights: a digest of 32 bytes, for a model that was made in memory.

    Runs a few tokens through the model, and reads the files of its weights once. Never raises for a
    model whose caches cannot be shared, nor for a daemon that is absent, late or dying: caches are
    then empty, and `why_not` and the log (`prefixd.transformers`) say why. From one thread at a
    time.
    """

    def __init__(
        self,
        client: Client,
        model: Any,
        tokenizer: Any = None,
        *,
        weights: bytes | None = None,
        options: Options | None = None,
    ) -> None:
        self.model = model
        self.options = options or Options()
        self.cached_tokens = 0  # that fetch() gave, in all
        self.stored_tokens = 0
        self._core: Core | None = None
        self._saver = Saver() if self.options.write_behind else None
        self._said: set[str] = set()
        self._down = False  # prefixd did not answer the last call
        self._why = ""
        try:
            self._core = Core(client, model, tokenizer, weights, self.options)
        except Unsupported as error:
            self._why = str(error)
            name = self.options.model_name or type(model).__name__
            log.warning("caches of %s are not shared: %s", name, self._why)
            client.not_shared(name, self._why)

    @property
    def why_not(self) -> str:
        """Why nothing is shared, for good; "" while a daemon may serve this model."""
        return self._why if self._core is None else self._core.space.error

    @property
    def space_id(self) -> str:
        """The id of the model's space in hex; "" until a daemon has opened it."""
        return "" if self._core is None else self._core.space.id

    def fetch(self, ids: Ids) -> DynamicCache:
        """Returns a cache for generate() with the longest prefix of `ids` that prefixd has, never
        the last token; an empty one if it has nothing. It is this process's own copy, or with
        attn_implementation="prefixd" those pages themselves, leased until the cache is gone."""
        tokens = _listed(ids)
        core = self._core
        if core is not None and core.reads_in_place:
            return self._fetch_in_place(core, tokens)
        return self._fetch([tokens], [0], len(tokens))

    def store(self, ids: Ids, cache: Any, turn_ends: Sequence[int] = ()) -> int:
        """Saves what prefixd lacks of the cache, which holds rows of `ids` or of its beginning:
        generate() leaves the last token out. Returns the stored tokens; with write_behind 0, at
        once. `turn_ends`: further places in `ids` from which a prompt may go on, for models with
        sliding windows; the end of the prompt is known."""
        return self._store([_listed(ids)], cache, [0], turn_ends)

    def prefill(self, ids: Ids, chunk_tokens: int = 2048) -> DynamicCache:
        """fetch() that also computes what is missing of all but the last token, and stores it.

        For models with linear attention, whose states are those at the end of what is stored: with
        this the same prompt is found again, and not only what goes on from an answer."""
        tokens = _listed(ids)
        cache = self.fetch(tokens)
        if not self._may_share([tokens]):
            return cache
        rest = tokens[cache.get_seq_length() : -1]
        more = {"logits_to_keep": 1} if self.model._supports_logits_to_keep() else {}
        with torch.no_grad():
            for at in range(0, len(rest), chunk_tokens):
                chunk = torch.tensor([rest[at : at + chunk_tokens]], device=self.model.device)
                self.model(input_ids=chunk, past_key_values=cache, use_cache=True, **more)
        if rest:
            self.store(tokens[:-1], cache)
        return cache

    def fetch_batch(
        self, ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> DynamicCache:
        """fetch() for a batch [sequences, columns], padded on the left as `attention_mask` says.

        The whole batch goes on from one column: that up to which prefixd has the tokens of every
        sequence."""
        pads = batch.pads_of(ids, attention_mask)
        prompts = [row[pad:] for row, pad in zip(ids.tolist(), pads, strict=True)]
        return self._fetch(prompts, pads, ids.shape[1])

    def store_batch(
        self, sequences: torch.Tensor, cache: Any, attention_mask: torch.Tensor | None = None
    ) -> int:
        """store() for a batch, each sequence up to the end of its answer. `attention_mask`: that of
        the prompts. Returns the stored tokens of all."""
        pads = batch.pads_of(sequences, attention_mask)
        columns = Origin.of(cache).columns or sequences.shape[1]
        if attention_mask is not None:
            columns = attention_mask.shape[1]
        ends = batch.end_tokens(self.model)
        return self._store(batch.answers(sequences, pads, columns, ends), cache, pads)

    def settle(self, deadline_s: float = 10.0) -> bool:
        """Waits up to `deadline_s` until everything is stored. Returns whether it is."""
        return self._saver is None or self._saver.settle(deadline_s)

    def _fetch(
        self, prompts: Sequence[Sequence[int]], pads: Sequence[int], columns: int
    ) -> DynamicCache:
        core = self._core
        if core is None:
            return geometry.new_cache(self.model)
        cache, found = core.new_cache(columns), 0
        if self._may_share(prompts):
            found, pieces, error = batch.find(core, prompts, pads, columns - 1)
            self._note(error)
            if found:
                core.fill(cache, pieces, found)
        cached = sum(max(found - pad, 0) for pad in pads)
        self.cached_tokens += cached
        log.info("cached %d of %d tokens", cached, sum(map(len, prompts)))
        return cache

    def _fetch_in_place(self, core: Core, tokens: Sequence[int]) -> DynamicCache:
        cache, count = core.new_cache(len(tokens)), 0
        if self._may_share([tokens]) and len(tokens) > 1:
            lease = core.acquire(tokens, len(tokens) - 1)
            self._note(lease.error)
            count = lease.wait_all()
            if count and not core.fill_in_place(cache, lease, count):
                cache, count = core.new_cache(len(tokens)), 0
            if not count:
                lease.release(used_tokens=0)
        self.cached_tokens += count
        log.info("cached %d of %d tokens", count, len(tokens))
        return cache

    def _store(
        self,
        sequences: Sequence[Sequence[int]],
        cache: Any,
        pads: Sequence[int],
        turn_ends: Sequence[int] = (),
    ) -> int:
        core = self._core
        if core is None or not self._may_share(sequences):
            return 0
        saves = []
        for row, (tokens, pad) in enumerate(zip(sequences, pads, strict=True)):
            try:
                taken = core.take(tokens, cache, row, pad, len(sequences))
                saves.append(core.save(taken, turn_ends))
            except Unsupported as error:
                self._say_once(f"a cache is not stored: {error}")
        if self._saver is None:
            return self._run(saves)

        def behind() -> None:
            self._run(saves)

        if not self._saver.submit(behind):
            self._say_once("a cache is not stored: too many wait for prefixd")
        return 0

    def _run(self, saves: Sequence[Save]) -> int:
        total = 0
        for save in saves:
            stored = save.run()
            self._note(stored.error)
            if stored.gap:
                self._say_once(f"a cache is not stored: {stored.gap}")
            total += stored.tokens
            log.info("stored %d of %d tokens", stored.tokens, len(save.taken.tokens))
            if stored.error:
                break  # the next one would wait for its deadline too
        self.stored_tokens += total
        return total

    def _may_share(self, sequences: Sequence[Sequence[int]]) -> bool:
        core = self._core
        if core is None or core.space.error:
            return False
        if core.why_not_now:
            self._say_once(core.why_not_now)
            return False
        if core.most_tokens is not None and max(map(len, sequences)) > core.most_tokens:
            self._say_once(
                f"prompts of more than {core.most_tokens} tokens are computed without prefixd: "
                "keys of this model's RoPE depend on their number"
            )
            return False
        if core.media_tokens and any(not core.media_tokens.isdisjoint(one) for one in sequences):
            self._say_once("prompts with images or sound are computed without prefixd")
            return False
        return True

    def _note(self, error: str) -> None:
        """Notes how a call to prefixd ended. Says so if the one before ended in another way."""
        if error and not self._down:
            log.warning("prompts are computed without prefixd: %s", error)
        elif self._down and not error:
            log.info("prefixd is back")
        self._down = bool(error)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            log.warning("%s", text)


def _listed(ids: Ids) -> list[int]:
    if not isinstance(ids, torch.Tensor):
        return list(ids)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise ValueError(f"ids: {list(ids.shape)}, must be those of one sequence")
    return ids.tolist()
