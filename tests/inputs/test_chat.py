"""Conversations rendered to text and token ids, compared with Transformers."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from cenote.errors import BadRequest, PoolingError, Unsupported
from cenote.inputs.chat import CONTINUATION_MARKER, ChatSettings, render_conversation
from cenote.inputs.content_parts import IMAGE_PARTS, UNSUPPORTED_PARTS
from cenote.inputs.limits import Limits
from cenote.inputs.renderer import Renderer
from cenote.inputs.renderer_settings import RendererSettings
from cenote.inputs.tokenized_inputs import TokenizedInput
from cenote.inputs.tokenizer import Tokenizer
from cenote.loading.checkpoint import Checkpoint
from cenote.loading.tokenizer_files import TokenizerFiles, load_tokenizer_files
from cenote.protocol.input_types import Conversation
from cenote.protocol.params import TokenizationParams
from tests.inputs.conftest import SHARED, wrap_tokenizer
from tests.tiny import QWEN_TOKENS, ROBERTA_TOKENS, save_tokenizer

PLAIN_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
GENERATION_PROMPT_TEMPLATE = PLAIN_TEMPLATE + "{% if add_generation_prompt %}assistant: {% endif %}"
CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
TRIMMED = """{{ bos_token }}{% for message in messages %}{% if message.role == 'system' and not loop.first -%}
    {{ raise_exception('system message must be first') }}
{%- endif %}[{{ message.role | upper }}] {{ message.content | trim }}{{ eos_token }}{% endfor %}"""
PARTS = """{% for message in messages %}<{{ message.role }}>{% for part in message.content %}
{% if part.type == 'text' %}{{ part.text }}{% else %}{{ raise_exception('?') }}{% endif %}{% endfor %}</{% endfor %}"""
EITHER = """{% macro render(content) %}{% if content is string %}{{ content | trim }}{% else %}{% for part in content %}
{{ part['text'] }};{% endfor %}{% endif %}{% endmacro %}
{% for message in messages %}{{ message.role }}{{ render(message.content) }}{% if not loop.last %}|{% endif %}
{% endfor %}"""
EVERYTHING = """{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ cls_token }}|{{ sep_token }}|
{{ tools is none }}|{{ documents is none }}|{{ add_generation_prompt }}|{{ missing }}|{{ word }}|
{{ messages | tojson }}{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"""
TEMPLATES = {"plain": PLAIN_TEMPLATE, "chatml": CHATML, "trimmed": TRIMMED, "either": EITHER, "everything": EVERYTHING}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [{"role": "user", "content": "where is the river?"}],
    "three": [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "  is berlin a city?  \n"},
        {"role": "assistant", "content": "yes  "},
    ],
    "odd": [
        {"role": "critic", "content": "<b> & {{ 1 + 1 }} {% raw %} naïve 中文 🙂", "name": "x"},
        {"role": "user", "content": ""},
    ],
    "reasoned": [
        {"role": "user", "content": "2 + 2?"},
        {"role": "assistant", "content": "4", "reasoning": "one, two, three, four"},
        {"role": "user", "content": "are you sure?"},
        {"role": "assistant", "content": "<think>\nlet me see\n</think>\n\nyes"},
    ],
}
TOOL_CALL_MESSAGES = [
    {"role": "user", "content": "weather in Berlin?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"type": "function", "id": "1", "function": {"name": "weather", "arguments": '{"city": "Berlin"}'}}
        ],
    },
    {"role": "tool", "content": "rain", "tool_call_id": "1"},
]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}]


def render(
    messages: Any, template: str | None = PLAIN_TEMPLATE, settings: ChatSettings | None = None, **options: Any
) -> str:
    return render_conversation(Conversation(messages, template, **options), settings or ChatSettings())


def text_parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


@cache
def tiny(folder: Path) -> tuple[PreTrainedTokenizerBase, TokenizerFiles]:
    return AutoTokenizer.from_pretrained(folder), load_tokenizer_files(Checkpoint("tiny", folder))


@pytest.fixture(scope="module", params=["roberta", "qwen"])
def tokenizers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same files loaded by Transformers and by cenote."""
    folder = tmp_path_factory.mktemp(request.param)
    save_tokenizer(folder, ROBERTA_TOKENS if request.param == "roberta" else QWEN_TOKENS)
    return tiny(folder)


@pytest.fixture(scope="module")
def qwen() -> Any:
    folder = SHARED / "qwen3"
    if not folder.is_dir():
        pytest.skip("no tokenizer qwen3 in the folder `shared` next to the project")
    return tiny(folder.resolve())


def assert_same(
    theirs: PreTrainedTokenizerBase, files: TokenizerFiles, messages: Any, template: str | None = None, **options: Any
) -> None:
    """Assert that text and token ids of a conversation equal those of Transformers."""
    kwargs = options.pop("kwargs", {})
    settings = ChatSettings(tokenizer_template=files.chat_template, special_tokens=files.special_tokens)
    renderer = Renderer(
        wrap_tokenizer(files.tokenizer), RendererSettings(vocab_size=10**6, hidden_size=8, chat_settings=settings)
    )
    conversation = Conversation(messages, template, kwargs, **options)
    their_options = {"chat_template": template, **options, **kwargs}

    assert render_conversation(conversation, settings) == theirs.apply_chat_template(
        messages, tokenize=False, **their_options
    )
    expected = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **their_options)
    (rendered,) = renderer.render([conversation], TokenizationParams(add_special_tokens=False), Limits(10**6))
    assert isinstance(rendered, TokenizedInput)
    assert rendered.token_ids.tolist() == expected
    assert renderer.tokenize(conversation, add_special_tokens=False) == expected


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("add_generation_prompt", [False, True])
def test_a_conversation_is_rendered_as_in_transformers(
    tokenizers: Any, conversation: str, template: str, add_generation_prompt: bool
) -> None:
    theirs, files = tokenizers
    messages = CONVERSATIONS[conversation]

    options = {"add_generation_prompt": add_generation_prompt, "kwargs": {"word": "<w>"}}
    assert_same(theirs, files, messages, TEMPLATES[template], **options)


