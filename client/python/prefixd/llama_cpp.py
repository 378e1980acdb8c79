"""llama-cpp-python on prefixd: its processes share one cache with each other and with the servers
behind prefixd-llama.

    llm = llama_cpp.Llama("m.gguf", n_ctx=8192, type_k=8, type_v=8, flash_attn=True)
    llm.set_cache(prefixd.llama_cpp.LlamaPrefixdCache(llm, "unix:///run/prefixd/prefixd.sock"))
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import weakref
from typing import Any, NamedTuple, Sequence

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from . import _abi
from . import _llama_context as context
from ._client import DEFAULT_ADDRESS, Path, connect
from ._errors import Error
from ._numbers import _ms, _text

log = logging.getLogger("prefixd.llama_cpp")

_LEAST_GAIN = 16  # tokens; below that nothing is restored


class Found(NamedTuple):
    """The answer of a lookup. The state is in the Llama already."""

    input_ids: NDArray[np.intc]


class LlamaPrefixdCache(llama_cpp.BaseLlamaCache):
    """The cache of one Llama, for its set_cache().

    A lookup (cache[tokens]) puts what prefixd has into the Llama's own sequence, up to the last
    token but one, and sets its `input_ids` and `n_tokens`. Llama.generate() then goes on from there
    as from any prompt that it has seen, so that load_state() is never called. After a completion
    the sequence is read once and what nobody has of it is stored.

    Llama calls save_state() before it stores: n_batch rows of logits, and the whole context three
    times. While this cache is the Llama's, that one call does nothing; every other call of
    save_state() does what it does without the cache. set_cache(None) ends this.

    Nothing raises for a daemon that is absent, late or dying: prompts are computed, and the log
    says so once. `lookup_deadline_ms`: of a lookup, and again of what is asked before storing.
    `load_deadline_ms`: of pages that prefixd reads from SSD. `store_deadline_ms`: of storing.
    `salt`: as that of prefixd-llama. `name`, `token_file`, `library`: as those of connect().
    """

    def __init__(
        self,
        llm: llama_cpp.Llama,
        address: str = DEFAULT_ADDRESS,
        *,
        salt: str = "",
        lookup_deadline_ms: int = 200,
        load_deadline_ms: int = 2000,
        store_deadline_ms: int = 2000,
        name: str = "",
        token_file: Path | str | None = None,
        library: Path | None = None,
    ) -> None:
        super().__init__(capacity_bytes=0)  # prefixd has its own
        self._llm = weakref.ref(llm)  # or a Llama and its cache would keep each other
        self._lookup_ms = _ms("lookup_deadline_ms", lookup_deadline_ms)
        self._load_ms = _ms("load_deadline_ms", load_deadline_ms)
        self._store_ms = _ms("store_deadline_ms", store_deadline_ms)
        self._prompt_tokens = 0  # of the completion that runs
        self._failed = False  # the last call to prefixd; said once
        self._late = False  # the lookup of the completion that runs failed: nothing is stored
        self.restored_tokens = 0  # that the Llama did not have itself, in all
        self.stored_tokens = 0
        self._client = connect(
            address,
            name=name or f"llama-cpp-{os.getpid()}",
            engine=f"llama-cpp-python {getattr(llama_cpp, '__version__', 'unknown')}",
            token_file=token_file,
            library=library,
        )
        self._lib = self._client._lib
        self._held = self._open(llm, _text("salt", salt))

    def close(self) -> None:
        """Ends the session with prefixd. The Llama goes on without a cache."""
        self._held = None
        self._client.close()

    @property
    def cache_size(self) -> int:
        """Bytes of K and V that this process has stored. prefixd holds them, and gives them up."""
        facts = _abi.SpaceFacts()
        self._lib.describe_space(self._space(), ctypes.addressof(facts))
        return self.stored_tokens * int(facts.payload_bytes_per_token)

    def __contains__(self, key: Sequence[int]) -> bool:
        return self._match(np.array(key, np.uint32)) > 0

    def __getitem__(self, key: Sequence[int]) -> Found:
        llm = self._llama()
        if llm is None:
            raise KeyError("prefixd has nothing for this Llama")
        self._pass_over_save_state(llm)
        self._prompt_tokens, self._late = len(key), False
        prompt = np.array(key, np.intc)
        own = context.common_prefix(context.tokens_of(llm), prompt)
        if own == len(prompt) and (own < llm.n_tokens or llm._requires_eval):
            own -= 1  # Llama computes the last token again, for its logits
        if not context.can_go_back_to(llm, own):
            llm.reset()  # Llama would go on from a window with holes
            own = 0
        if not self._restore(llm, prompt, own):
            raise KeyError("prefixd has no more of this prompt than the Llama")
        return Found(context.tokens_of(llm))

    def __setitem__(self, key: Sequence[int], value: Any) -> None:
        llm = self._llama()
        if llm is None or self._late or self._held is None:
            return
        kept = context.tokens_of(llm)
        if len(kept) == 0 or kept.min() < 0:
            return
        tokens = kept.view(np.uint32)
        there = self._match(tokens)
        if there < len(tokens) and not self._failed:
            self._store(tokens, context.read_state(llm))

    def _open(self, llm: llama_cpp.Llama, salt: bytes) -> _abi.Handle | None:
        if self._lib.why_absent:
            self._say(self._lib.why_absent)
            return None
        try:
            state = context.any_state(llm)
            adapters = context.changes_of(llm).encode()
        except (RuntimeError, ValueError, Error) as error:
            log.warning("%s is not cached: %s", llm.model_path, error)
            return None
        spec = _abi.LlamaSpec(
            gguf=os.fsencode(llm.model_path),
            adapters=adapters,
            salt=salt,
            state=state.ctypes.data,
            state_bytes=state.size,
            context_tokens=llm.n_ctx(),
            build=context.build_of_library().encode(),
        )
        held = self._client._held
        pointer = self._lib.llama_open(held and held.pointer, ctypes.addressof(spec))
        if not pointer:
            log.warning("%s is not cached: %s", llm.model_path, self._lib.error())
            return None
        return _abi.Handle(self._lib, pointer, "llama_close")

    def _llama(self) -> llama_cpp.Llama | None:
        """Returns the Llama if this is its cache and its tokens say what is in its sequence."""
        llm = self._llm()
        if llm is None or llm.cache is not self or context.takes_images(llm):
            return None
        return llm

    def _pointer(self) -> int | None:
        held = self._held
        return None if held is None else held.pointer

    def _space(self) -> int | None:
        return self._lib.llama_space(self._pointer())

    def _pass_over_save_state(self, llm: llama_cpp.Llama) -> None:
        if "save_state" in vars(llm):
            return
        store = type(llm)._create_completion.__code__
        here, to = weakref.ref(self), weakref.ref(llm)

        def save_state() -> Any:
            llm = to()
            assert llm is not None
            if llm.cache is here():
                if sys._getframe(1).f_code is store:
                    return None  # __setitem__ reads the sequence itself
            else:
                del vars(llm)["save_state"]
            return type(llm).save_state(llm)

        vars(llm)["save_state"] = save_state

    def _lookup(self, most: int) -> _abi.Lookup:
        return _abi.Lookup(
            max_cached_tokens=most, deadline_ms=self._lookup_ms, load_deadline_ms=self._load_ms
        )

    def _match(self, tokens: NDArray[np.uint32]) -> int:
        """Returns how many tokens prefixd could restore."""
        if self._held is None:
            return 0
        lookup, info = self._lookup(len(tokens)), _abi.MatchInfo()
        status = self._lib.match(
            self._space(),
            tokens.ctypes.data,
            len(tokens),
            ctypes.addressof(lookup),
            ctypes.addressof(info),
        )
        self._say(self._lib.error() if status != _abi.OK else "")
        return int(info.restorable_tokens)

    def _restore(self, llm: llama_cpp.Llama, prompt: NDArray[np.intc], own: int) -> bool:
        """Puts into the sequence what prefixd has, if that is enough beyond its own tokens. Every
        logit of a prompt is in no cache, so a Llama that wants them all computes them."""
        if self._held is None or len(prompt) - 1 < own + _LEAST_GAIN or llm._logits_all:
            return False
        lib, lookup, used = self._lib, self._lookup(len(prompt) - 1), _abi.Used()
        used.used_tokens = _abi.NONE_USED
        tokens = prompt.view(np.uint32)
        lease = lib.acquire(
            self._space(), tokens.ctypes.data, len(tokens), ctypes.addressof(lookup), None
        )
        try:
            self._late = self._say(lib.error() if lib.last_status() != _abi.OK else "")
            if lib.restorable_tokens(lease) < own + _LEAST_GAIN:
                return False
            count = lib.wait_all(lease, 0)
            if count < own + _LEAST_GAIN:
                return False
            state = np.empty(lib.llama_state_bytes(self._pointer(), count), np.uint8)
            status = lib.llama_fill_state(self._pointer(), lease, state.ctypes.data, state.size)
            if status != _abi.OK:
                log.warning("%d tokens are not restored: %s", count, lib.error())
                return False
            if not context.load_state(llm, state, prompt[:count]):
                log.warning("llama.cpp does not take a state of %d tokens", count)
                return False
            used.used_tokens = count
            self.restored_tokens += count - own
            return True
        finally:
            lib.release(lease, ctypes.addressof(used))

    def _store(self, tokens: NDArray[np.uint32], state: NDArray[np.uint8]) -> None:
        turns = [self._prompt_tokens] if 0 < self._prompt_tokens < len(tokens) else []
        options = _abi.LlamaStoreOptions(
            deadline_ms=self._store_ms,
            turn_end_count=len(turns),
            turn_ends=(ctypes.c_uint32 * len(turns))(*turns),
        )
        info = _abi.CommitInfo()
        status = self._lib.llama_store(
            self._pointer(),
            tokens.ctypes.data,
            len(tokens),
            state.ctypes.data,
            state.size,
            ctypes.addressof(options),
            ctypes.addressof(info),
        )
        self._say(self._lib.error() if status != _abi.OK else "")
        self.stored_tokens += info.stored_tokens

    def _say(self, error: str) -> bool:
        """Notes how the last call to prefixd ended, and warns if the one before had ended well.
        Returns whether it failed."""
        if error and not self._failed:
            log.warning("prompts are computed without prefixd: %s", error)
        elif self._failed and not error:
            log.info("prefixd is back")
        self._failed = bool(error)
        return self._failed
