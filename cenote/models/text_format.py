"""What the code of a model does to texts before they are tokenized; imports no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """The parts around the prompt and the text of an input: start, prompt, middle, text, end."""

    start: str
    middle: str
    end: str
    default_prompt: str  # for requests without one

    def apply(self, text: str, prompt: str | None) -> str:
        """Return the formatted text; one that begins with `start` is formatted already, as vLLM requires it."""
        if text.startswith(self.start):
            return text
        return f"{self.start}{prompt or self.default_prompt}{self.middle}{text}{self.end}"

    def make_chat_template(self, placeholder: str) -> str:
        """Return the same for a conversation: system messages are the prompt, and images precede the texts.

        `placeholder` stands for an image.
        """
        return (
            "{%- set found = namespace(prompt='', images='', text='') -%}"
            "{%- for message in messages -%}"
            "{%- set parts = [{'type': 'text', 'text': message.content}] if message.content is string "
            "else message.content -%}"
            "{%- for part in parts -%}"
            "{%- if part.type == 'text' and message.role == 'system' -%}"
            "{%- set found.prompt = found.prompt + part.text -%}"
            "{%- elif part.type == 'text' -%}{%- set found.text = found.text + part.text -%}"
            "{%- elif part.type == 'image' -%}"
            f"{{%- set found.images = found.images + {placeholder!r} -%}}"
            "{%- endif -%}{%- endfor -%}{%- endfor -%}"
            f"{{{{ {self.start!r} + (found.prompt or {self.default_prompt!r}) + {self.middle!r} }}}}"
            f"{{{{ found.images + found.text + {self.end!r} }}}}"
        )


@dataclass(frozen=True, slots=True)
class PairLengths:
    """The longest query and document of an encoder-decoder reranker in tokens; its code cuts longer ones."""

    query: int
    document: int