@pytest.mark.parametrize("template", ["plain", "chatml", "trimmed", "either"])
@pytest.mark.parametrize("last", ["go on", "  go on ", "a\n", "", "user", "yes yes"])
def test_a_message_is_continued_as_in_transformers(tokenizers: Any, template: str, last: str) -> None:
    theirs, files = tokenizers
    messages = [*CONVERSATIONS["three"], {"role": "assistant", "content": last}]

    assert_same(theirs, files, messages, TEMPLATES[template], continue_final_message=True)


@pytest.mark.parametrize("template", [PARTS, EITHER], ids=["parts", "either"])
def test_parts_are_rendered_as_in_transformers(tokenizers: Any, template: str) -> None:
    theirs, files = tokenizers
    messages = [
        {"role": "user", "content": text_parts("the cat ", " and")},
        {"role": "assistant", "content": text_parts("a dog")},
    ]

    assert_same(theirs, files, messages, template)
    assert_same(theirs, files, messages, template, continue_final_message=True)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"continue_final_message": True}], ids=str)
@pytest.mark.parametrize("kwargs", [{}, {"enable_thinking": False}], ids=str)
def test_a_real_template_is_rendered_as_in_transformers(
    qwen: Any, conversation: str, options: dict[str, Any], kwargs: dict[str, Any]
) -> None:
    theirs, files = qwen

    assert_same(theirs, files, CONVERSATIONS[conversation], **options, kwargs=kwargs)


