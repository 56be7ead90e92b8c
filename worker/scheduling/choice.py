"""One choice of a request, on the engine thread: its tokens become text, and have an end. Pure."""

from dataclasses import replace
from typing import Final

from lmx.protocol.messages.data import Delta, TokenLogprob, ToolCallPart
from lmx.protocol.states import DeltaKind, FinishReason
from lmx.worker.engine.interfaces import Detokenizer
from lmx.worker.engine.values import TokenScores
from lmx.worker.formats.parser import OutputParser
from lmx.worker.scheduling.logprobs import LogprobTrack, TokenBytes, describe
from lmx.worker.scheduling.requests import ChoiceFinished, EngineRequest, RequestOutput
from lmx.worker.text.stop_strings import StopMatcher

PIECE_TOKENS: Final = 4096
"""How many tokens of a prompt one delta has: a long one's logprobs are too much for a message."""


class Choice:
    """Decides what an answer's tokens mean: text, EOS, a stop, the limit.

    EOS and stop tokens are never counted and are never text. Text inside a possible stop string or
    marker, and the bytes of an incomplete character, wait; their tokens are counted with the next
    text.
    """

    def __init__(
        self, request: EngineRequest, index: int, detokenizer: Detokenizer, token_bytes: TokenBytes
    ) -> None:
        rules = request.rules
        self.index = index
        self.tokens = 0
        self.reasoning_tokens = 0
        self._request = request
        self._rules = rules
        self._detokenizer = detokenizer
        self._token_bytes = token_bytes
        self._stops = StopMatcher(rules.stop, include=rules.include_stop)
        self._parser = rules.make_parser() if rules.make_parser else None
        # The kind of the text at the present place.
        self._kind = DeltaKind.CONTENT if self._parser is None else self._parser.kind
        self._track = LogprobTrack() if rules.logprobs else None
        self._held: list[TokenLogprob] = []
        self._raw_chars = 0
        self._out_chars = 0
        self._logprob = 0.0
        self._scored_tokens = 0
        self._unreported_tokens = 0
        # Tokens of text that may turn out to begin the thinking.
        self._undecided_tokens = 0
        self._ids: list[int] | None = [] if rules.token_ids else None
        # Whether every text of a token is a piece as it is: the way of most answers, and the
        # shortest one.
        self._plain = not (rules.stop or rules.make_parser or rules.logprobs or rules.token_ids)

    def echo(
        self,
        entries: list[TokenLogprob],
        tokens: list[int],
        silent: int,
        detokenizer: Detokenizer,
        out: list[RequestOutput],
    ) -> None:
        """Send the prompt as the beginning of the answer, before its first token.

        ``entries`` are its logprobs, empty if the request wants none. The first ``silent`` tokens
        have no text. Stop strings in the prompt are ignored.
        """
        for start in range(0, len(tokens), PIECE_TOKENS):
            end = start + PIECE_TOKENS
            texts = [detokenizer.add(token) for token in tokens[max(start, silent) : end]]
            text = "".join(texts) + (detokenizer.flush() if end >= len(tokens) else "")
            logprobs = tuple(entries[start:end])
            out.append(Delta(self._request.run_id, text, 0, self.index, logprobs=logprobs))

    def advance(self, token: int, scores: TokenScores | None, out: list[RequestOutput]) -> bool:
        """Process the answer's next token; add the output that became final to ``out``.

        Returns whether the answer has ended; its end is then the last item of ``out``.
        """
        rules = self._rules
        if scores is not None:
            # Without the token that ends it an empty answer would be the likeliest of all.
            self._logprob += scores.logprob
            self._scored_tokens += 1
        if token in rules.eos:
            self._score_end(token, scores)
            return self._finish(FinishReason.STOP, None, out)
        if token in rules.stop_ids and self.tokens >= rules.min_tokens:
            self._score_end(token, scores)
            return self._finish(FinishReason.STOP, str(token), out)
        self.tokens += 1
        self._unreported_tokens += 1
        if self._ids is not None:
            self._ids.append(token)
        text = self._detokenizer.add(token)
        if self._plain:
            if text:
                tokens, self._unreported_tokens = self._unreported_tokens, 0
                out.append(Delta(self._request.run_id, text, tokens, self.index))
            return self._ended_by_length(out)
        if self._track is not None:
            self._raw_chars += len(text)
            entry = describe(token, scores, self._token_bytes)
            self._track.add(entry, self._raw_chars if text else None)
        if self.tokens > rules.min_tokens:
            text = self._stops.add(text)
        before = self._kind
        self._emit(text, out)
        if self._parser is not None:
            self._count_reasoning(self._parser, before)
        if self._stops.matched is not None:
            return self._end(FinishReason.STOP, self._stops.matched, out)
        if self._parser is not None and self._parser.satisfied:
            return self._end(FinishReason.STOP, None, out)
        return self._ended_by_length(out)

    def _ended_by_length(self, out: list[RequestOutput]) -> bool:
        if self.tokens < self._request.sequences[0].max_tokens:
            return False
        return self._finish(FinishReason.LENGTH, None, out)

    def _count_reasoning(self, parser: OutputParser, before: DeltaKind) -> None:
        """Count the token as reasoning, or as one that may be a part of the mark before it."""
        if before is DeltaKind.REASONING or self._kind is DeltaKind.REASONING:
            self.reasoning_tokens += 1 + self._undecided_tokens
        elif parser.undecided:
            self._undecided_tokens += 1
            return
        self._undecided_tokens = 0

    def _score_end(self, token: int, scores: TokenScores | None) -> None:
        """Let an end token's logprob be sent with an echo. Programs that score a text by one have
        an answer of one token made, and take the last entry of the lists away."""
        if self._track is not None and self._rules.echo:
            entry = describe(token, scores, self._token_bytes)
            self._track.add(replace(entry, token=b""), None)

    def finish(self, out: list[RequestOutput]) -> None:
        """End the answer where it is: no token follows."""
        self._finish(FinishReason.LENGTH, None, out)

    def _finish(self, reason: FinishReason, stop: str | None, out: list[RequestOutput]) -> bool:
        """Send the text that is held back, then the end."""
        text = self._detokenizer.flush()
        if self._track is not None:
            self._raw_chars += len(text)
            self._track.close(self._raw_chars)
        text = self._stops.add(text)
        if self._stops.matched is None:
            text += self._stops.release()
        else:
            # The text that was held back has completed a stop string after all.
            reason, stop = FinishReason.STOP, self._stops.matched
        self._emit(text, out)
        return self._end(reason, stop, out)

    def _end(self, reason: FinishReason, stop: str | None, out: list[RequestOutput]) -> bool:
        run_id = self._request.run_id
        if self._parser is not None:
            rest = self._parser.finish()
            out += [Delta(run_id, part.text, 0, self.index, part.kind, part.call) for part in rest]
            if self._parser.called and all(part.kind is not DeltaKind.CONTENT for part in rest):
                # White space behind a call is no text.
                self._held.clear()
            # No client should make a call that a stop string has cut off.
            cut_off = stop is not None and not self._parser.is_whole
            if self._parser.called and reason is FinishReason.STOP and not cut_off:
                reason = FinishReason.TOOL_CALLS
        if self._unreported_tokens or self._held:
            # Tokens that gave no text: those of a stop string, of a marker, or tokens without text.
            out.append(
                Delta(
                    run_id,
                    "",
                    self._unreported_tokens,
                    self.index,
                    logprobs=tuple(self._held),
                    token_ids=self._unreported_ids(),
                )
            )
        mean = self._logprob / max(1, self._scored_tokens)
        out.append(ChoiceFinished(run_id, self.index, reason, stop, self.tokens, mean))
        return True

    def _emit(self, text: str, out: list[RequestOutput]) -> None:
        """Send what became final with ``text``, and note the kind of the present place."""
        if self._track is None:
            # The hot path: nothing waits for the text that it belongs to.
            if self._parser is not None:
                parts = self._parser.add(text)
                self._kind = self._parser.kind
                for kind, part, call in parts:
                    self._append(kind, part, call, (), out)
            elif text:
                self._append(DeltaKind.CONTENT, text, None, (), out)
            return
        self._out_chars += len(text)
        entries = self._track.release(self._out_chars)
        if self._parser is None:
            self._append_with_logprobs(DeltaKind.CONTENT, text, None, entries, out)
            return
        before = self._kind
        parts = self._parser.add(text)
        self._kind = after = self._parser.kind
        # The tokens of a marker belong to no content: neither those that led into it nor,
        # held back with it, those that turned out to be its beginning.
        inside = before is DeltaKind.CONTENT and after is DeltaKind.CONTENT
        if not inside or any(kind is not DeltaKind.CONTENT for kind, _, _ in parts):
            entries = []
            self._held.clear()
        for kind, part, call in parts:
            self._append_with_logprobs(
                kind, part, call, entries if kind is DeltaKind.CONTENT else [], out
            )
            entries = [] if kind is DeltaKind.CONTENT else entries
        self._held += entries

    def _unreported_ids(self) -> tuple[int, ...]:
        if self._ids is None:
            return ()
        ids = tuple(self._ids)
        self._ids.clear()
        return ids

    def _append_with_logprobs(
        self,
        kind: DeltaKind,
        text: str,
        call: ToolCallPart | None,
        entries: list[TokenLogprob],
        out: list[RequestOutput],
    ) -> None:
        """Send a text with its logprobs, and with those that were held back for it."""
        if not text and call is None and not entries:
            return
        if kind is DeltaKind.CONTENT and self._held:
            entries = self._held + entries
            self._held = []
        self._append(kind, text, call, tuple(entries), out)

    def _append(
        self,
        kind: DeltaKind,
        text: str,
        call: ToolCallPart | None,
        entries: tuple[TokenLogprob, ...],
        out: list[RequestOutput],
    ) -> None:
        ids = () if self._ids is None else self._unreported_ids()
        tokens, self._unreported_tokens = self._unreported_tokens, 0
        out.append(Delta(self._request.run_id, text, tokens, self.index, kind, call, entries, ids))
