"""Real formats of chat data in small: what is read, what had loss, what is left out."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from chat_templates import chat_tokenizer

from spark_audit.checkpoints.chat_template import read_chat_template
from spark_audit.data.chat.import_chat import import_chat
from spark_audit.data.chat.supervision import count_supervision, supervision_notes
from spark_audit.data.encoding import encode_rows, tokens_of_ranges
from spark_audit.data.examples import read_examples
from spark_audit.data.importers import import_rows
from spark_audit.errors import CheckpointError, InputError

USER = {"role": "user", "content": "Call Maria Jones."}
BOT = {"role": "assistant", "content": "At 555-0142."}
MORE = {"role": "user", "content": "And John?"}
LAST = {"role": "assistant", "content": "At 555-0199."}


def imported(tmp_path, rows, tokenizer=None, **options):
    source = tmp_path / "rows.jsonl"
    output = tmp_path / "out.jsonl"
    if isinstance(rows, list):
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        source = rows
    notes = []
    options = {"task": "t", "split": "train", **options}
    tokenizer = tokenizer or chat_tokenizer()
    import_chat(source, output, tokenizer=tokenizer, note=notes.append, **options)
    return read_examples(output), notes


def learned(example, tokenizer=None):
    """The text of the tokens that had loss."""
    tokenizer = tokenizer or chat_tokenizer()
    (encoding,) = encode_rows(tokenizer, [example])
    mask = tokens_of_ranges(encoding, example.training_input.supervised)
    return tokenizer.decode(encoding.ids[mask].tolist())


def refusal(tmp_path, rows, tokenizer=None, **options):
    with pytest.raises(InputError) as caught:
        imported(tmp_path, rows, tokenizer, **options)
    message = str(caught.value)
    assert "Maria" not in message
    assert "\n" not in message
    return message


def test_openai_rows_keep_their_weights_and_tools(tmp_path):
    tool = {"type": "function", "function": {"name": "find", "parameters": {}}}
    rows = [
        {"messages": [USER, {**BOT, "weight": 0}, MORE, {**LAST, "weight": 1}]},
        {"messages": [USER, BOT], "tools": [tool]},
    ]
    (first, second), _ = imported(tmp_path, rows)
    assert learned(first) == "At 555-0199.<|im_end|>"
    assert learned(second) == second.text
    assert [turn.role for turn in first.training_input.turns] == [
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert first.answer == "At 555-0199."


def test_sharegpt_rows_with_system_and_odd_roles_are_read(tmp_path):
    row = {
        "system": "Be brief.",
        "conversations": [
            {"from": "human", "value": "Call Maria Jones."},
            {"from": "gpt", "value": "At 555-0142.", "train": False},
            {"from": "observation", "value": "found"},
            {"from": "chatgpt", "value": "At 555-0199."},
        ],
    }
    (example,), notes = imported(tmp_path, [row])
    roles = [turn.role for turn in example.training_input.turns]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    assert learned(example) == "At 555-0199.<|im_end|>"
    assert "loss on the assistant's messages" in " ".join(notes)


def test_alpaca_rows_are_read_with_their_history(tmp_path):
    row = {
        "instruction": "Call Maria Jones.",
        "input": "",
        "output": "At 555-0199.",
        "history": [["Who?", "John Smith."]],
    }
    (example,), _ = imported(tmp_path, [row, {**row, "input": "now"}][:1])
    assert learned(example) == "John Smith.<|im_end|>At 555-0199.<|im_end|>"
    (example,), _ = imported(tmp_path, [{**row, "input": "now"}], supervised="last")
    assert "Call Maria Jones.\nnow<|im_end|>" in example.text
    assert learned(example) == "At 555-0199.<|im_end|>"


@pytest.mark.parametrize("history", [5, True, "Who?", {"Who?": "John Smith."}])
def test_a_history_that_is_no_list_of_pairs_is_refused(tmp_path, history):
    row = {"instruction": "Call.", "output": "At 555-0199.", "history": history}
    with pytest.raises(InputError) as caught:
        imported(tmp_path, [row])
    assert "history" in str(caught.value)
    assert "pair" in str(caught.value)


def test_preferences_import_what_was_chosen(tmp_path):
    rows = [
        {"prompt": [USER], "chosen": [BOT], "rejected": [LAST]},
        {"chosen": [USER, BOT], "rejected": [USER, LAST]},
        {"prompt": "Call.", "chosen": " At 555-0142.", "rejected": " No."},
    ]
    examples, notes = imported(tmp_path, rows)
    assert [learned(example) for example in examples[:2]] == [
        "At 555-0142.<|im_end|>\n"
    ] * 2
    assert learned(examples[2]) == " At 555-0142.</s>"
    assert any("`chosen`" in remark for remark in notes)


def test_parquet_of_nested_lists_and_json_in_cells(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"messages": [[USER, BOT], [USER, {**LAST}]]}), path)
    examples, _ = imported(tmp_path, path)
    assert [example.answer for example in examples] == ["At 555-0142.", "At 555-0199."]
    rows = [{"messages": json.dumps([USER, BOT])}]
    assert imported(tmp_path, rows)[0][0].text == examples[0].text


def test_contents_of_parts_are_read_and_images_are_told(tmp_path):
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "m['content'] +",
        "(m['content'] if m['content'] is string else m['content'][0]['text']) +",
    )
    text_part = {"type": "text", "text": "Call Maria Jones."}
    image = {"type": "image", "image": "x.png"}
    rows = [
        {"messages": [{"role": "user", "content": [text_part]}, BOT]},
        {"messages": [{"role": "user", "content": [text_part, image]}, BOT]},
    ]
    (example,), notes = imported(tmp_path, rows, tokenizer)
    assert "user\nCall Maria Jones.<|im_end|>" in example.text
    assert any("more than text" in note and "rows.jsonl:2" in note for note in notes)


def test_a_template_that_drops_earlier_reasoning_says_what_it_cannot_locate(tmp_path):
    tokenizer = chat_tokenizer("qwen-thinking")
    thought = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nAt 555-0142."}
    rows = [{"messages": [USER, thought, MORE, LAST]}, {"messages": [USER, LAST]}]
    options = {"supervised": "assistant"}
    (example,), notes = imported(tmp_path, rows, tokenizer, **options)
    assert example.answer == "At 555-0199."
    assert any("not locatable" in note and "rows.jsonl:1" in note for note in notes)
    examples, notes = imported(tmp_path, rows, tokenizer)  # loss on all tokens
    assert len(examples) == 2
    assert any("not locatable" in note for note in notes)


def test_variables_of_the_template_come_from_the_row(tmp_path):
    tokenizer = chat_tokenizer("qwen-thinking")
    variables = {"enable_thinking": False}
    row = {"prompt": [USER], "completion": [BOT], "chat_template_kwargs": variables}
    (example,), _ = imported(tmp_path, [row], tokenizer)
    prompt = tokenizer.apply_chat_template(
        [USER], tokenize=False, add_generation_prompt=True, enable_thinking=False
    )
    assert learned(example) in example.text.removeprefix(prompt)


def test_a_template_with_a_date_is_told_and_one_that_fails_refused(tmp_path):
    tokenizer = chat_tokenizer()
    plain = tokenizer.chat_template
    tokenizer.chat_template = "{{- strftime_now('%Y') + '\\n' -}}" + plain
    (example,), notes = imported(tmp_path, [{"messages": [USER, BOT]}], tokenizer)
    assert example.text[:2] == "20"
    assert any("date" in remark for remark in notes)
    twice = [{"messages": [USER, USER, BOT]}]
    message = refusal(tmp_path, twice, chat_tokenizer("llama2"))
    assert "rows.jsonl:1: " in message
    tokenizer.chat_template = None
    message = refusal(tmp_path, [{"messages": [USER, BOT]}], tokenizer)
    assert "--chat-template" in message


def test_an_empty_turn_of_the_assistant_is_kept(tmp_path):
    rows = [{"messages": [USER, {"role": "assistant", "content": ""}]}]
    (example,), _ = imported(tmp_path, rows, supervised="assistant")
    assert learned(example) == "<|im_end|>"
    assert example.answer == ""
    assert [turn.role for turn in example.training_input.turns] == ["user"]


def test_a_template_that_runs_for_ever_or_grows_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("spark_audit.data.chat.rendering.ROW_SECONDS", 2)
    tokenizer = chat_tokenizer()
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    tokenizer.chat_template = loop + "{% endfor %}"
    rows = [{"messages": [USER, BOT]}]
    assert "takes more than 2 s" in refusal(tmp_path, rows, tokenizer)
    tokenizer.chat_template = "{{ 'x' * 10**10 }}"
    assert "takes too much memory" in refusal(tmp_path, rows, tokenizer)
    tokenizer.chat_template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    assert "refuses the row" in refusal(tmp_path, rows, tokenizer)


def test_packed_tokens_are_taken_apart(tmp_path):
    tokenizer = chat_tokenizer()
    first, second = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ("<s>It was fine.</s>", "<s>Call 555-0142.</s>")
    )
    ids = first + second
    labels = [-100] * 3 + ids[3:]
    positions = [*range(len(first)), *range(len(second))]
    rows = [
        {"input_ids": ids, "labels": labels, "seq_lengths": [len(first), len(second)]},
        {"input_ids": ids, "labels": labels, "position_ids": positions},
        {"input_ids": ids, "completion_mask": [int(x >= 0) for x in labels]},
    ]
    examples, notes = imported(tmp_path, rows)
    # Two rows of two; of the third nothing says where a document ends.
    assert any("4 documents" in remark for remark in notes)
    texts = ["<s>It was fine.</s>", "<s>Call 555-0142.</s>"]
    assert [example.text for example in examples] == [*texts, *texts, "".join(texts)]
    for example in examples[0::2]:
        assert learned(example) == tokenizer.decode(labels[3 : len(first)]) or (
            learned(example).endswith("555-0142.</s>")
        )
    assert "field 'labels'" in refusal(
        tmp_path, [{"input_ids": ids, "labels": labels[1:]}]
    )
    shifted = [{"input_ids": ids, "labels": ids[1:] + [2]}]
    assert "not shifted" in refusal(tmp_path, shifted)
    assert "does not have" in refusal(tmp_path, [{"input_ids": [1, 99999]}])


def test_a_second_bos_is_refused_at_import(tmp_path):
    rows = [{"prompt": "<s>Call.", "completion": " Yes."}]
    message = refusal(tmp_path, rows)
    assert "BOS" in message
    assert "rows.jsonl:1" in message


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [USER, BOT]},
        {"conversations": [{"from": "human", "value": "Maria"}]},
        {"prompt": "Maria", "completion": "x"},
        {"instruction": "Maria", "input": "", "output": "x"},
        {"input_ids": [1, 2], "labels": [1, 2]},
    ],
)
def test_without_a_template_chat_data_says_how_to_give_one(row, tmp_path):
    source = tmp_path / "rows.jsonl"
    source.write_text(json.dumps(row) + "\n")
    with pytest.raises(InputError) as caught:
        import_rows(source, tmp_path / "out.jsonl", task="t", split="train")
    assert "--chat-template CHECKPOINT" in str(caught.value.fix)
    assert "Maria" not in str(caught.value)


def test_what_all_rows_share_is_fixed_wording(tmp_path):
    system = {"role": "system", "content": "You are a clerk of ACME."}
    rows = [
        {"messages": [system, USER, BOT]},
        {"messages": [system, MORE, LAST]},
    ]
    (first, _), _ = imported(tmp_path, rows)
    fixed = "".join(first.text[low:high] for low, high in first.template)
    assert "You are a clerk of ACME." in fixed
    assert "Maria" not in fixed
    assert "555-0142" not in fixed


def test_a_template_that_is_not_valid_is_named_with_its_line(tmp_path):
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = "{%- for m in messages -%}\n{{ m['content'] }"
    message = refusal(tmp_path, [{"messages": [USER, BOT]}], tokenizer)
    assert message.startswith("option --chat-template")
    assert "line 2" in message


def test_a_template_s_own_words_say_why_it_refuses_and_the_row_s_are_not_shown(
    tmp_path,
):
    twice = [{"messages": [USER, USER, BOT]}]
    message = refusal(tmp_path, twice, chat_tokenizer("llama2"))
    assert "roles must alternate" in message
    tokenizer = chat_tokenizer()
    quoting = "{{ raise_exception(messages[0]['content']) }}"
    tokenizer.chat_template = quoting
    assert "(TemplateError)" in refusal(tmp_path, twice, tokenizer)


def test_roles_in_capitals_are_read_and_unknown_ones_told(tmp_path):
    turns = [
        {"from": "Human", "value": "Call Maria Jones."},
        {"from": "GPT", "value": "At 555-0199."},
    ]
    narrator = {"from": "Maria Jones", "value": "Once."}
    rows = [{"conversations": turns}, {"conversations": [narrator, *turns]}]
    (first, second), notes = imported(tmp_path, rows)
    assert [turn.role for turn in first.training_input.turns] == ["user", "assistant"]
    assert learned(first) == learned(second) == "At 555-0199.<|im_end|>"
    (remark,) = [note for note in notes if "1 row with a role" in note]
    assert "rows.jsonl:2" in remark
    assert "Maria" not in remark


def test_rows_of_images_alone_are_not_sent_to_another_loss(tmp_path):
    image = {"type": "image_url", "image_url": {"url": "x"}}
    message = refusal(
        tmp_path, [{"messages": [{"role": "user", "content": [image]}, BOT]}]
    )
    assert "rows.jsonl: " in message
    assert "--supervised" not in message


def test_a_prompt_of_text_and_a_completion_of_messages_do_not_fit(tmp_path):
    message = refusal(tmp_path, [{"prompt": "Call Maria.", "completion": [BOT]}])
    assert "field 'prompt'" in message


def test_packed_tokens_without_their_lengths_are_named(tmp_path):
    tokenizer = chat_tokenizer()
    ids = tokenizer("<s>It was fine.</s>", add_special_tokens=False)["input_ids"]
    (example,), notes = imported(tmp_path, [{"input_ids": ids + ids}])
    assert example.text == "<s>It was fine.</s>" * 2
    assert any("BOS in the middle" in note and "rows.jsonl:1" in note for note in notes)
    assert not any("documents" in note.split(";")[0] for note in notes)
    lengths = [len(ids), len(ids)]
    _, notes = imported(tmp_path, [{"input_ids": ids + ids, "seq_lengths": lengths}])
    assert not any("BOS in the middle" in note for note in notes)


@pytest.mark.parametrize("is_of_file", [False, True])
def test_a_tokenizer_that_cannot_be_loaded_is_named_with_its_folder(
    is_of_file, tmp_path
):
    """A checkpoint cannot be mended by --tokenizer, which goes with a file."""
    (tmp_path / "tokenizer.json").write_text("{}")
    source = tmp_path
    if is_of_file:
        source = tmp_path / "template.jinja"
        source.write_text("{{ messages }}")
    with pytest.raises(CheckpointError) as caught:
        read_chat_template(str(source))
    assert caught.value.where == str(tmp_path)
    assert "tokenizer.json" in caught.value.fix
    assert ("--tokenizer" in caught.value.fix) == is_of_file
    assert "\n" not in str(caught.value)


def test_a_split_of_another_name_is_refused_before_anything_is_written(tmp_path):
    message = refusal(tmp_path, [{"messages": [USER, BOT]}], split="trian")
    assert message.startswith("split: 'trian'")
    assert not (tmp_path / "out.jsonl").exists()


def test_held_out_rows_alone_are_not_blamed_for_the_loss_of_trained_rows(tmp_path):
    examples, _ = imported(tmp_path, [{"messages": [USER, BOT]}], split="test")
    notes = [*supervision_notes(count_supervision(examples, chat_tokenizer()))]
    assert len(notes) == 1
    assert "--chat-template" not in notes[0]