def test_tools_are_arguments_of_a_real_template(qwen: Any) -> None:
    theirs, files = qwen
    parsed = [{"function": {"name": "weather", "arguments": {"city": "Berlin"}}}]
    expected = theirs.apply_chat_template(
        [TOOL_CALL_MESSAGES[0], {"role": "assistant", "content": "", "tool_calls": parsed}, TOOL_CALL_MESSAGES[2]],
        tools=TOOLS,
        tokenize=False,
    )

    assert '{"name": "weather", "arguments": {"city": "Berlin"}}' in expected
    settings = ChatSettings(tokenizer_template=files.chat_template)
    assert render(TOOL_CALL_MESSAGES, None, settings, template_kwargs={"tools": TOOLS}) == expected


# template selection


def test_the_template_of_the_request_overrides_the_servers_which_overrides_the_tokenizers() -> None:
    messages = [{"role": "user", "content": "x"}]

    def render_with(request: str | None, server: str | None) -> str:
        return render(messages, request, ChatSettings(server_template=server, tokenizer_template="tokenizer's"))

    assert render_with("request's", "server's") == "request's"
    assert render_with(None, "server's") == "server's"
    assert render_with(None, None) == render_with("", None) == "tokenizer's"


def test_without_a_template_the_error_names_the_option() -> None:
    with pytest.raises(BadRequest, match="messages need a chat template.*--chat-template.*as input"):
        render([{"role": "user", "content": "x"}], None)


def test_an_invalid_template_is_a_bad_request() -> None:
    for template, message in (
        ("{% for", "chat template is not valid Jinja"),
        ("{{ 1 / 0 }}", "chat template failed: div"),
    ):
        with pytest.raises(BadRequest, match=message):
            render([{"role": "user", "content": "x"}], template)


# arguments


def test_template_kwargs_of_the_request_override_the_servers() -> None:
    settings = ChatSettings(template_kwargs={"a": 1, "b": 2, "bos_token": "<B>"}, special_tokens={"bos_token": "<s>"})

    text = render([{"role": "u", "content": ""}], "{{ a }}{{ b }}{{ bos_token }}", settings, template_kwargs={"b": 3})

    assert text == "13<B>"


@pytest.mark.parametrize("name", ["chat_template", "tokenize", "messages", "add_generation_prompt"])
def test_a_template_kwarg_cannot_be_a_field_of_the_request(name: str) -> None:
    with pytest.raises(BadRequest, match=f"reserved keys: .*{name}") as caught:
        render([{"role": "user", "content": "x"}], template_kwargs={name: 1})
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(BadRequest, match="reserved keys"):
        ChatSettings(template_kwargs={name: 1})


def test_template_kwargs_may_have_names_that_python_or_jinja_uses() -> None:
    kwargs = {"self": 1, "context": 2, "environment": 3, "class": 4}

    assert render([{"role": "u", "content": ""}], "{{ context }}{{ environment }}", template_kwargs=kwargs) == "23"


# content


@pytest.mark.parametrize(
    ("content_format", "template", "expected"),
    [
        ("auto", PLAIN_TEMPLATE, "u: a\nb\nu: c\nu: \n"),
        ("string", PLAIN_TEMPLATE, "u: a\nb\nu: c\nu: \n"),
        ("openai", "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
         '[{"type": "text", "text": "a"}, {"type": "text", "text": "b"}][{"type": "text", "text": "c"}][]'),
        ("auto", "{% for m in messages %}({% for p in m.content %}{{ p.text }}.{% endfor %}){% endfor %}",
         "(a.b.)(c.)()"),
        ("string", "{% for m in messages %}({% for p in m.content %}{{ p }}.{% endfor %}){% endfor %}",
         "(a.\n.b.)(c.)()"),
        ("auto", EITHER, "ua;b;|uc|u"),
    ],
)  # fmt: skip
def test_content_has_the_format_that_the_template_expects(content_format: Any, template: str, expected: str) -> None:
    messages = [{"role": "u", "content": content} for content in (text_parts("a", "b"), "c", None)]

    assert render(messages, template, ChatSettings(content_format=content_format)) == expected


def test_text_parts_of_every_type_are_accepted() -> None:
    content = [
        "plain",
        {"text": "untyped"},
        {"type": "input_text", "text": "input"},
        {"type": "output_text", "text": "output"},
        {"type": "refusal", "refusal": "refused"},
        {"type": "thinking", "thinking": "thought"},
        {"refusal": "untyped as well"},
    ]

    text = render([{"role": "user", "content": content}])

    assert text == "user: plain\nuntyped\ninput\noutput\nrefused\nthought\nuntyped as well\n"


def test_arguments_of_calls_are_limited_in_all_messages_together() -> None:
    def make_messages(num_chars: int) -> list[dict[str, Any]]:
        call = {"function": {"arguments": "[" * num_chars}}
        return [{"role": "assistant", "tool_calls": [call, call]}, {"role": "assistant", "tool_calls": [call, call]}]

    assert render(make_messages(250_000), "{{ messages | length }}") == "2"
    with pytest.raises(BadRequest, match="arguments of tool_calls have 1000004 characters, limit 1000000"):
        render(make_messages(250_001), "{{ messages | length }}")


def test_null_entries_are_removed() -> None:
    template = "{{ 'name' in messages[0] }}{{ messages[0].content is defined }}{{ messages[0].content == '' }}"

    assert render([{"role": "user", "content": None, "name": None}], template) == "FalseTrueTrue"
    assert render([{"role": "user"}], template) == "FalseTrueTrue"


def test_tool_call_arguments_that_are_not_json_stay_text() -> None:
    template = "{% for call in messages[0].tool_calls %}{{ call | tojson }}{% endfor %}"

    def call(arguments: Any) -> str:
        return render([{"role": "assistant", "tool_calls": [{"function": {"arguments": arguments}}]}], template)

    assert call("{not json") == '{"function": {"arguments": "{not json"}}'
    assert call("") == call({}) == '{"function": {"arguments": {}}}'
    assert render([{"role": "assistant", "tool_calls": ["odd"]}], template) == '"odd"'


def test_the_callers_messages_are_not_modified() -> None:
    messages = [
        {"role": "user", "content": text_parts("a")},
        {"role": "assistant", "content": text_parts("b"), "name": None},
    ]

    render(messages, PARTS, continue_final_message=True)

    assert messages == [
        {"role": "user", "content": text_parts("a")},
        {"role": "assistant", "content": text_parts("b"), "name": None},
    ]


@pytest.mark.parametrize("kind", [*IMAGE_PARTS, *UNSUPPORTED_PARTS])
def test_a_part_that_is_not_text_is_refused_with_its_path(kind: str) -> None:
    for part in ({"type": kind, kind: {"url": "http://x"}}, {kind: {"url": "http://x"}}):
        with pytest.raises(Unsupported, match=rf"messages\[1\].content\[1\] is of type {kind}.*reads text only"):
            render([{"role": "u", "content": "x"}, {"role": "u", "content": [*text_parts("a"), part]}])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        ("hello", "must be a list of messages, got str"),
        ({"role": "user"}, "must be a list of messages, got dict"),
        (7, "must be a list of messages, got int"),
        (["hello"], r"messages\[0\] must be an object with role and content, got str"),
        ([{"content": "x"}], r"messages\[0\].role must be a string .* got nothing"),
        ([{"role": 1, "content": "x"}], r"messages\[0\].role must be a string .* got int"),
        ([{"role": "u", "content": 7}], r"messages\[0\].content must be a string, a list of parts or null, got int"),
        ([{"role": "u", "content": {"text": "x"}}], r"messages\[0\].content must be a string, a list of parts or null"),
        ([{"role": "u", "content": [7]}], r"messages\[0\].content\[0\] must be an object with a type, got int"),
    ],
)
def test_an_invalid_message_is_refused_with_its_path(messages: Any, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as caught:
        render(messages)
    assert caught.value.param == "messages"


def test_an_unknown_content_format_is_refused() -> None:
    with pytest.raises(BadRequest, match="='parts'; expected one of: auto, string, openai"):
        ChatSettings(content_format="parts")  # type: ignore[arg-type]


# generation prompt and continuation


@pytest.mark.parametrize(
    ("last", "template", "message"),
    [
        (None, PLAIN_TEMPLATE, "the last message has no content"),
        ([], PLAIN_TEMPLATE, "the last message has no content"),
        ("x", "{{ messages[0].content }}", "does not write the last message unchanged"),
        ("ab-c", "{% for m in messages %}{{ m.content.replace('-', '+') }}{% endfor %}", "does not write the last"),
    ],
)
def test_a_message_that_cannot_be_continued_is_refused(last: Any, template: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        render([{"role": "u", "content": "?"}, {"role": "a", "content": last}], template, continue_final_message=True)


def test_a_message_containing_the_marker_is_continued_at_its_end() -> None:
    messages = [
        {"role": "u", "content": f"one {CONTINUATION_MARKER}two"},
        {"role": "a", "content": f"three {CONTINUATION_MARKER}four"},
    ]

    assert (
        render(messages, continue_final_message=True)
        == f"u: one {CONTINUATION_MARKER}two\na: three {CONTINUATION_MARKER}four"
    )


# conversations among other inputs


def test_a_conversation_is_rendered_among_other_inputs(wordpiece: Tokenizer) -> None:
    renderer = Renderer(
        wordpiece,
        RendererSettings(
            vocab_size=30522, hidden_size=8, chat_settings=ChatSettings(tokenizer_template=GENERATION_PROMPT_TEMPLATE)
        ),
    )
    chat = Conversation([{"role": "a", "content": "b c"}])
    inputs = ["d", chat, Conversation([]), Conversation([{"role": "a", "content": "\ud800"}]), [7]]

    def rendered(prompt: str | None = None, **tokenization: Any) -> list[Any]:
        results = renderer.render(inputs, TokenizationParams(**tokenization), Limits(16), prompt)
        return [result if isinstance(result, PoolingError) else result.token_ids.tolist() for result in results]

    a, colon = 1037, 1024
    text, conversation, empty, invalid, ids = rendered(add_special_tokens=False)
    assert (text, conversation, ids) == ([a + 3], [a, colon, a + 1, a + 2], [7])
    assert "at least one message" in str(empty)
    assert "lone surrogate" in str(invalid)
    assert rendered()[1] == [101, a, colon, a + 1, a + 2, 102]
    assert rendered(truncate_prompt_tokens=2, add_special_tokens=False)[1] == [a, colon]
    assert rendered(truncate_prompt_tokens=2, truncation_side="left")[1] == [a + 2, 102]
    assert rendered("e ", add_special_tokens=False)[:2] == [[a + 4, a + 3], conversation]  # a prompt is for texts


def test_a_conversation_that_is_too_long_is_refused_like_a_text(wordpiece: Tokenizer) -> None:
    renderer = Renderer(
        wordpiece,
        RendererSettings(
            vocab_size=30522, hidden_size=8, chat_settings=ChatSettings(tokenizer_template=GENERATION_PROMPT_TEMPLATE)
        ),
    )

    (result,) = renderer.render([Conversation([{"role": "u", "content": "x " * 30}])], TokenizationParams(), Limits(16))

    assert isinstance(result, PoolingError)
    assert "maximum context length is 16 tokens" in str(result)


def test_a_text_model_refuses_images_before_it_needs_a_template() -> None:
    content = ["look", {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]

    with pytest.raises(Unsupported, match=r"messages\[0\].content\[1\] is of type image_url.*reads text only"):
        render_conversation(Conversation([{"role": "user", "content": content}]), ChatSettings())
